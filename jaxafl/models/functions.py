"""Models from a pair of plain functions."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any

from jaxafl.models.adapters import check_takes, per_example, tried, what
from jaxafl.models.frozen import Frozen, described, split_off
from jaxafl.models.metrics import Better
from jaxafl.models.model import Array, Batch, Key, Model, Outputs, Params, State
from jaxafl.models.modes import Modes, keywords, mode_arguments
from jaxafl.models.predictions import scored
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
    roles = [("init", init, ("key", "batch")), ("loss", loss, ("params", "batch", "key"))]
    roles += [] if outputs is None else [("outputs", outputs, ("params", "batch"))]
    for role, function, given in roles:
        if not callable(function):
            raise TypeError(f"from_functions needs a function as {role}, got {what(function)}")
        check_takes("from_functions", role, function, given)

    network = getattr(loss, "__name__", type(loss).__name__)
    modes = Modes.checked("from_functions", None, None, network)
    arguments = mode_arguments(loss, modes, 3)

    def make(key: Key, batch: Batch) -> tuple[Params, State]:
        return init(key, batch), {}

    def apply(params: Params, state: State, batch: Batch, key: Key, train: bool) -> tuple[Outputs, State]:
        def score() -> Outputs:
            return per_example(lambda: loss(params, batch, key, **keywords(arguments, modes, train)), batch)

        return scored(score, None if outputs is None else lambda: outputs(params, batch)), state

    description = {"network": network}
    if frozen is None:
        return Model(name or network, tried(make, apply, pairs=True), apply, description, better=better)
    trained, applied, held = split_off(make, apply, frozen, "from_functions")
    description["frozen"] = described(frozen)
    return Model(name or network, tried(trained, applied, held, pairs=True), applied, description, held, better=better)
