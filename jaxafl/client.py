"""Local training: what a client does between a download and an upload."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxafl import sampling
from jaxafl.checks import check_choice, check_number, check_whole
from jaxafl.keys import Key, jax_key, per_client, threefry
from jaxafl.models.model import Apply, Batch
from jaxafl.pytrees import pytree, static

Array = jax.Array
Tree = Any
_MODEL_STREAM, _DATA_STREAM = 0xFFFFFFFE, 0xFFFFFFFD


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
        batches = np.ones_like(counts) if self.batch_size is None else -(-counts // self.batch_size)
        return np.asarray(self.epochs * batches, np.int32)


class Moment(NamedTuple):
    """When a local step happens, for `Client(rate_schedule=...)`; all traced scalars."""

    step: Array  # int32: local step of the run, from 0
    epoch: Array  # int32: local epoch of the run, from 0
    run: Array  # int32: index of the run among the client's
    staleness: Array  # int32: τ of the run's update at the first server step that consumes it
    duration: Array  # float: simulated seconds that the run takes


class Stopping(NamedTuple):
    """Early stopping on the training loss of a run."""

    best: Array  # the smallest loss of an epoch so far
    waited: Array  # int32: epochs since
    epoch_loss: Array  # sum over this epoch's mini-batches of their losses before the step
    stopped: Array  # bool


class Lane(NamedTuple):
    """A run being trained."""

    params: Tree
    model_state: Tree
    optimizer_state: Tree
    anchor: Tree  # x_s where the proximal term needs it, else None
    key: Key
    shuffle_key: Key  # of the run, or of the client where epochs go on from run to run
    client: Array
    run: Array
    step: Array  # local steps made
    loss: Array  # sum over local steps of the mini-batch loss before the step
    staleness: Array
    duration: Array
    stopping: Stopping | None


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
        steps: K, local steps of a run: one number, one per client, or an array [client, run]; or
        epochs: local epochs of a run, each a fresh shuffle whose last, partial batch is kept and averaged over its real
            samples.
        batch_size: B; `None` takes all the client's data in every step (the exact mean, accumulated over
            micro-batches).
        proximal: μ of FedProx (AsyncFedED, eq. (39)).
        weight_decay: added to the gradient, as in PyTorch's SGD.
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
    if isinstance(steps, list | tuple | np.ndarray):
        steps = _as_tuples(np.asarray(steps).tolist())
    return LocalTraining(
        numbers, proximal, weight_decay, run_decay, optimizer, options, steps, epochs, batch_size, sampling,
        step_schedule, run_schedule, rate_schedule, reset, patience, charge, micro_batch,
    )  # fmt: skip


def begin(
    client: LocalTraining,
    params: Tree,
    model_state: Tree,
    batch_key: Key,
    who: Array,
    run: Array,
    staleness: Array,
    duration: Array,
) -> Lane:
    """A run that is about to make its first local step from `params`."""
    key = threefry(batch_key, who, run)
    zero = jnp.zeros((), jnp.result_type(float))
    return Lane(
        params=params,
        model_state=model_state,
        optimizer_state=_transformation(client, 1.0).init(params),
        anchor=None if client.proximal is None else params,
        key=key,
        shuffle_key=key if client.epochs is not None else per_client(batch_key, who),
        client=who,
        run=run,
        step=jnp.int32(0),
        loss=zero,
        staleness=staleness,
        duration=duration.astype(zero.dtype),
        stopping=None if client.patience is None else Stopping(zero + jnp.inf, jnp.int32(0), zero, jnp.bool_(False)),
    )


def local_step(
    client: LocalTraining, apply: Apply, fetch: Callable[..., Any], micro_batch: int, count: Array, lane: Lane
) -> Lane:
    """One local step of one run.

    Args:
        client: the options.
        apply: what is trained, see `Model.bound`.
        fetch: (client, positions [B], keys [B]) -> (x [B, ...], y [B]) of that client's samples.
        micro_batch: samples per gradient evaluation.
        count: int32, n_i, the client's number of samples.
        lane: the run.
    """
    size = count if client.batch_size is None else jnp.int32(client.batch_size)
    positions, total = _positions(client, count, size, lane)

    def gradient_sum(first: Array, params: Tree, model_state: Tree, width: int) -> tuple[Array, Tree, Tree]:
        ranks = first + jnp.arange(width, dtype=jnp.int32)
        where, mask = positions(ranks)
        data_keys = jax_key(threefry(threefry(lane.key, lane.step, _DATA_STREAM), ranks, 0))
        model_key = jax_key(threefry(threefry(lane.key, lane.step, _MODEL_STREAM), first, 0))
        x, y = fetch(lane.client, where, data_keys)

        def objective(params: Tree) -> tuple[Array, Tree]:
            outputs, new_state = apply(params, model_state, Batch(x, y, mask), model_key, True)
            return jnp.sum(jnp.where(mask, outputs.loss, 0)) / total, new_state

        (loss, new_state), gradient = jax.value_and_grad(objective, has_aux=True)(params)
        return loss, gradient, new_state

    if client.batch_size is not None and client.batch_size <= micro_batch:
        loss, gradient, model_state = gradient_sum(jnp.int32(0), lane.params, lane.model_state, client.batch_size)
    else:

        def accumulate(index: Array, carry: tuple[Array, Tree, Tree]) -> tuple[Array, Tree, Tree]:
            loss, gradient, model_state = carry
            more, term, model_state = gradient_sum(index * micro_batch, lane.params, model_state, micro_batch)
            return loss + more, jax.tree.map(jnp.add, gradient, term), model_state

        zero = (jnp.zeros_like(lane.loss), jax.tree.map(jnp.zeros_like, lane.params), lane.model_state)
        loss, gradient, model_state = jax.lax.fori_loop(0, -(-size // micro_batch), accumulate, zero)
    if client.weight_decay is not None:
        gradient = jax.tree.map(lambda g, x: g + client.weight_decay * x, gradient, lane.params)
    if client.proximal is not None:
        gradient = jax.tree.map(lambda g, x, s: g + client.proximal * (x - s), gradient, lane.params, lane.anchor)
    batches = jnp.int32(1) if client.batch_size is None else -(-count // client.batch_size)
    optimizer = _transformation(client, _rate_factor(client, lane, batches))
    optimizer_state = lane.optimizer_state
    if client.reset == "epoch":
        fresh = optimizer.init(lane.params)
        begins = lane.step % batches == 0
        optimizer_state = jax.tree.map(lambda new, old: jnp.where(begins, new, old), fresh, optimizer_state)
    updates, optimizer_state = optimizer.update(gradient, optimizer_state, lane.params)
    return lane._replace(
        params=optax.apply_updates(lane.params, updates),
        model_state=model_state,
        optimizer_state=optimizer_state,
        step=lane.step + 1,
        loss=lane.loss + loss,
        stopping=_stopping(client, lane, loss, batches),
    )


def _positions(
    client: LocalTraining, count: Array, size: Array, lane: Lane
) -> tuple[Callable[[Array], tuple[Array, Array]], Array]:
    """(rank in the mini-batch -> sample position and whether the rank is real), and how many ranks are real."""
    if client.batch_size is None:
        return lambda ranks: (jnp.minimum(ranks, count - 1), ranks < count), count
    if client.epochs is None and client.sampling == "replacement":

        def drawn(ranks: Array) -> tuple[Array, Array]:
            words, _ = threefry(lane.key, lane.step, ranks)
            return sampling.below(words, count), ranks < size

        return drawn, size
    step = lane.step
    if client.epochs is None:  # epochs go on where the client's last run stopped
        per_run = jnp.asarray(client.steps, jnp.int32)  # not per run: `check` refuses that
        step = step + lane.run * (per_run[lane.client] if per_run.ndim else per_run)
    batches = -(-count // size)
    first = step % batches * size

    def ranked(ranks: Array) -> tuple[Array, Array]:
        inside = (ranks < size) & (first + ranks < count)
        return sampling.shuffled(lane.shuffle_key, step // batches, jnp.where(inside, first + ranks, 0), count), inside

    return ranked, jnp.minimum(size, count - first)


def _stopping(client: LocalTraining, lane: Lane, loss: Array, batches: Array) -> Stopping | None:
    """Early stopping after a local step with this mini-batch loss."""
    if lane.stopping is None or client.patience is None:
        return None
    best, waited, epoch_loss, stopped = lane.stopping
    epoch_loss = epoch_loss + loss
    ends = (lane.step + 1) % batches == 0
    better = epoch_loss < best
    waited = jnp.where(ends, jnp.where(better, 0, waited + 1), waited)
    return Stopping(
        jnp.where(ends & better, epoch_loss, best),
        waited,
        jnp.where(ends, 0, epoch_loss),
        stopped | (ends & (waited >= client.patience)),
    )


def _rate_factor(client: LocalTraining, lane: Lane, batches: Array) -> Any:
    factor: Any = 1.0
    if client.rate_schedule is not None:
        moment = Moment(lane.step, lane.step // batches, lane.run, lane.staleness, lane.duration)
        factor = factor * client.rate_schedule(moment)
    if client.step_schedule is not None:
        factor = factor * client.step_schedule(lane.step)
    if client.run_schedule is not None:
        factor = factor * client.run_schedule(lane.run)
    if client.run_decay is not None:
        factor = factor * client.run_decay ** lane.run.astype(jnp.result_type(float))
    return factor


def _transformation(client: LocalTraining, rate_factor: Any) -> optax.GradientTransformation:
    numbers = dict(client.hyperparameters)
    if "learning_rate" in numbers:
        numbers["learning_rate"] = numbers["learning_rate"] * rate_factor
    return client.optimizer(**numbers, **dict(client.options))


def _as_tuples(values: Any) -> Any:
    return tuple(_as_tuples(value) for value in values) if isinstance(values, list) else values


def _check_steps(steps: Any, num_clients: int) -> None:
    """One whole number, one per client [N], or one per client and run [N, R]."""
    if not isinstance(steps, tuple):
        return check_whole("Client", "steps", steps)
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
