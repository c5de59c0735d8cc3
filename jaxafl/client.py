"""Local training: its options. `jaxafl.local` makes the steps."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from jaxafl.checks import check_choice, check_number, check_whole
from jaxafl.pytrees import pytree, static

Array = jax.Array
Tree = Any


@pytree
class LocalTraining:
    """See `Client`."""

    hyperparameters: dict[str, Any]
    proximal: Any = None
    weight_decay: Any = None
    run_decay: Any = None
    optimizer: Callable[..., optax.GradientTransformation] = static(default=None)
    options: tuple[tuple[str, Any], ...] = static(default=())
    steps: Any = static(default=None)
    epochs: int | None = static(default=None)
    batch_size: int | None = static(default=None)
    sampling: str = static(default="replacement")
    step_schedule: Callable[[Array], Array] | None = static(default=None)
    run_schedule: Callable[[Array], Array] | None = static(default=None)
    rate_schedule: Callable[[Moment], Array] | None = static(default=None)
    reset: str = static(default="run")
    patience: int | None = static(default=None)
    charge: str = static(default="planned")
    micro_batch: int | None = static(default=None)

    def check(self, num_clients: int) -> None:
        """Raises `ValueError` for options that cannot work."""
        for name, value in self.hyperparameters.items():
            check_number("Client", name, value, least=0 if name in ("learning_rate", "momentum") else None)
        for name, value in self.options:
            if name == "learning_rate" and not callable(value):
                raise TypeError(f"Client: learning_rate must be a number or an Optax schedule, got {value!r}")
        for name in ("proximal", "weight_decay", "run_decay"):
            if getattr(self, name) is not None:
                check_number("Client", name, getattr(self, name), least=0)
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(f"Client: give either steps or epochs, got steps={self.steps}, epochs={self.epochs}")
        for name in ("epochs", "batch_size", "micro_batch", "patience"):
            if getattr(self, name) is not None:
                check_whole("Client", name, getattr(self, name))
        if self.steps is not None:
            _check_steps(self.steps, num_clients)
        check_choice("Client", "sampling", self.sampling, ("replacement", "epochs"))
        if self.sampling == "epochs" and np.ndim(np.asarray(self.steps, object)) == 2:
            raise ValueError("Client: sampling='epochs' needs runs of equal length, not steps per client and run")
        if self.sampling == "epochs" and self.steps is None:
            raise ValueError(
                "Client: sampling='epochs' continues epochs over runs of a given number of steps; epochs=... implies it"
            )
        check_choice("Client", "reset", self.reset, ("run", "epoch"))
        check_choice("Client", "charge", self.charge, ("planned", "executed"))
        if self.charge == "executed" and self.patience is None:
            raise ValueError("Client: charge='executed' is for runs that stop early: give patience")
        if self.epochs is None and (self.reset == "epoch" or self.patience is not None):
            raise ValueError("Client: reset='epoch' and patience count local epochs: give epochs, not steps")
        for name in ("step_schedule", "run_schedule", "rate_schedule"):
            schedule = getattr(self, name)
            if schedule is not None and not callable(schedule):
                raise TypeError(f"Client: {name} must be a function of a traced int32, got {schedule!r}")
        if (self.step_schedule or self.run_schedule or self.rate_schedule or self.run_decay is not None) and (
            "learning_rate" not in self.hyperparameters
        ):
            raise ValueError("a schedule or run_decay multiplies learning_rate, so that must be given as a number")

    def local_steps(self, counts: np.ndarray) -> np.ndarray:
        """int32 [], [N] or [N, R]: the local steps that a run makes, given the clients' numbers of samples."""
        if self.epochs is None:
            return np.asarray(self.steps, np.int32)
        steps = self.epochs * np.asarray(self.steps_per_epoch(counts), np.int64)
        if steps.max() > np.iinfo(np.int32).max:
            raise ValueError(f"Client: epochs={self.epochs} make {steps.max():,} local steps, too many to count")
        return steps.astype(np.int32)

    def steps_per_epoch(self, counts: Any) -> Any:
        """The mini-batches of an epoch of clients with these numbers of samples."""
        return counts * 0 + 1 if self.batch_size is None else -(-counts // self.batch_size)


class Moment(NamedTuple):
    """When a local step happens, for `Client(rate_schedule=...)`; all traced scalars."""

    step: Array  # int32: local step of the run, from 0
    epoch: Array  # int32: local epoch of the run, from 0
    run: Array  # int32: index of the run among the client's
    staleness: Array  # int32: τ of the run's update at the first server step that consumes it
    duration: Array  # float: simulated seconds that the run takes


def Client(
    optimizer: Callable[..., optax.GradientTransformation] = optax.sgd,
    *,
    steps: Any = None,
    epochs: int | None = None,
    batch_size: int | None = 32,
    proximal: Any = None,
    weight_decay: Any = None,
    run_decay: Any = None,
    step_schedule: Callable[[Array], Array] | None = None,
    run_schedule: Callable[[Array], Array] | None = None,
    rate_schedule: Callable[[Moment], Array] | None = None,
    sampling: str = "replacement",
    reset: str = "run",
    patience: int | None = None,
    charge: str = "planned",
    micro_batch: int | None = None,
    **hyperparameters: Any,
) -> LocalTraining:
    """Local training of every client.

    A local step is one step of the optimiser on g = ∇ mean loss of a mini-batch (+ weight_decay · x) (+ μ (x - x_s)),
    with the learning rate times step_schedule(local step) · run_schedule(run) · run_decay^run. The optimiser starts
    afresh in every run.

    Args:
        optimizer: an Optax optimiser's constructor, e.g. `optax.sgd` or `optax.adam`.
        steps: K, local steps of a run: one number, one per client, or an array [client, run], whose last column is
            taken for all later runs; or
        epochs: local epochs of a run, each a fresh shuffle whose last, partial batch is kept and averaged over its real
            samples.
        batch_size: B; `None` takes all the client's data in every step (the exact mean, accumulated over
            micro-batches).
        proximal: μ of FedProx (AsyncFedED, eq. (39)).
        weight_decay: w, added to the gradient as w · x, as in PyTorch's SGD; an optimiser that has a `weight_decay` of
            its own (`optax.adamw`) is given it instead.
        run_decay: factor of the learning rate from one run of a client to its next (AsyncFedED's 0.995).
        step_schedule: factor of the learning rate as a function of the local step (from 0, traced int32).
        run_schedule: the same of the run's index among the client's (from 0).
        rate_schedule: the same of a `Moment`: step, epoch, run, staleness and duration.
        sampling: with `steps`: `"replacement"` draws every sample uniformly; `"epochs"` goes on through shuffled epochs
            from run to run.
        reset: the optimiser starts afresh in every `"run"`, or in every local `"epoch"` (with `epochs`).
        patience: with `epochs`: a run stops after this many epochs without a smaller training loss, and hands in its
            last parameters. The loss of an epoch is the mean over its mini-batches, each before its step.
        charge: with `patience`: simulated time is charged for the `"planned"` epochs, or for those `"executed"` (on
            `synchronous` and `stale_rounds`, where rates by seconds see the planned ones, and on `free_running`, where
            a run is trained twice: when it starts, to know how long it takes, and when it arrives).
        micro_batch: samples per gradient evaluation; a batch larger than this is accumulated. Changes speed and memory
            only, but for a model that looks across the samples of a batch (batch normalisation) or draws random
            numbers (dropout): it does so within each micro-batch.
        **hyperparameters: of the optimiser (learning_rate, momentum, b1 ...); numbers can be swept.

    Raises:
        TypeError: the optimiser has no such hyper-parameter.
    """
    if not callable(optimizer) or isinstance(optimizer, tuple):
        raise TypeError(
            f"Client: optimizer must be an Optax constructor such as optax.sgd, not {optimizer!r}; "
            "give its options by name"
        )
    known = inspect.signature(optimizer).parameters
    if weight_decay is not None and "weight_decay" in known:
        hyperparameters["weight_decay"], weight_decay = weight_decay, None
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in known.values())
    unknown = [name for name in hyperparameters if name not in known and not takes_any]
    if unknown:
        name = getattr(optimizer, "__name__", repr(optimizer))
        raise TypeError(f"{name} has no option {', '.join(unknown)}; it has {', '.join(known)}")
    missing = [
        name
        for name, parameter in known.items()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        and name not in hyperparameters
    ]
    if missing:
        raise TypeError(f"the client's optimiser needs {', '.join(missing)}")
    numbers = {name: value for name, value in hyperparameters.items() if _is_number(value)}
    options = tuple((name, value) for name, value in hyperparameters.items() if not _is_number(value))
    if isinstance(steps, list | tuple | np.ndarray | jax.Array):
        steps = _as_tuples(_array_of_steps(steps).tolist())
    return LocalTraining(
        numbers, proximal, weight_decay, run_decay, optimizer, options, steps, epochs, batch_size, sampling,
        step_schedule, run_schedule, rate_schedule, reset, patience, charge, micro_batch,
    )  # fmt: skip


def _array_of_steps(steps: Any) -> np.ndarray:
    try:
        return np.asarray(steps)
    except ValueError as error:
        raise ValueError(
            f"Client: steps per client and run must have as many runs for every client, got {steps}"
        ) from error


def _as_tuples(values: Any) -> Any:
    return tuple(_as_tuples(value) for value in values) if isinstance(values, list) else values


def _check_steps(steps: Any, num_clients: int) -> None:
    """One whole number, one per client [N], or one per client and run [N, R]."""
    if not isinstance(steps, tuple):
        check_whole("Client", "steps", steps)
        return
    array = np.asarray(steps, object)
    if array.ndim > 2 or len(steps) != num_clients:
        raise ValueError(
            f"Client: steps must be one number, one per client ({num_clients},) or one per client and run, "
            f"got shape {array.shape}"
        )
    for value in array.ravel():
        check_whole("Client", "steps", value)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool | np.bool_ | str) or value is None or callable(value):
        return False
    return isinstance(value, float | int | np.generic | np.ndarray | jax.Array)
