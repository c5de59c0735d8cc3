"""The evaluation of a model on what is held out: the test set, the validation set, the samples of single clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxafl.data.form import DataForm
from jaxafl.data.held_out import gather_held_out
from jaxafl.device import available_bytes, equations, on_cpu, operations, result_bytes
from jaxafl.device.keys import jax_key
from jaxafl.engine.problem import DeviceData, Program
from jaxafl.engine.state import Version
from jaxafl.models.model import Batch

Array = jax.Array
BATCH = 500  # samples whose losses are added up at once, where memory does not decide
_KEPT = 0.4  # of all results of a forward pass, in memory at once
_PIECE, _CACHE = 50, 24 * 2**20  # on a CPU: how many of them are evaluated at once, where results of all are more bytes


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
        spread = max(results) > _CACHE and not recurrent
        return size, min(_PIECE, size) if spread else size
    memory, kept = available_bytes(), members * _KEPT * sum(results)
    most = max(1, int(size * memory / 8 / kept)) if memory else size
    even = -(-count // -(-count // most))
    return even, even
