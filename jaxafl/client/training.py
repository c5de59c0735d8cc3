"""Local steps of a client between a download and an upload."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxafl.client import batches
from jaxafl.client.correction.contract import LocalRun, Tree
from jaxafl.client.memory import shared_of
from jaxafl.client.optimizer import objective_arguments, optimizer_step, takes_examples
from jaxafl.client.options import Client, Moment, Timing
from jaxafl.device.keys import Key, jax_key, pack, per_client, renewed, threefry, unpack
from jaxafl.models.frozen import filled
from jaxafl.models.model import Apply, Array, Batch
from jaxafl.options import UserError
from jaxafl.options.user_code import like_given, traced_method

_MODEL_STREAM = 0xFFFFFFFE
_DATA_STREAM = 0xFFFFFFFD
_OPTIMIZER_STREAM = 0xFFFFFFFB


class Stopping(NamedTuple):
    """State of early stopping on the training loss of a run."""

    best: Array  # smallest loss of an epoch so far
    waited: Array  # int32, epochs since `best`
    epoch_loss: Array  # mini-batch losses before each step, summed over this epoch
    stopped: Array  # bool, True after the last step


class Lane(NamedTuple):
    """State of a run in training."""

    params: Tree
    model_state: Tree
    optimizer_state: Tree
    anchor: Tree  # x_s for the proximal term or a correction, else None
    key: Key
    shuffle_key: Key  # key of the run, or of the client if epochs continue from run to run
    client: Array
    run: Array
    step: Array  # int32, executed local steps
    loss: Array  # mini-batch losses before each step, summed over local steps
    timing: Timing | None  # None without a `rate_schedule`, which alone reads it
    stopping: Stopping | None
    memory: Any = None  # `Memory`, the client's row at the start of the run, if clients keep one
    shared: Tree = None  # for a correction, of the version that the run began with
    rate_sum: Any = None  # float, for a correction, the learning rates of all local steps so far


def local_run(client: Client, lane: Lane) -> LocalRun:
    """Returns the run as a correction sees it."""
    return LocalRun(shared_of(client, lane.anchor), lane.client, lane.run, lane.step, lane.rate_sum)


def begin(
    client: Client,
    params: Tree,
    model_state: Tree,
    batch_key: Key,
    who: Array,
    run: Array,
    timing: Timing = Timing(),  # noqa: B008 (immutable)
    memory: Any = None,
    shared: Tree = None,
) -> Lane:
    """Returns the state of a run before its first local step from `params`.

    Args:
        client: local training.
        params, model_state: start model of the run.
        batch_key: key of all mini-batches.
        who, run: client, and index of the run among the client's runs.
        timing: place of the run in the schedule.
        memory: row of the client, if clients keep one.
        shared: of the start model, for a correction.
    """
    if client.personal is not None:
        params = filled(memory.personal, params)
    if client.reset == "never":
        state, memory = unpack(memory.optimizer), memory._replace(optimizer=())  # no second copy
    else:
        state = client.of(who).make_optimizer().init(params)
    key, step, zero = threefry(batch_key, who, run), jnp.int32(0), jnp.zeros((), jnp.result_type(float))
    kinds = map(jnp.result_type, map(type, Timing()))  # int32 and float
    return Lane(
        params=params,
        model_state=model_state,
        optimizer_state=pack(renewed(state, threefry(key, step, _OPTIMIZER_STREAM))),
        anchor=None if client.proximal is None and client.correction is None else params,
        key=key,
        shuffle_key=key if client.epochs is not None else per_client(batch_key, who),
        client=who,
        run=run,
        step=step,
        loss=zero,
        timing=None if client.rate_schedule is None else Timing(*map(jnp.asarray, timing, kinds)),
        stopping=None if client.patience is None else Stopping(zero + jnp.inf, jnp.int32(0), zero, jnp.bool_(False)),
        memory=memory,
        shared=shared,
        rate_sum=None if client.correction is None else zero,
    )


def local_step(
    client: Client, apply: Apply, fetch: Callable[..., Any], micro_batch: int, count: Array, lane: Lane
) -> Lane:
    """Executes one local step of one run.

    Args:
        client: options of local training.
        apply: function of the trained model, see `Model.bound`.
        fetch: (client, positions [B], keys [B]) -> (x [B, ...], y [B]), the samples of the client.
        micro_batch: samples per gradient evaluation.
        count: int32, sample count n_i of the client.
        lane: state of the run.
    """
    client = client.of(lane.client)
    size, private = client.size_of_batch(count), takes_examples(unpack(lane.optimizer_state))

    def batch_of(first: Array | int, width: int) -> tuple[Batch, Array, Array]:
        """Draws samples `first` .. `first + width - 1` of the mini-batch; also how many it has, and a key."""
        ranks = first + jnp.arange(width, dtype=jnp.int32)
        where, mask, real = batches.positions(client, count, size, lane, ranks)
        data_keys = jax_key(threefry(threefry(lane.key, lane.step, _DATA_STREAM), ranks, 0))
        model_key = jax_key(threefry(threefry(lane.key, lane.step, _MODEL_STREAM), first, 0))
        x, y = fetch(lane.client, where, data_keys)
        return Batch(x, y if client.attack is None else client.attack.labels(y), mask), real, model_key

    def mean_loss(params: Tree, model_state: Tree, first: Array | int, width: int) -> tuple[Array, Tree]:
        batch, real, model_key = batch_of(first, width)
        outputs, new_state = apply(params, model_state, batch, model_key, True)
        return jnp.sum(jnp.where(batch.mask, outputs.loss, 0)) / real, new_state

    gradient_of = jax.value_and_grad(mean_loss, has_aux=True)

    def total(params: Tree) -> tuple[tuple[Array, Tree], Tree]:
        """Computes loss, next model state, and gradient of the complete mini-batch, or of its samples."""
        if private:
            batch, real, model_key = batch_of(0, client.width)
            loss, gradients = gradients_of_examples(apply, params, lane.model_state, batch, model_key)
            return (loss / real, lane.model_state), gradients
        if 0 < client.width <= micro_batch:
            return gradient_of(params, lane.model_state, jnp.int32(0), client.width)

        def accumulate(index: Array, carry: tuple[tuple[Array, Tree], Tree]) -> tuple[tuple[Array, Tree], Tree]:
            (loss, model_state), gradient = carry
            (more, model_state), term = gradient_of(params, model_state, index * micro_batch, micro_batch)
            return (loss + more, model_state), jax.tree.map(jnp.add, gradient, term)

        zero = (jnp.zeros_like(lane.loss), lane.model_state), optax.tree.zeros_like(params)
        return jax.lax.fori_loop(0, -(-size // micro_batch), accumulate, zero)

    def value_and_gradient(params: Tree) -> tuple[Array, Tree]:
        (loss, _), gradient = total(params)
        return _penalised(client, lane, params, loss, gradient)

    (loss, model_state), gradient = total(lane.params)
    objective = loss
    if client.weight_decay is not None or client.proximal is not None:
        objective, gradient = _penalised(client, lane, lane.params, loss, gradient)
    if client.correction is not None:
        gradient = _corrected(client, lane, gradient, value_and_gradient)
    per_epoch = client.steps_per_epoch(count)
    factor = _rate_factor(client, lane, per_epoch)
    optimizer = client.make_optimizer(factor)
    counted = lane.step % per_epoch if client.reset == "epoch" else lane.step  # by a schedule of Optax
    before = lane.optimizer_state
    if client.reset == "epoch":
        first = renewed(optimizer.init(lane.params), threefry(lane.key, lane.step, _OPTIMIZER_STREAM))
        before = optax.tree.where(counted == 0, pack(first), before)
    extra = {}
    if client.correction is None and not private:  # a correction changes the gradient, and not the objective
        extra = objective_arguments(value_and_gradient, objective, gradient)
    name = f"Client({client.optimizer_name})"
    updates, after = optimizer_step(name, optimizer, gradient, unpack(before), lane.params, extra)
    return lane._replace(
        params=optax.apply_updates(lane.params, updates),
        model_state=model_state,
        optimizer_state=pack(after),
        step=lane.step + 1,
        loss=lane.loss + loss,
        stopping=None if lane.stopping is None else _stopping(client, lane.stopping, lane.step, loss, per_epoch),
        rate_sum=None if lane.rate_sum is None else lane.rate_sum + client.rate_at(counted, factor),
    )


def gradients_of_examples(
    apply: Apply, params: Tree, model_state: Tree, batch: Batch, key: Array
) -> tuple[Array, Tree]:
    """Computes the sum of the losses, and the gradient of each sample's loss, each leaf [B, ...]; 0 for padding.

    Args:
        apply: function of the trained model.
        params: where.
        model_state: its non-trainable state, which must be empty.
        batch: the samples.
        key: of the model, e.g. for dropout; each sample gets a key of its own.
    """

    def objective(params: Tree, x: Tree, y: Array, mask: Array, key: Array) -> Array:
        x, y, mask = jax.tree.map(lambda leaf: leaf[None], (x, y, mask))
        outputs, _ = apply(params, model_state, Batch(x, y, mask), key, True)
        return jnp.sum(jnp.where(mask, outputs.loss, 0))

    each = jax.vmap(jax.value_and_grad(objective), (None, 0, 0, 0, 0))
    losses, gradients = each(params, batch.x, batch.y, batch.mask, jax.random.split(key, len(batch.mask)))
    return jnp.sum(losses), gradients


def _penalised(client: Client, lane: Lane, params: Tree, loss: Array, gradient: Tree) -> tuple[Array, Tree]:
    """Adds weight decay and the proximal term."""
    if client.weight_decay is not None:
        loss = loss + client.weight_decay / 2 * optax.tree.norm(params, squared=True)
        gradient = jax.tree.map(lambda g, x: g + client.weight_decay * x, gradient, params)
    if client.proximal is not None:
        moved = optax.tree.sub(params, lane.anchor)
        loss = loss + client.proximal / 2 * optax.tree.norm(moved, squared=True)
        gradient = jax.tree.map(lambda g, x, s: g + client.proximal * (x - s), gradient, params, lane.anchor)
    return loss, gradient


def _corrected(client: Client, lane: Lane, gradient: Tree, value_and_gradient: Callable[..., Any]) -> Tree:
    """Returns the gradient of the penalised loss after the client's correction."""

    def gradient_at(point: Tree) -> Tree:
        return shared_of(client, value_and_gradient(filled(point, lane.params))[1])

    correction: Any = client.correction
    run = local_run(client, lane)._replace(gradient_at=gradient_at)
    parts = shared_of(client, gradient), shared_of(client, lane.params), lane.memory.correction, lane.shared
    corrected = correction.gradient(*parts, run)
    return filled(like_given(f"the correction {correction.name}", "gradient", corrected, parts[0]), gradient)


def _stopping(client: Any, before: Stopping, step: Array, loss: Array, per_epoch: Array) -> Stopping:
    """Returns the state of early stopping after a local step with this mini-batch loss."""
    best, waited, epoch_loss, stopped = before
    epoch_loss = epoch_loss + loss
    ends = (step + 1) % per_epoch == 0
    better = epoch_loss < best
    waited = jnp.where(ends, jnp.where(better, 0, waited + 1), waited)
    return Stopping(
        jnp.where(ends & better, epoch_loss, best),
        waited,
        jnp.where(ends, 0, epoch_loss),
        stopped | (ends & (waited >= client.patience)),
    )


def _rate_factor(client: Client, lane: Lane, per_epoch: Array) -> Any:
    """Computes the factor of the learning rate in a local step; `per_epoch`: int32, local steps of an epoch."""
    factor: Any = 1.0
    if client.rate_schedule is not None and lane.timing is not None:
        moment = Moment(lane.step, lane.step // per_epoch, lane.run, client=lane.client, **lane.timing._asdict())
        with traced_method("Client", "rate_schedule", "the fields of its Moment"):
            factor = client.rate_schedule(moment)
    for schedule, when in ((client.step_schedule, lane.step), (client.run_schedule, lane.run)):
        if schedule is not None:
            factor = factor * schedule(when)
    if client.rate_decay_per_run is not None:
        factor = factor * client.rate_decay_per_run ** lane.run.astype(jnp.result_type(float))
    if jnp.shape(factor) != ():
        raise UserError(f"Client: a schedule must return one number, got an array of shape {jnp.shape(factor)}")
    return factor
