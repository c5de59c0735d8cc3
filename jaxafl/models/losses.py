"""Losses by name, losses of Optax, and the metrics that belong to them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import optax

from jaxafl.models.model import Array, Batch, Outputs, mean_per_example, record_classes, softmax_cross_entropy
from jaxafl.options import UserError, shown

_OF_ERRORS = (optax.squared_error, optax.l2_loss, optax.huber_loss, optax.log_cosh)
_OF_SIGNS = (optax.hinge_loss, optax.losses.perceptron_loss)  # their targets are -1 and 1
_BINARY = (*_OF_SIGNS, optax.sigmoid_focal_loss)


def sigmoid_cross_entropy(logits: Array, batch: Batch) -> Outputs:
    """Computes the binary cross-entropy -y log σ(z) - (1 - y) log(1 - σ(z)), and the accuracy for integer labels.

    If an example has several labels, its loss and accuracy are the means over them. A negative integer label [B, L] is
    padding and does not count. Any other label outside [0, 1] gives a loss of NaN.

    Args:
        logits: float, z, of the shape of the labels, or with one more axis of length 1.
        batch: `batch.y` holds labels [B] or [B, L]: integers 0 and 1, or probabilities.

    Returns:
        `loss` [B] in nats, and for integer labels the metric `"accuracy"` [B], the share of labels with
        (z > 0) = (y = 1).

    Raises:
        ValueError: the shapes of logits and labels do not match.
    """
    logits, labels = _paired("sigmoid_cross_entropy", logits, batch.y)
    loss = optax.sigmoid_binary_cross_entropy(logits, labels.astype(logits.dtype))
    loss += jnp.where((labels < 0) | (labels > 1), jnp.nan, 0)
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        return Outputs(mean_per_example(loss), {})
    record_classes(batch.y, 2)
    counted = labels >= 0 if labels.ndim > 1 else None
    correct = ((logits > 0) == (labels > 0)).astype(loss.dtype)
    return Outputs(mean_per_example(loss, counted), {"accuracy": mean_per_example(correct, counted)})


def absolute_error(predictions: Array, targets: Array) -> Array:
    """Computes |predictions - targets|, elementwise."""
    return jnp.abs(predictions - targets)


def of_errors(loss: Callable[[Array, Array], Array]) -> Callable[[Any, Batch], Outputs]:
    """Returns the loss of a regression, the mean of `loss(predictions, targets)` over the targets of an example.

    It records `"mae"`, the mean of |error|, and `"rmse"`, the square root of the mean of error², in the targets' unit.

    Args:
        loss: `(predictions, targets) ->` a loss per target, for arrays of one shape.
    """

    def of_batch(predictions: Any, batch: Batch) -> Outputs:
        predictions, targets = _paired(_name(loss), predictions, batch.y)
        targets = targets.astype(predictions.dtype)
        error = predictions - targets
        losses = mean_per_example(loss(predictions, targets))
        return Outputs(losses, {"mae": mean_per_example(jnp.abs(error))}, {"rmse": mean_per_example(error**2)})

    return of_batch


def of_optax(loss: Callable[..., Any]) -> Callable[[Any, Batch], Any] | None:
    """Returns a loss of Optax, or a `functools.partial` of one, as a loss of batches; `None` for other functions."""
    if not str(getattr(_function(loss), "__module__", "")).startswith("optax"):
        return None
    if _function(loss) in _OF_ERRORS:
        return of_errors(loss)
    same = {
        optax.sigmoid_binary_cross_entropy: sigmoid_cross_entropy,
        optax.softmax_cross_entropy_with_integer_labels: softmax_cross_entropy,
    }
    if loss in same:
        return same[loss]

    def of_batch(predictions: Any, batch: Batch) -> Any:
        targets = batch.y
        shape: tuple[int, ...] = getattr(predictions, "shape", ())
        whole, binary = jnp.issubdtype(targets.dtype, jnp.integer), _function(loss) in _BINARY
        per_class = whole and not binary and shape[:-1] == targets.shape and shape[-1] > 1
        if not per_class:
            predictions, targets = _paired(_name(loss), predictions, targets)
        if whole and (binary or per_class):
            record_classes(batch.y, shape[-1] if per_class else 2)
        if _function(loss) in _OF_SIGNS:
            targets = jnp.where(targets > 0, 1, -1)
        losses = loss(_wide(predictions), targets)
        return mean_per_example(losses) if getattr(losses, "ndim", 0) else losses

    return of_batch


LOSSES: dict[str, Callable[[Any, Batch], Outputs]] = {
    "softmax_cross_entropy": softmax_cross_entropy,
    "sigmoid_cross_entropy": sigmoid_cross_entropy,
    "squared_error": of_errors(optax.squared_error),
    "absolute_error": of_errors(absolute_error),
    "huber": of_errors(optax.huber_loss),
    "log_cosh": of_errors(optax.log_cosh),
}
"""Losses by the names that `from_linen`, `from_nnx` and `from_torch` take."""


def _paired(name: str, predictions: Any, targets: Array) -> tuple[Array, Array]:
    """Returns predictions, at least in float32, and targets in one shape; an axis of length 1 may be missing.

    Raises:
        ValueError: the shapes differ, so broadcasting would compare every prediction with every target.
    """
    if not hasattr(predictions, "ndim"):
        raise TypeError(f"{name}: the network returns {shown(predictions)}; expected its predictions, an array")
    if predictions.shape == (*targets.shape, 1):
        predictions = predictions[..., 0]
    elif targets.shape == (*predictions.shape, 1):
        targets = targets[..., 0]
    if predictions.shape != targets.shape:
        outputs = targets.shape[-1] if targets.ndim > 1 else 1
        raise UserError(
            f"{name}: predictions have the shape {predictions.shape} and targets {targets.shape}; expected one shape. "
            f"Give the last layer {outputs} output{'s' * (outputs > 1)}"
        )
    return _wide(predictions), targets


def _wide(predictions: Array) -> Array:
    return predictions.astype(jnp.promote_types(predictions.dtype, jnp.float32))


def _function(loss: Any) -> Any:
    return _function(loss.func) if isinstance(loss, functools.partial) else loss


def _name(loss: Any) -> str:
    return str(getattr(_function(loss), "__name__", "loss"))
