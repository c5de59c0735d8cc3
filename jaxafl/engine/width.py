"""Numbers of lanes: those that fit into the memory of an accelerator, and those that advance together."""

from __future__ import annotations

import weakref
from typing import Any

import jax

from jaxafl.data.form import DataForm
from jaxafl.device import available_bytes, operations, result_bytes
from jaxafl.engine.problem import Problem
from jaxafl.engine.state import example_batch
from jaxafl.models.model import Batch, Model
from jaxafl.options import UserError, check_whole

MOST_LANES = 4096
_KEPT = 0.4  # of all results of a forward pass, in memory at once during a local step
_known: weakref.WeakKeyDictionary[Model, dict[tuple[int, DataForm], float]] = weakref.WeakKeyDictionary()


def lanes_in_memory(problem: Problem, members: int = 1) -> int:
    """Returns the number of lanes per member that fit into half of the device memory (at least 1)."""
    memory = available_bytes()
    if memory is None:
        return MOST_LANES
    size: Any = problem.hyperparameters.client.micro_batch  # set by `Client.executed`
    form = (size, problem.data.form)
    known = _known.setdefault(problem.model, {})
    if form not in known:
        known[form] = lane_bytes(problem.model, *form)
    return max(1, int(memory / 2 / known[form] / members))


def chunk_of(lanes: int, chunk: int | None, problem: Problem, members: int) -> int:
    """Returns the checked number of lanes that advance together.

    Args:
        lanes: lanes of one device.
        chunk: the number as given; `None` chooses: 1 on a CPU, elsewhere as many as half of the memory holds.
        problem: one of the runs.
        members: number of runs.
    """
    if chunk is not None:
        check_whole("run", "chunk", chunk)
        if lanes % chunk:
            raise UserError(f"run: chunk must be a divisor of lanes={lanes}, got {chunk}")
        return int(chunk)
    most = 1 if jax.default_backend() == "cpu" else lanes_in_memory(problem, members)
    return next(lanes // parts for parts in range(1, lanes + 1) if lanes % parts == 0 and lanes // parts <= most)


def lane_bytes(model: Model, size: int, data: DataForm) -> float:
    """Returns the bytes of a lane during a local step on `size` samples, from the traced forward pass of the model."""
    one = jax.eval_shape(lambda: example_batch(data))
    batch: Any = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype), one)
    key = jax.eval_shape(lambda: jax.random.key(0))
    params, state = jax.eval_shape(model.init, key, batch)

    def loss(params: Any, state: Any, batch: Batch, key: Any, frozen: Any) -> Any:
        return model.bound(frozen)(params, state, batch, key, True)[0].loss

    traced = jax.make_jaxpr(loss)(params, state, batch, key, model.held(batch))
    weights = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params))
    return 3.0 * weights + _KEPT * sum(map(result_bytes, operations(traced.jaxpr)))
