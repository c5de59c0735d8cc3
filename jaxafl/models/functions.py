"""Models from a pair of plain functions."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any

from jaxafl.models.flags import keywords
from jaxafl.models.frozen import Frozen, with_frozen
from jaxafl.models.metrics import Better
from jaxafl.models.model import Array, Batch, Key, Model, Outputs, Params, State, scored
from jaxafl.options import named


@named
def from_functions(
    init: Callable[[Key, Batch], Params],
    loss: Callable[..., Outputs | Array],
    name: str | None = None,
    better: Mapping[str, Better] = types.MappingProxyType({}),
    *,
    frozen: Frozen = None,
    outputs: Callable[[Params, Batch], Any] | None = None,
) -> Model:
    """Converts a pair of plain functions to a model without state.

    Args:
        init: `(key, batch) -> params`, any pytree of float arrays or numbers.
        loss: `(params, batch, key) ->` a loss per example [B], or `Outputs` with metrics. If it has an argument `train`
            (or `deterministic` ..., see `from_linen`), this is True in training. A bare loss records no accuracy:
            return `softmax_cross_entropy(logits, batch)`, or `Outputs(loss, {"accuracy": correct})` with `correct` [B].
        name: the name in results; by default the name of `loss`.
        better: metric -> `"higher"` or `"lower"`, for metrics with other names than `Model` lists.
        frozen: selection of parameters that are neither trained nor sent, see `from_linen`; may include integers.
        outputs: `(params, batch) ->` predictions [B, ...] of `batch.x`, for `Model.outputs` and metrics of whole sets.

    Returns:
        The model.
    """
    network = getattr(loss, "__name__", type(loss).__name__)

    def make(key: Key, batch: Batch) -> tuple[Params, State]:
        return init(key, batch), {}

    def apply(params: Params, state: State, batch: Batch, key: Key, train: bool) -> tuple[Outputs, State]:
        predict = None if outputs is None else lambda: outputs(params, batch)
        return scored(lambda: loss(params, batch, key, **keywords(loss, {}, train)), batch, predict), state

    model = Model(name or network, make, apply, {"network": network}, better=better)
    return with_frozen("from_functions", model, frozen)
