"""Predictions: what a network returns, before its loss is computed."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any, NamedTuple

from jaxafl.options import UserError

_wanted: contextvars.ContextVar[bool] = contextvars.ContextVar("wanted", default=False)


class Predictions(NamedTuple):
    """Predictions of a batch, which `Model.apply` returns in the place of loss and metrics."""

    values: Any


def scored(score: Callable[[], Any], predict: Callable[[], Any] | None) -> Any:
    """Returns the loss and metrics of a batch; within `predictions_of`, the predictions.

    Args:
        score: () -> loss and metrics.
        predict: () -> predictions; `None` if the model has none.
    """
    return Predictions(predict()) if _wanted.get() and predict is not None else score()


def predictions_of(name: str, apply: Callable[..., Any], *arguments: Any) -> Any:
    """Returns the predictions of a model, traceable.

    Args:
        name: name of the model, for messages.
        apply: `Model.apply`, with the frozen arrays bound.
        arguments: of `apply`.

    Raises:
        ValueError: the model computes its loss without predictions.
    """
    before = _wanted.set(True)
    try:
        found, _ = apply(*arguments)
    finally:
        _wanted.reset(before)
    if not isinstance(found, Predictions):
        raise UserError(
            f"the model {name} has no outputs, because its loss is all that it computes; construct it with from_linen "
            "or from_nnx, or add from_functions(..., outputs=lambda params, batch: ...)"
        )
    return found.values
