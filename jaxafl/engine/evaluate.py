"""The evaluation of a model on what is held out: the test set, the validation set, the samples of single clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxafl.client import filled
from jaxafl.data.form import DataForm
from jaxafl.data.held_out import gather_held_out
from jaxafl.device import available_bytes, buffers, equations, on_cpu, operations, result_bytes
from jaxafl.device.keys import jax_key
from jaxafl.engine.problem import DeviceData, Program
from jaxafl.engine.state import Version
from jaxafl.models.model import Batch

Array = jax.Array
BATCH = 500  # samples whose losses are added up at once, where memory does not decide
_KEPT = 0.4  # of all results of a forward pass, in memory at once
_PIECE, CACHE = 50, 24 * 2**20  # on a CPU: how many of them are evaluated at once, where results of all are more bytes


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
    """Computes mean loss and metrics over the test set, the validation set (`validation_...`) if there is one, and the
    samples of single clients (`client_...`, each [C]) if they are asked for.

    Args:
        program: static.
        of_test: static, True if clients are evaluated on the test set, False on the validation set.
        members: static, models that are evaluated at once.
        device: the data.
        clients: the single clients.
        model: the model.
    """
    found: dict[str, Array] = {}
    for prefix, (count, fetch) in sets_of(program.data, device).items():
        each = clients if prefix == ("" if of_test else "validation_") else None
        roots: set[str] = set()
        sums, values = _summed(program, members, device.frozen, count, fetch, each is not None, model, roots)
        found |= {f"{prefix}{name}": jnp.sum(parts) / count for name, parts in sums.items()}
        if each is not None:
            for name, value in values.items():
                total = jax.ops.segment_sum(value.ravel()[:count], each.owner, each.samples.shape[0] + 1)
                found[f"client_{name}"] = total[:-1] / each.samples
        beginnings = (prefix,) if each is None else (prefix, "client_")
        found |= {f"{start}{name}": jnp.sqrt(found[f"{start}{name}"]) for start in beginnings for name in roots}
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
    apply, key = program.model.bound(device.frozen), jax_key((jnp.uint32(0), jnp.uint32(0)))
    count, size = owned.samples[client], len(owned.positions)

    def values(index: Array) -> Any:
        places = index * size + owned.positions
        inside = places < count
        raw, y = fetch(owned.rows[owned.first[client] + jnp.minimum(places, count - 1)])
        outputs, _ = apply(params, state, Batch(program.data.preprocess(raw), y, inside), key, False)
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
    roots: set[str] = set()

    def select(outputs: Any) -> dict[str, Array]:
        roots.update(outputs.squares)
        return {"loss": outputs.loss} | outputs.metrics | outputs.squares

    def member(given: tuple[Any, Version]) -> dict[str, Array]:
        rows, model = given

        def one(client: Array) -> dict[str, Array]:
            params = filled(buffers.read(rows, client), model.params)
            return owned_sums(program, device, select, client, params, model.model_state)

        sums = jax.lax.map(one, clients)
        found = {f"personal_{name}": jnp.sum(value) / jnp.sum(samples) for name, value in sums.items()}
        if single:
            found |= {f"client_{name}": value / samples for name, value in sums.items()}
        squared = [start + name for name in roots for start in ("personal_", "client_") if start + name in found]
        return found | {name: jnp.sqrt(found[name]) for name in squared}

    return jax.lax.map(member, (personal, model))


def _summed(
    program: Program,
    members: int,
    frozen: Any,
    count: int,
    fetch: Callable[[Array], tuple[Any, Array]],
    each: bool,
    model: Version,
    roots: set[str],
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Returns sums of losses and metrics over batches of a set, [batches], and with `each` the values of samples.

    Tracing adds the names of `Outputs.squares` to `roots`.
    """
    key = jax_key((jnp.uint32(0), jnp.uint32(0)))
    apply = program.model.bound(frozen)

    def one(rows: Array) -> dict[str, Array]:
        inside = rows < count
        raw, labels = fetch(jnp.minimum(rows, count - 1))
        inputs = Batch(program.data.preprocess(raw), labels, inside)
        outputs, _ = apply(model.params, model.model_state, inputs, key, False)
        roots.update(outputs.squares)
        values = {"loss": outputs.loss} | outputs.metrics | outputs.squares
        return {name: jnp.where(inside, value, 0) for name, value in values.items()}

    size, piece = _sizes(members, count, one)

    def batch(rows: Array) -> tuple[dict[str, Array], dict[str, Array]]:
        if piece < size:
            pieces = jnp.pad(rows, (0, -size % piece), constant_values=count).reshape(-1, piece)
            values = {name: value.ravel()[:size] for name, value in jax.lax.map(one, pieces).items()}
        else:
            values = one(rows)
        return {name: jnp.sum(value) for name, value in values.items()}, values if each else {}

    return jax.lax.map(batch, jnp.arange(-(-count // size) * size, dtype=jnp.int32).reshape(-1, size))


def _sizes(members: int, count: int, one: Callable[[Array], Any]) -> tuple[int, int]:
    """Returns the samples whose losses are added up at once, and how many of them are evaluated at once: on an
    accelerator as many as an eighth of its memory holds; on a CPU a piece whose results stay in its cache. A recurrent
    network is not divided, as its products of one step would be too thin."""
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
