"""Evaluation of models and gradients on held-out samples: test sets, the validation set, those of single clients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxafl.client import Client, filled, shared_of
from jaxafl.data.form import DataForm
from jaxafl.data.held_out import gather_held_out
from jaxafl.device import available_bytes, buffers, equations, on_cpu, operations, result_bytes
from jaxafl.device.keys import drawing_key, jax_key
from jaxafl.engine.problem import DeviceData, Program
from jaxafl.engine.state import Version
from jaxafl.models.model import Batch, Outputs

Array = jax.Array
Sums = tuple[dict[str, Array], dict[str, Array]]
_GRADIENT_PIECE = 256  # samples of one gradient evaluation
_SAMPLES = 0xFFFFFFF4  # folded into the key of a server step, for the samples of its gradients
BATCH = 500  # samples whose losses are summed at once, unless the memory of an accelerator decides
_KEPT = 0.4  # share of all results of a forward pass that are in memory at once
_PIECE, CACHE = 50, 24 * 2**20  # on a CPU: samples evaluated at once, if the results of a batch exceed CACHE bytes


class PerClient(NamedTuple):
    """Clients with an evaluation of their own."""

    owner: Array  # int32 [n], of the samples of a set: index of the client, C for none
    samples: Array  # int32 [C]


def evaluate(
    program: Program,
    of_test: bool,
    members: int,
    device: DeviceData,
    clients: PerClient | None,
    model: Version,
) -> dict[str, Array]:
    """Computes mean loss and metrics over the test set, further test sets (`test_...`), and the validation set.

    Names of the validation set begin with `validation_`. With `clients`, those of the samples of single clients begin
    with `client_`, each [C].

    Args:
        program: static.
        of_test: static, True if clients are evaluated on the test set, False on the validation set.
        members: static, models that are evaluated at once.
        device: the data.
        clients: the single clients, or `None`.
        model: the model.
    """
    found: dict[str, Array] = {}
    for prefix, (count, fetch) in sets_of(program.data, device).items():
        each = clients if prefix == ("" if of_test else "validation_") else None
        sums, values = _summed(program, members, device.frozen, count, fetch, each is not None, model)
        found |= _means(prefix, jax.tree.map(jnp.sum, sums), count)
        if each is not None:
            of_clients = jax.tree.map(functools.partial(_client_sums, each), values)
            found |= _means("client_", of_clients, each.samples)
    return with_test_sets(found, len(device.tests), jnp.stack)


def with_test_sets(found: dict[str, Any], further: int, stack: Callable[[list[Any]], Any]) -> dict[str, Any]:
    """Returns metrics with `test_...` [S] of all test sets in the place of `test_1_...`, `test_2_...` of further ones.

    Args:
        found: name -> metric.
        further: S - 1.
        stack: stacks the values of the test sets.
    """
    for name in [key.removeprefix("test_1_") for key in found if key.startswith("test_1_")]:
        others = [found.pop(f"test_{number}_{name}") for number in range(1, further + 1)]
        found[f"test_{name}"] = stack([found[name], *others])
    return found


def sets_of(data: DataForm, device: DeviceData) -> dict[str, tuple[int, Callable[[Array], tuple[Any, Array]]]]:
    """Returns the evaluated sets by the prefix of their metrics: number of samples, and rows -> raw inputs, labels."""

    def stored(x: Any, y: Array) -> tuple[int, Callable[[Array], tuple[Any, Array]]]:
        return len(y), lambda rows: (jax.tree.map(lambda leaf: leaf[rows], x), y[rows])

    sets = {"": stored(*device.test)}
    sets |= {f"test_{number}_": stored(*one) for number, one in enumerate(device.tests, 1)}
    if device.validation is not None:
        held_out = device.validation

        def fetch_held_out(rows: Array) -> tuple[Any, Array]:
            client, position = held_out.client[rows], held_out.position[rows]
            return gather_held_out(data.gather, device.arrays, client, position)

        sets["validation_"] = (len(held_out.client), fetch_held_out)
    return sets


def outputs_of(
    program: Program, frozen: Any, params: Any, state: Any, raw: Any, labels: Array, inside: Array
) -> Outputs:
    """Returns the outputs of a model in evaluation, for raw samples of which only those `inside` count."""
    batch, key = evaluated_batch(program, raw, labels, inside)
    return program.model.bound(frozen)(params, state, batch, key, False)[0]


def evaluated_batch(program: Program, raw: Any, labels: Array, inside: Array) -> tuple[Batch, Array]:
    """Returns the batch of raw samples of which only those `inside` count, and a fixed key for its evaluation."""
    return Batch(program.data.preprocess(raw), labels, inside), jax_key((jnp.uint32(0), jnp.uint32(0)))


def gradient_sum(
    program: Program,
    frozen: Any,
    model: tuple[Any, Any],
    fetch: Callable[[Array], tuple[Any, Array]],
    count: Any,
    total: Any,
    divisor: int = 1,
) -> Any:
    """Adds Σ_i ∇f_i / `divisor` over samples 0 .. `count` - 1, without augmentation or dropout, to `total`.

    Args:
        program: of the run.
        frozen: frozen arrays of the model.
        model: parameters and non-trainable state.
        fetch: sample numbers int32 [n] -> raw inputs, labels.
        count: number of samples, an int or an int32.
        total: like the parameters.
        divisor: divisor of the losses.
    """
    params, state = model
    width = _GRADIENT_PIECE if isinstance(count, Array) else min(count, _GRADIENT_PIECE)

    def add(piece: Array, total: Any) -> Any:
        places = piece * width + jnp.arange(width, dtype=jnp.int32)
        inside, (raw, labels) = places < count, fetch(jnp.minimum(places, count - 1))

        def loss(params: Any) -> Array:
            outputs = outputs_of(program, frozen, params, state, raw, labels, inside)
            return jnp.sum(jnp.where(inside, outputs.loss, 0)) / divisor

        return jax.tree.map(jnp.add, total, jax.grad(loss)(params))

    return jax.lax.fori_loop(0, -(-count // width), add, total)


def server_gradient(
    program: Program, device: DeviceData, client: Client, model_state: Any, key: Array
) -> Callable[[Any, int | None], Any]:
    """Returns `Arrivals.validation_gradient` of a server step.

    Args:
        program, device: of the run.
        client: local training, of which frozen and personal parameters get the gradient 0.
        model_state: non-trainable state of the global model.
        key: of the server step.
    """
    count, fetch = sets_of(program.data, device)["validation_"]

    def gradient(params: Any, batch_size: int | None = None) -> Any:
        size = count if batch_size is None else batch_size
        rows = jnp.arange(count, dtype=jnp.int32)
        if batch_size is not None:
            rows = jax.random.randint(drawing_key(jax.random.fold_in(key, _SAMPLES)), (size,), 0, count, jnp.int32)
        zero, model = jax.tree.map(jnp.zeros_like, params), (params, model_state)
        found = gradient_sum(program, device.frozen, model, lambda at: fetch(rows[at]), size, zero, divisor=size)
        return filled(shared_of(client, found), zero)

    return gradient


def owned_sums(
    program: Program, device: DeviceData, select: Callable[[Any], Any], client: Array, params: Any, state: Any
) -> Any:
    """Returns sums over the held-out samples of a client for a model.

    Args:
        program, device: of the run.
        select: function from `Outputs` to a pytree of values [B].
        client: int32, index of the client.
        params, state: the model.
    """
    ((prefix, owned),) = device.owned.items()
    _, fetch = sets_of(program.data, device)[prefix]
    count, size = owned.samples[client], len(owned.positions)

    def values(index: Array) -> Any:
        places = index * size + owned.positions
        inside = places < count
        raw, y = fetch(owned.rows[owned.first[client] + jnp.minimum(places, count - 1)])
        outputs = outputs_of(program, device.frozen, params, state, raw, y, inside)
        return jax.tree.map(lambda value: jnp.sum(jnp.where(inside, value, 0)), select(outputs))

    dtype = jnp.result_type(float)
    zero = jax.tree.map(lambda leaf: jnp.zeros((), dtype), jax.eval_shape(values, jnp.int32(0)))
    return jax.lax.fori_loop(0, -(-count // size), lambda i, total: jax.tree.map(jnp.add, total, values(i)), zero)


def evaluate_personal(
    program: Program, single: bool, device: DeviceData, clients: Array, personal: Any, model: Version
) -> dict[str, Array]:
    """Evaluates each client's model, with its personal parameters, on its held-out samples.

    Args:
        program: static.
        single: static, True to add the metrics of single clients.
        device: the data.
        clients: int32 [C], the clients.
        personal: personal parameters of all members and clients, each leaf [P, N, ...].
        model: of all members.

    Returns:
        `personal_...` [P], means over all samples, and if `single` `client_...` [P, C].
    """
    ((_, owned),) = device.owned.items()
    samples = owned.samples[clients]

    def member(given: tuple[Any, Version]) -> dict[str, Array]:
        rows, model = given

        def one(client: Array) -> Sums:
            params = filled(buffers.read(rows, client), model.params)
            return owned_sums(program, device, _values, client, params, model.model_state)

        sums = jax.lax.map(one, clients)
        found = _means("personal_", jax.tree.map(jnp.sum, sums), jnp.sum(samples))
        return found | (_means("client_", sums, samples) if single else {})

    return jax.lax.map(member, (personal, model))


def _client_sums(clients: PerClient, values: Array) -> Array:
    """Returns the sums [C] over the clients' samples of values in batches."""
    flat = values.ravel()[: clients.owner.shape[0]]
    return jax.ops.segment_sum(flat, clients.owner, clients.samples.shape[0] + 1)[:-1]


def _values(outputs: Outputs) -> Sums:
    """Returns losses and metrics, and values whose means are squares of metrics, each [B]."""
    return {"loss": outputs.loss, **outputs.metrics}, dict(outputs.squares)


def _means(prefix: str, sums: Sums, count: Any) -> dict[str, Array]:
    """Returns metrics from the sums of `_values` over `count` samples, with a prefix before their names."""
    means, squares = ({f"{prefix}{name}": value / count for name, value in part.items()} for part in sums)
    return means | {name: jnp.sqrt(value) for name, value in squares.items()}


def _summed(
    program: Program,
    members: int,
    frozen: Any,
    count: int,
    fetch: Callable[[Array], tuple[Any, Array]],
    each: bool,
    model: Version,
) -> tuple[Sums, Sums | None]:
    """Returns sums of losses and metrics over batches of a set, [batches], and with `each` the values of samples."""

    def one(rows: Array) -> Sums:
        inside = rows < count
        raw, labels = fetch(jnp.minimum(rows, count - 1))
        outputs = outputs_of(program, frozen, *model[:2], raw, labels, inside)
        return jax.tree.map(lambda value: jnp.where(inside, value, 0), _values(outputs))

    size, piece = _sizes(members, count, one)

    def batch(rows: Array) -> tuple[Sums, Sums | None]:
        if piece < size:
            pieces = jnp.pad(rows, (0, -size % piece), constant_values=count).reshape(-1, piece)
            values = jax.tree.map(lambda value: value.ravel()[:size], jax.lax.map(one, pieces))
        else:
            values = one(rows)
        return jax.tree.map(jnp.sum, values), values if each else None

    return jax.lax.map(batch, jnp.arange(-(-count // size) * size, dtype=jnp.int32).reshape(-1, size))


def _sizes(members: int, count: int, one: Callable[[Array], Any]) -> tuple[int, int]:
    """Returns the numbers of samples whose losses are summed at once, and that are evaluated at once.

    On an accelerator both are the number that an eighth of its memory holds. On a CPU, samples are evaluated in pieces
    whose results stay in its cache. The products of one step of a recurrent network are too small to be divided.
    """
    size = min(BATCH, count)
    traced = jax.make_jaxpr(one)(jax.ShapeDtypeStruct((size,), jnp.int32)).jaxpr
    results = [result_bytes(operation) for operation in operations(traced)]
    if on_cpu():
        recurrent = any(equation.primitive.name in ("scan", "while") for equation in equations(traced))
        spread = members == 1 and max(results) > CACHE and not recurrent
        return size, min(_PIECE, size) if spread else size
    memory, kept = available_bytes(), members * _KEPT * sum(results)
    most = max(1, int(size * memory / 8 / kept)) if memory else size
    even = -(-count // -(-count // most))
    return even, even
