"""The evaluation of a model on what is held out: the test set, the validation set, the samples of single clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxafl.data.held_out import gather_held_out
from jaxafl.device.keys import jax_key
from jaxafl.engine.problem import DeviceData, Program
from jaxafl.engine.state import Version
from jaxafl.models.model import Batch

Array = jax.Array
_BATCH = 500


class Alone(NamedTuple):
    """Clients that are evaluated one by one."""

    owner: Array  # int32 [n], of the samples of a set: index of the client, C for none
    samples: Array  # int32 [C]


def evaluate(
    program: Program, of_test: bool, device: DeviceData, alone: Alone | None, model: Version
) -> dict[str, Array]:
    """Mean loss and metrics over the test set; over the validation set (`validation_...`) where there is one; over the
    samples of single clients (`client_...`, each [C]) where they are asked for.

    Args:
        program: static, what is run.
        of_test: static, whether clients are evaluated on the test set, or else on the validation set.
        device: the data.
        alone: the clients.
        model: what is evaluated.
    """
    x, y = device.test
    data, sets = program.data, {"": (len(y), lambda rows: (jax.tree.map(lambda leaf: leaf[rows], x), y[rows]))}
    if device.validation is not None:
        apart = device.validation
        fetch = lambda rows: gather_held_out(data.gather, device.arrays, apart.client[rows], apart.position[rows])  # noqa: E731
        sets["validation_"] = (len(apart.client), fetch)
    found: dict[str, Array] = {}
    for prefix, (count, fetch) in sets.items():
        own = alone if of_test == (not prefix) else None
        sums, values = _summed(program, device.frozen, count, fetch, own is not None, model)
        found |= {f"{prefix}{name}": jnp.sum(parts) / count for name, parts in sums.items()}
        if own is not None:
            for name, value in values.items():
                total = jax.ops.segment_sum(value.ravel()[:count], own.owner, own.samples.shape[0] + 1)
                found[f"client_{name}"] = total[:-1] / own.samples
    return found


def _summed(
    program: Program,
    frozen: Any,
    count: int,
    fetch: Callable[[Array], tuple[Any, Array]],
    each: bool,
    model: Version,
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Sums of losses and metrics over the batches of a set, [batches]; `each`: and those of the samples."""
    size = min(_BATCH, count)
    rows = jnp.arange(-(-count // size) * size, dtype=jnp.int32).reshape(-1, size)
    key = jax_key((jnp.uint32(0), jnp.uint32(0)))
    apply = program.model.bound(frozen)

    def batch(rows: Array) -> tuple[dict[str, Array], dict[str, Array]]:
        inside = rows < count
        raw, labels = fetch(jnp.minimum(rows, count - 1))
        inputs = Batch(program.data.preprocess(raw), labels, inside)
        outputs, _ = apply(model.params, model.model_state, inputs, key, False)
        values = {"loss": outputs.loss} | outputs.metrics
        values = {name: jnp.where(inside, value, 0) for name, value in values.items()}
        return {name: jnp.sum(value) for name, value in values.items()}, values if each else {}

    return jax.lax.map(batch, rows)
