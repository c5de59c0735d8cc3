"""Checks, before compilation, that the parts of a simulation fit together and into memory."""

from __future__ import annotations

import contextlib
import functools
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.client import Client, begin, check_sent, first_memory, first_shared, frozen_by, local_step, zero_outputs
from jaxafl.data.federated import FederatedData
from jaxafl.data.form import kind_of_sample
from jaxafl.data.stored import stored_targets
from jaxafl.device import Rows, as_arrays, check_memory, shapes_of
from jaxafl.device.key_leaves import check_draws, unpack
from jaxafl.device.keys import seed_key
from jaxafl.device.switches import check_switches
from jaxafl.device.user_code import described, refuse_host_draws
from jaxafl.engine.problem import BufferSizes, Problem, Program
from jaxafl.engine.recorded import check_observed, metrics_of
from jaxafl.engine.state import example_batch, initial
from jaxafl.models.model import Batch, Model, path_of, recorded_classes
from jaxafl.options import UserError, check_whole

EVAL_EVERY = 20
"""The default number of server steps between evaluations."""
_BATCH = 2


# by model, data, and True for float64: shapes of the model's state, and forms of local training that were traced
_traced: weakref.WeakKeyDictionary[Model, weakref.WeakKeyDictionary[FederatedData, dict[bool, tuple[Any, set[Any]]]]]
_traced = weakref.WeakKeyDictionary()


def check_model(model: Model, data: FederatedData, client: Client) -> None:
    """Raises `ValueError` for a model that `client` cannot train on the samples, or that would learn from padding."""
    check_switches()
    state, clients = _traced_once(model, data)
    form = jax.tree.structure(client), tuple(np.shape(leaf) for leaf in jax.tree.leaves(client))
    if form not in clients:
        _check_training(model, data, client)
        clients.add(form)
    if not model.sees_mask and jax.tree.leaves(state) and _pads(client, data.counts):
        raise ValueError(
            f"the network of {model.name} keeps state from batch to batch (batch statistics?) and takes no mask, so "
            "that it would count the padding of local epochs and full batches. Let its __call__ take `mask` (bool [B]) "
            "and leave padding out, as jaxafl.models.BatchNorm does, or train with steps=... and a batch_size"
        )


def check_construction(model: Model, data: FederatedData) -> None:
    """Traces a PyTorch module, so that one that cannot be compiled raises where the simulation is constructed."""
    if model.description.get("framework") == "torch":
        _traced_once(model, data)


def _traced_once(model: Model, data: FederatedData) -> tuple[Any, set[Any]]:
    """Returns the shapes of the model's state, and the forms of local training that have been traced."""
    known = _traced.setdefault(model, weakref.WeakKeyDictionary())
    wide, found = jnp.result_type(float) == jnp.float64, known.setdefault(data, {})
    if wide not in found:
        _check_sizes(model, data)
        found[wide] = (_state_of(model, data), set())
        metrics_of(model, data)
    return found[wide]


def check_observe(observe: Callable[[Any], Any], model: Model, data: FederatedData) -> None:
    """Raises `ValueError` or `TypeError` for a function of the parameters that does not return a dict of arrays."""
    if not callable(observe):
        raise TypeError(f"observe must be a function of the parameters returning a dict of arrays, got {observe!r}")
    with _explained(f"observe cannot be traced on the parameters of {model.name}"):
        params, _ = jax.eval_shape(lambda: model.init(jax.random.key(0), example_batch(data.form)))
        with refuse_host_draws(observe, "observe", "a fixed key"):
            seen = jax.eval_shape(observe, params)
    if not isinstance(seen, dict) or not all(hasattr(value, "shape") for value in seen.values()):
        raise TypeError(f"observe must return a dict of name -> array, it returned {described(seen)}")
    check_observed(seen)


def _check_training(model: Model, data: FederatedData, client: Client) -> None:
    """Traces a local step: its optimiser, its schedules."""

    def steps(arrays: Any, frozen: Any, client: Client, key: Any, count: Any) -> tuple[Any, Any]:
        params, state = model.init(jax.random.key(0), example_batch(data.form))
        none = jnp.int32(0)
        kept: Any = dict(memory=first_memory(client, params), shared=first_shared(client, params))
        lane = begin(client, params, state, key, none, none, **kept)
        fetch = functools.partial(data.fetch, arrays)
        return lane, local_step(client, model.bound(frozen), fetch, cast(int, client.micro_batch), count, lane)

    numbers, count = as_arrays(client.executed(_BATCH), jnp.result_type(float)), np.int32(1)
    name = f"Client({client.optimizer_name})"
    with _explained(
        f"Client: a local step with {client.optimizer_name} cannot be traced, so one of its options or a schedule is "
        "not what it should be (switches are True or False, schedules functions of traced numbers)"
    ):
        advice = "the key that it is given (an optimiser: a field `rng_key` of its state)"
        owner = f"the model {model.name} or its training with {client.optimizer_name}"
        with refuse_host_draws((model, client), owner, advice):
            lane, new = jax.eval_shape(steps, data.arrays, _frozen(model, data), numbers, seed_key(0), count)
        zero, same = frozen_by(client, lane.params)
    check_sent(numbers, lane)
    state = jax.eval_shape(unpack, lane.optimizer_state)
    check_draws(name, _update_of(numbers.of(0)), state, lane.params, state, lane.params)
    if all(jax.tree.leaves(zero)):
        raise UserError(f"{name} trains no parameter of {model.name}, all of its updates are zero")
    if any(jax.tree.leaves(same)):
        first = next(path_of(path) for path, one in jax.tree_util.tree_leaves_with_path(same) if one)
        raise UserError(
            f"{name} adds the gradient of {first!r} to it as it is, which goes uphill: optax.masked does so "
            "with what it leaves out. Freeze it by optax.transforms.freeze, by optax.partition with optax.set_to_zero, "
            "or by the model's frozen=, which also keeps one copy of it"
        )
    for part in ("params", "optimizer_state"):
        before, after = described(getattr(lane, part)), described(getattr(new, part))
        if before != after:
            raise ValueError(f"Client: a local step turns {part} {before} into {after}")


def _update_of(client: Client) -> Callable[..., Any]:
    """Returns the update of the client's optimiser; it computes nothing if it needs more than the gradient."""

    def update(*given: Any) -> Any:
        with contextlib.suppress(Exception):
            return client.make_optimizer().update(*given)

    return update


def _check_sizes(model: Model, data: FederatedData) -> None:
    outputs = model.description.get("num_classes")
    if isinstance(outputs, int) and outputs < (data.num_classes or 0):
        raise ValueError(
            f"the model {model.name} tells {outputs} classes apart, but {data.name} has {data.num_classes}: make it "
            f"with num_classes={data.num_classes}"
        )
    known, used = model.description.get("vocab_size"), data.description.get("vocabulary")
    if known is not None and used is not None and used > known:
        raise ValueError(
            f"the model {model.name} knows {known} tokens, but {data.name} was tokenised with a vocabulary of {used}: "
            "give both the same checkpoint"
        )


def _state_of(model: Model, data: FederatedData) -> Any:
    """Returns the shapes of the model's state, from tracing a step of training."""
    # as they are on a device: int64 is int32 there
    samples = kind_of_sample(jax.eval_shape(lambda: example_batch(data.form).x))

    def step(arrays: Any, frozen: Any, client: Any, positions: Any) -> Any:
        key = jax.random.key(0)
        params, state = model.init(key, example_batch(data.form))
        x, y = data.fetch(arrays, client, positions, jax.random.split(key, _BATCH))
        if kind_of_sample(x) != samples:
            raise ValueError(f"training samples are {kind_of_sample(x)}, test samples {samples}")

        def objective(params: Any) -> Any:
            found, new = model.bound(frozen)(params, state, Batch(x, y, jnp.ones(_BATCH, bool)), key, True)
            return jnp.sum(found.loss) / _BATCH, new

        with recorded_classes(y) as outputs:
            gradient, new = jax.grad(objective, has_aux=True)(params)
        most = int(
            max(np.max(labels, initial=-1) for labels in (data.y_test, stored_targets(data.gather, data.arrays)))
        )
        if outputs and min(outputs) <= most:
            binary = (
                ". Binary losses such as sigmoid_cross_entropy take the labels 0 and 1" if min(outputs) == 2 else ""
            )
            raise UserError(
                f"the model {model.name} tells {min(outputs)} classes apart, but labels of {data.name} go up to "
                f"{most}: give its last layer {data.num_classes} outputs, one per class, for softmax_cross_entropy (a "
                f"label outside them has a loss of NaN){binary}"
            )
        if described(new) != described(state):
            raise ValueError(f"training turns its state {described(state)} into {described(new)}")
        return gradient, state

    integer = jax.ShapeDtypeStruct((), jnp.int32)
    positions = jax.ShapeDtypeStruct((_BATCH,), jnp.int32)
    with _explained(f"the model {model.name} cannot be made for the samples of {data.name}, {samples}"):
        trace: Any = jax.make_jaxpr(step, return_shape=True)
        traced, (gradient, state) = trace(data.arrays, _frozen(model, data), integer, positions)
    zero = zero_outputs(traced.jaxpr)[: len(jax.tree.leaves(gradient))]
    if zero and all(zero):
        warnings.warn(
            f"the loss of {model.name} has no gradient in any parameter, so that no data changes them. Is it made of "
            "integers or comparisons (argmax, ==, round), or of jax.lax.stop_gradient? Such a value is a metric: "
            'return jaxafl.models.Outputs(loss, {"error": ...}) with a loss that can be differentiated',
            stacklevel=2,
        )
    return state


def _frozen(model: Model, data: FederatedData) -> Any:
    """Returns the frozen arrays, or their shapes."""
    return model.held(jax.eval_shape(lambda: example_batch(data.form)))


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turns an error of tracing into a `ValueError` that names the traced part."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise ValueError(f"{what}: {error}{_of_two_precisions(error)}") from error


def _of_two_precisions(error: Exception) -> str:
    if not (jnp.result_type(float) == jnp.float64 and "float32" in str(error) and "float64" in str(error)):
        return ""
    return (
        ". Under jax_enable_x64 parameters and samples are float64: give the layers that make arrays of their own, "
        "such as nn.LSTMCell(features, param_dtype=jnp.float64), float64 as their dtype, or do without jax_enable_x64"
    )


def _pads(client: Client, counts: np.ndarray) -> bool:
    """Returns True if some mini-batches are padded."""
    if client.batch_size is None:
        return True
    sizes = np.asarray(client.batch_size)
    piece = client.micro_batch or sizes.max()
    partial = (client.epochs is not None or client.sampling == "epochs") and bool(np.any(counts % sizes))
    return partial or bool(np.any((sizes < piece) & (sizes < sizes.max()) | (sizes > piece) & (sizes % piece > 0)))


def check_lanes(lanes: Any, shares: int) -> int:
    """Returns the checked number of lanes, a multiple of the devices that share them."""
    if check_whole("run", "lanes", lanes) % shares:
        raise UserError(f"run: lanes={lanes} cannot be shared by {shares} devices; give a multiple of {shares}")
    return int(lanes)


def evaluation_interval(eval_every: Any, server_steps: Any) -> int:
    """Returns the server steps between evaluations, `EVAL_EVERY` by default; checks both numbers."""
    every = EVAL_EVERY if eval_every is None else check_whole("run", "eval_every", eval_every)
    return min(every, check_whole("run", "server_steps", server_steps))


def chunk_of(lanes: int, chunk: int | None, room: Callable[[], int], why: str = "") -> int:
    """Returns the checked number of lanes that advance together.

    Args:
        lanes: of one device.
        chunk: as given.
        room: the most that memory holds, which bounds a number chosen here.
        why: the reason for this number of lanes, if it is another than the given one, for the message.
    """
    if chunk is None:
        if jax.default_backend() == "cpu":
            return 1
        most = max(1, room())
        return next(lanes // parts for parts in range(1, lanes + 1) if lanes % parts == 0 and lanes // parts <= most)
    check_whole("run", "chunk", chunk)
    if lanes % chunk:
        raise UserError(f"run: chunk must be a divisor of lanes={lanes}, got {chunk}{why}")
    return int(chunk)


def check_fit(problem: Problem, program: Program, sizes: BufferSizes, members: int) -> None:
    """Raises `MemoryError` if `members` runs of a program do not fit on each device."""
    layout = program.layout
    static = (program.unsharded.without_loops, sizes)
    state = shapes_of(initial, static, (problem.hyperparameters, problem.device, problem.key))
    state = jax.tree.map(lambda part: _of_one(part, layout.shares), state, is_leaf=lambda part: isinstance(part, Rows))
    arrays = problem.device.arrays
    if layout.divided:
        arrays = jax.eval_shape(lambda tree: jax.tree.map(lambda leaf: leaf[0], tree), arrays)
    names = {
        "ring": f"ring of {sizes.ring} versions",
        "store": f"store of {sizes.store} updates",
        "lanes": f"{sizes.lanes} lanes",
        "server": "server state (with its rows per client)",
        "clients": "the clients' own models",
        "memory": "what clients keep from run to run",
        "delivered": "what attackers know",
        "average": "the average of all versions",
    }
    parts = {names.get(field, field): [part] * members for field, part in state._asdict().items()}
    parts |= {"training data": arrays, "the model's frozen arrays": problem.device.frozen}
    check_memory(parts, devices=1 if layout.mesh is None else layout.mesh.size)


def _of_one(part: Any, shares: int) -> Any:
    """Returns the shapes of one device's shard of a per-client table."""
    if not isinstance(part, Rows):
        return part
    size = -(-part.count // shares)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype), part.tree)
