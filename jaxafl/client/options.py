"""Options of local training; `jaxafl.client.training` executes the steps."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxafl.client.correction.contract import Array, Correction
from jaxafl.client.optimizer import Optimised
from jaxafl.client.upload.contract import Upload, as_upload
from jaxafl.options import Number, UserError, check_whole, in_order, number, recording, shown, static

Counts = TypeVar("Counts", np.ndarray, jax.Array)
FULL_BATCH_PIECE = 256
"""Samples per gradient evaluation of a full batch, unless `micro_batch` is given."""


class Timing(NamedTuple):
    """Place of a run in the schedule, traced scalars."""

    staleness: Any = 0  # int32, τ of the run's update at the first server step that consumes it
    duration: Any = 0.0  # float, duration of the run in simulated seconds
    version: Any = 0  # int32, version s that the run trains from
    server_step: Any = 0  # int32, the first server step t that consumes the run's update
    started: Any = 0.0  # float, simulated seconds at the start of the run


class Moment(NamedTuple):
    """Moment of a local step, the argument of `Client(rate_schedule=...)`; all fields are traced scalars.

    With `charge="executed"`, `duration` and `started` are those of the planned local steps.
    """

    step: Array  # int32, local step in the run, from 0
    epoch: Array  # int32, local epoch in the run, from 0
    run: Array  # int32, index of the run among the client's runs, from 0
    staleness: Array  # int32, τ of the run's update at the first server step that consumes it
    duration: Array  # float, duration of the run in simulated seconds
    client: Any = 0  # int32, index of the client
    version: Any = 0  # int32, version s that the run trains from
    server_step: Any = 0  # int32, the first server step t that consumes the run's update
    started: Any = 0.0  # float, simulated seconds at the start of the run


class Client(Optimised, init=False):
    """Local training of every client.

    `batch_size`, `epochs`, `steps` and every number (also those of the optimiser, such as `learning_rate`) are one for
    all clients or one per client, a list or array [N].

    A local step is one step of the optimiser on g = ∇ mean loss of a mini-batch (+ weight_decay · x) (+ μ (x - x_s)),
    with the learning rate times rate_schedule(moment) · step_schedule(local step) · run_schedule(run) ·
    rate_decay_per_run^run. The optimiser's state is initialised in every run, unless `reset` says otherwise.

    Args:
        optimizer: constructor of an Optax optimiser, e.g. `optax.sgd` or `optax.adam`. Its hyperparameters
            (learning_rate, momentum, b1 ...) are given by name, and the numbers among them can be swept. A made one,
            e.g. `optax.chain(optax.clip(1.0), optax.sgd(0.1))`, is static and takes no hyperparameters. An Optax
            schedule as `learning_rate` counts the local steps of each run from 0 (of each epoch with `reset="epoch"`).
            For a rate that decreases from run to run use `run_schedule` or `rate_decay_per_run`. PRNG keys in the
            optimiser's state are replaced by keys of the run. An optimiser that evaluates the objective (Polyak's step,
            L-BFGS) gets the mini-batch objective with proximal term and weight decay.
        steps: local steps K of a run: one number, one per client, or an array [client, run] whose last column is used
            for all later runs. Give either `steps` or `epochs`.
        epochs: local epochs of a run, each a new shuffle. The last, partial batch is kept and averaged over its real
            samples.
        batch_size: mini-batch size B; `None` uses all the client's data in every step (exact mean, accumulated over
            micro-batches). With one per client, smaller batches are padded to the largest or to `micro_batch`; the mean
            is over the real samples.
        proximal: coefficient μ of FedProx's proximal term (AsyncFedED, eq. (39)); at least 0, `None` for no term.
        weight_decay: weight decay w, added to the gradient as w · x, as in PyTorch's SGD; at least 0. An optimiser with
            a parameter `weight_decay` (`optax.adamw`) receives it instead.
        rate_decay_per_run: factor of the learning rate from each run of a client to the next (0.995 in AsyncFedED); at
            least 0.
        step_schedule: function from the local step (from 0, traced int32) to a factor of the learning rate.
        run_schedule: function from the client's run index (from 0, traced int32) to a factor of the learning rate.
        rate_schedule: function from a `Moment` (client, run, version, local step ...) to a factor of the learning rate.
        sampling: sampling of mini-batches with `steps`. `"replacement"` draws every sample uniformly. `"epochs"` uses
            shuffled epochs that continue from run to run.
        reset: period after which the optimiser's state is initialised: every `"run"`, every local `"epoch"` (with
            `epochs`), or `"never"`. Then the state lasts from run to run, as in DiLoCo: it changes at the end of every
            run that the client completes, and an Optax schedule counts all local steps of the client.
        patience: number of epochs without a smaller training loss after which a run stops and uploads its last
            parameters, with `epochs`. The loss of an epoch is the mean over its mini-batches, each before its step.
        charge: epochs whose simulated time is charged, with `patience`: the `"planned"` or the `"executed"` ones.
            `"executed"` works on `synchronous` and `stale_rounds`, where rates by seconds use the planned duration.
            The times of `Simulation.schedule` and `step` are planned, too.
        micro_batch: samples per gradient evaluation, by default a mini-batch, or 256 of a full one; larger batches are
            accumulated. It changes only speed and memory, except for models with batch normalisation or dropout, which
            apply them within each micro-batch.
        upload: transformation of every update Δ before it is sent, one of `jaxafl.upload` or an Optax transformation;
            `None` sends Δ. Non-trainable state is sent as it is.
        correction: correction of local gradients by what clients and server remember, one of `jaxafl.correction`.
        personal: function from the path of a parameter, such as `"head/kernel"`, to True if each client keeps it and
            never sends it. Personal parameters begin as those of x_0. Batch statistics are never personal.

    Raises:
        TypeError: the optimiser lacks a given hyperparameter, or needs a missing one. `Simulation.check` checks all.

    Examples:
        >>> import optax
        >>> from jaxafl import Client
        >>> Client(learning_rate=0.05, momentum=0.5, steps=10, batch_size=16).hyperparameters  # of optax.sgd
        {'learning_rate': 0.05, 'momentum': 0.5}
        >>> Client(optax.adam, learning_rate=0.001, epochs=2, proximal=0.01)
        Client(optimizer=adam, learning_rate=0.001, epochs=2, proximal=0.01)
    """

    derives = False

    steps: int | tuple[int, ...] | tuple[tuple[int, ...], ...] | None = static(default=None, kw_only=True)
    epochs: int | tuple[int, ...] | None = static(default=None, kw_only=True)
    batch_size: int | tuple[int, ...] | None = static(default=32, kw_only=True)
    proximal: Number | None = number(default=None, least=0, per_client=True, kw_only=True)
    weight_decay: Number | None = number(default=None, least=0, per_client=True, kw_only=True)
    rate_decay_per_run: Number | None = number(default=None, least=0, per_client=True, kw_only=True)
    step_schedule: Callable[[Array], Array] | None = static(default=None, kw_only=True)
    run_schedule: Callable[[Array], Array] | None = static(default=None, kw_only=True)
    rate_schedule: Callable[[Moment], Array] | None = static(default=None, kw_only=True)
    sampling: Literal["replacement", "epochs"] = static(default="replacement", kw_only=True)
    reset: Literal["run", "epoch", "never"] = static(default="run", kw_only=True)
    patience: int | None = static(default=None, kw_only=True)
    charge: Literal["planned", "executed"] = static(default="planned", kw_only=True)
    micro_batch: int | None = static(default=None, kw_only=True)
    upload: Upload | None = dataclasses.field(default=None, kw_only=True)
    correction: Correction | None = dataclasses.field(default=None, kw_only=True)
    personal: Callable[[str], bool] | None = static(default=None, kw_only=True)
    _attack: Any = recording(default=None)  # of the run, with a mask [N] of the attackers
    _sizes: Any = recording(default=None)  # batch sizes, int32 [N], or that of one client; set by `prepared`

    def __post_init__(self) -> None:
        for name in ("steps", "epochs", "batch_size"):
            value = in_order(self.name, name, getattr(self, name))
            if isinstance(value, np.ndarray | jax.Array) and (value.ndim or name == "steps"):
                object.__setattr__(self, name, value.tolist())
        if isinstance(self.upload, optax.GradientTransformation):
            object.__setattr__(self, "upload", as_upload(self.upload))
        super().__post_init__()
        if self.weight_decay is not None and "weight_decay" in inspect.signature(self.optimizer).parameters:
            object.__setattr__(self, "hyperparameters", self.hyperparameters | {"weight_decay": self.weight_decay})
            object.__setattr__(self, "weight_decay", None)

    @property
    def references(self) -> tuple[str, ...]:  # type: ignore[override]
        """FedProx's reference if there is a proximal term, and those of upload and correction."""
        own = () if self.proximal is None else ("li2020",)
        return (*own, *getattr(self.upload, "references", ()), *getattr(self.correction, "references", ()))

    @property
    def remembers(self) -> bool:
        """True if each client keeps a row from run to run."""
        kept = self.personal is not None or self.correction is not None or self.reset == "never"
        return kept or (self.upload is not None and self.upload.remembers)

    @property
    def width(self) -> int:
        """The largest mini-batch size of a client; 0 for full batches."""
        return max(self.batch_size) if isinstance(self.batch_size, tuple) else self.batch_size or 0

    def check(self, num_clients: int) -> None:
        """Raises `ValueError` for options that contradict each other."""
        self.check_hyperparameters(num_clients)
        if (check := getattr(self.optimizer, "check", None)) is not None:
            check(self)
        if self.correction is not None:
            self.correction.check(self)
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(f"Client: give either steps or epochs, got steps={self.steps}, epochs={self.epochs}")
        for name, most_axes in (("steps", 2), ("epochs", 1), ("batch_size", 1)):
            if getattr(self, name) is not None:
                _check_whole_numbers(name, getattr(self, name), num_clients, most_axes)
        if self.sampling == "epochs" and np.ndim(np.asarray(self.steps, object)) == 2:
            raise ValueError(
                "Client: sampling='epochs' needs runs of equal length, steps=n or one number per client; got steps per "
                f"client and run, {shown(self.steps)}"
            )
        if self.epochs is None and (self.reset == "epoch" or self.patience is not None):
            raise ValueError(
                f"Client: reset='epoch' and patience count local epochs: give epochs=n instead of steps; got "
                f"steps={shown(self.steps)}, reset={self.reset!r}, patience={self.patience}"
            )
        by_optax = callable(dict(self.switches).get("learning_rate"))
        if self.reset == "never" and self.correction is not None and by_optax:
            raise ValueError(
                "Client: with reset='never' a schedule of Optax counts the steps of all runs, and a correction those "
                "of one; give step_schedule or run_schedule"
            )
        scheduled = self.step_schedule or self.run_schedule or self.rate_schedule or self.rate_decay_per_run is not None
        if scheduled and "learning_rate" not in self.hyperparameters:
            raise ValueError(
                "Client: a schedule or rate_decay_per_run multiplies learning_rate, so that must be given as a number, "
                f"e.g. Client(optax.sgd, learning_rate=0.1, ...); got {', '.join(self.hyperparameters) or 'none'}"
            )

    def local_steps(self, counts: np.ndarray) -> np.ndarray:
        """Returns the local steps of a run, int32 [], [N] or [N, R]; `counts`: int [N], sample counts."""
        if self.epochs is None:
            return np.asarray(self.steps, np.int32)
        steps = np.asarray(self.epochs, np.int64) * self.steps_per_epoch(counts)
        if steps.max() > np.iinfo(np.int32).max:
            raise ValueError(f"Client: epochs={shown(self.epochs)} make {steps.max():,} local steps, too many to count")
        return steps.astype(np.int32)

    def steps_per_epoch(self, counts: Counts) -> Counts:
        """Returns the mini-batches per epoch for clients with these sample counts."""
        if self.batch_size is None:
            return counts * 0 + 1
        size = self.batch_size if self._sizes is None else self._sizes
        return -(-counts // (np.asarray(size) if isinstance(size, tuple) else size))

    def size_of_batch(self, count: Array) -> Array:
        """Returns the mini-batch size of one client, int32; `count`: its sample count n_i. See `of`."""
        if self.batch_size is None:
            return count
        return jnp.int32(self.batch_size) if self._sizes is None else self._sizes

    def prepared(self, largest: int, attack: Any = None) -> Client:
        """Returns the local training that programs execute, with static sizes.

        Batch sizes per client become a table, and `batch_size` the largest of them. Epochs per client, which only
        schedules read, become the largest, too.

        Args:
            largest: the most samples of a client.
            attack: prepared `Attack`, or `None`.
        """
        sizes = np.asarray(self.batch_size, np.int32) if isinstance(self.batch_size, tuple) else None
        epochs = max(self.epochs) if isinstance(self.epochs, tuple) else self.epochs
        piece = self.micro_batch or self.width or min(largest, FULL_BATCH_PIECE)
        new, size = copy.copy(self), self.width or None  # nothing of it has to be checked again
        vars(new).update(batch_size=size, epochs=epochs, micro_batch=piece, _sizes=sizes, _attack=attack)
        return new

    @property
    def attack(self) -> Any:
        """Attack of the run; `None` without one."""
        return self._attack

    def of(self, client: Any) -> Client:
        """Returns the local training of one client: arrays [N] of numbers become its numbers."""
        return jax.tree.map(lambda leaf: leaf[client] if jnp.ndim(leaf) else leaf, self)


def _check_whole_numbers(name: str, value: Any, num_clients: int, most_axes: int) -> None:
    """Raises unless a value is one integer, one per client [N], or with two axes one per client and run [N, R]."""
    array = np.asarray(value, object)
    if isinstance(value, tuple) and (array.ndim > most_axes or len(value) != num_clients):
        more = " or one per client and run" * (most_axes == 2)
        raise ValueError(
            f"Client: {name} must be one number,{' or' * (not more)} one per client ({num_clients},){more}, got shape "
            f"{array.shape}"
        )
    values: Any = array.ravel() if isinstance(value, tuple) else (value,)
    if {*map(type, values)} <= {int}:
        values = (min(values), max(values))  # checking each of many clients would be slow
    for one in values:
        check_whole("Client", name, one)


def check_examples(client: Any, model_state: Any) -> None:
    """Raises `ValueError` for local training that cannot clip the gradients of single samples."""
    owner = f"Client({client.optimizer_name})"
    if jax.tree.leaves(model_state):
        raise UserError(
            f"{owner}: the model has non-trainable state (batch statistics), which mixes samples, so their gradients "
            "cannot be clipped one by one. Freeze it, or use group or layer normalisation"
        )
    if not 0 < client.width <= client.micro_batch or client._sizes is not None:
        raise UserError(
            f"{owner}: gradients of single samples are clipped in one mini-batch of fixed size. Give batch_size=B, one "
            "number, without micro_batch"
        )
    if client.proximal is not None or client.weight_decay is not None or client.correction is not None:
        raise UserError(
            f"{owner}: proximal, weight_decay and correction are terms of a mean gradient, and would be clipped with "
            "the gradients of samples. Leave them out, or chain "
            "optax.add_decayed_weights after optax.contrib.differentially_private_aggregate"
        )
