"""The steps that a client makes between a download and an upload."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxafl.client import batches
from jaxafl.client.options import Client, Moment
from jaxafl.client.stepping import of_objective, optimizer_step
from jaxafl.device.key_leaves import pack, renewed, unpack
from jaxafl.device.keys import Key, jax_key, per_client, threefry
from jaxafl.models.model import Apply, Array, Batch

Tree = Any
_MODEL_STREAM, _DATA_STREAM, _OPTIMIZER_STREAM = 0xFFFFFFFE, 0xFFFFFFFD, 0xFFFFFFFB


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


class Draw(NamedTuple):
    """What a local step draws."""

    positions: Array  # int32 [B], which of its samples the client takes
    mask: Array  # bool [B], False for padding
    total: Array  # int32, samples of the whole mini-batch, padding not counted
    data_keys: Array  # [B], of augmentation
    model_key: Array  # of dropout and the like


def begin(
    client: Client,
    params: Tree,
    model_state: Tree,
    batch_key: Key,
    who: Array,
    run: Array,
    staleness: Array,
    duration: Array,
) -> Lane:
    """A run that is about to make its first local step from `params`.

    Args:
        client: local training.
        params, model_state: the model that the run begins with.
        batch_key: key of all mini-batches.
        who, run: whose run, and which of its runs.
        staleness: of the update at the server step that takes it.
        duration: seconds that the run takes.
    """
    key = threefry(batch_key, who, run)
    zero = jnp.zeros((), jnp.result_type(float))
    lane = Lane(
        params=params,
        model_state=model_state,
        optimizer_state=None,
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
    return lane._replace(optimizer_state=_optimizer_state(client.make_optimizer(), params, lane))


def _optimizer_state(optimizer: optax.GradientTransformation, params: Tree, lane: Lane) -> Tree:
    """The state of an optimiser that starts at this step of a run, with keys of it."""
    return pack(renewed(optimizer.init(params), threefry(lane.key, lane.step, _OPTIMIZER_STREAM)))


def draw(client: Client, count: Array, lane: Lane, first: Array | int, width: int) -> Draw:
    """What the next local step of a run draws for `width` samples of its mini-batch, from the one numbered `first` on.

    Args:
        client: the options.
        count: int32, n_i, the client's number of samples.
        lane: the run.
        first, width: which samples; all of them, where a gradient takes the whole mini-batch.
    """
    size = count if client.batch_size is None else jnp.int32(client.batch_size)
    positions, total = batches.positions(client, count, size, lane)
    ranks = first + jnp.arange(width, dtype=jnp.int32)
    where, mask = positions(ranks)
    data_keys = jax_key(threefry(threefry(lane.key, lane.step, _DATA_STREAM), ranks, 0))
    model_key = jax_key(threefry(threefry(lane.key, lane.step, _MODEL_STREAM), first, 0))
    return Draw(where, mask, total, data_keys, model_key)


def local_step(
    client: Client,
    apply: Apply,
    fetch: Callable[..., Any],
    micro_batch: int,
    count: Array,
    lane: Lane,
    drawn: Draw | None = None,
) -> Lane:
    """One local step of one run.

    Args:
        client: the options.
        apply: what is trained, see `Model.bound`.
        fetch: (client, positions [B], keys [B]) -> (x [B, ...], y [B]) of that client's samples.
        micro_batch: samples per gradient evaluation.
        count: int32, n_i, the client's number of samples.
        lane: the run.
        drawn: what it draws for the whole mini-batch, where that is known.
    """

    def gradient_sum(first: Array, params: Tree, model_state: Tree, width: int) -> tuple[Array, Tree, Tree]:
        where, mask, total, data_keys, model_key = drawn or draw(client, count, lane, first, width)
        x, y = fetch(lane.client, where, data_keys)

        def objective(params: Tree) -> tuple[Array, Tree]:
            outputs, new_state = apply(params, model_state, Batch(x, y, mask), model_key, True)
            return jnp.sum(jnp.where(mask, outputs.loss, 0)) / total, new_state

        (loss, new_state), gradient = jax.value_and_grad(objective, has_aux=True)(params)
        return loss, gradient, new_state

    def total(params: Tree) -> tuple[Array, Tree, Tree]:
        """Loss and gradient of the whole mini-batch, and the next model state."""
        if client.batch_size is not None and client.batch_size <= micro_batch:
            return gradient_sum(jnp.int32(0), params, lane.model_state, client.batch_size)

        def accumulate(index: Array, carry: tuple[Array, Tree, Tree]) -> tuple[Array, Tree, Tree]:
            loss, gradient, model_state = carry
            more, term, model_state = gradient_sum(index * micro_batch, params, model_state, micro_batch)
            return loss + more, jax.tree.map(jnp.add, gradient, term), model_state

        size = count if client.batch_size is None else jnp.int32(client.batch_size)
        zero = (jnp.zeros_like(lane.loss), jax.tree.map(jnp.zeros_like, params), lane.model_state)
        return jax.lax.fori_loop(0, -(-size // micro_batch), accumulate, zero)

    def regularised(gradient: Tree, params: Tree) -> Tree:
        if client.weight_decay is not None:
            gradient = jax.tree.map(lambda g, x: g + client.weight_decay * x, gradient, params)
        if client.proximal is not None:
            gradient = jax.tree.map(lambda g, x, s: g + client.proximal * (x - s), gradient, params, lane.anchor)
        return gradient

    def objective_of(loss: Array, params: Tree) -> Array:
        if client.weight_decay is not None:
            loss = loss + client.weight_decay / 2 * optax.tree.norm(params, squared=True)
        if client.proximal is not None:
            moved = jax.tree.map(jnp.subtract, params, lane.anchor)
            loss = loss + client.proximal / 2 * optax.tree.norm(moved, squared=True)
        return loss

    def value_and_gradient(params: Tree) -> tuple[Array, Tree]:
        loss, gradient, _ = total(params)
        return objective_of(loss, params), regularised(gradient, params)

    loss, gradient, model_state = total(lane.params)
    gradient = regularised(gradient, lane.params)
    per_epoch = client.steps_per_epoch(count)
    optimizer = client.make_optimizer(_rate_factor(client, lane, per_epoch))
    optimizer_state = lane.optimizer_state
    if client.reset == "epoch":
        begins = lane.step % per_epoch == 0
        optimizer_state = optax.tree.where(begins, _optimizer_state(optimizer, lane.params, lane), optimizer_state)

    def extra() -> dict[str, Any]:
        return of_objective(value_and_gradient, objective_of(loss, lane.params), gradient)

    name, before = f"Client({client.optimizer_name})", unpack(optimizer_state)
    updates, after = optimizer_step(name, optimizer, gradient, before, lane.params, extra)
    return lane._replace(
        params=optax.apply_updates(lane.params, updates),
        model_state=model_state,
        optimizer_state=pack(after),
        step=lane.step + 1,
        loss=lane.loss + loss,
        stopping=_stopping(client, lane, loss, per_epoch),
    )


def _stopping(client: Client, lane: Lane, loss: Array, per_epoch: Array) -> Stopping | None:
    """Early stopping after a local step with this mini-batch loss."""
    if lane.stopping is None or client.patience is None:
        return None
    best, waited, epoch_loss, stopped = lane.stopping
    epoch_loss = epoch_loss + loss
    ends = (lane.step + 1) % per_epoch == 0
    better = epoch_loss < best
    waited = jnp.where(ends, jnp.where(better, 0, waited + 1), waited)
    return Stopping(
        jnp.where(ends & better, epoch_loss, best),
        waited,
        jnp.where(ends, 0, epoch_loss),
        stopped | (ends & (waited >= client.patience)),
    )


def _rate_factor(client: Client, lane: Lane, per_epoch: Array) -> Any:
    factor: Any = 1.0
    moment = Moment(lane.step, lane.step // per_epoch, lane.run, lane.staleness, lane.duration)
    schedules: Any = (client.rate_schedule, client.step_schedule, client.run_schedule)
    for schedule, when in zip(schedules, (moment, lane.step, lane.run), strict=True):
        if schedule is not None:
            factor = factor * schedule(when)
    if client.run_decay is not None:
        factor = factor * client.run_decay ** lane.run.astype(jnp.result_type(float))
    if jnp.shape(factor) != ():
        raise ValueError(f"a schedule must return one number, got an array of shape {jnp.shape(factor)}")
    return factor
