"""Losses of batches: by name, of Optax, or of the user, with the metrics that belong to them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import optax

from jaxafl.models.model import Array, Batch, Outputs, record_classes
from jaxafl.options import UserError, check_choice, shown

Loss: TypeAlias = Callable[[Any, Batch], Outputs | Array]
_OF_ERRORS = (optax.squared_error, optax.l2_loss, optax.huber_loss, optax.log_cosh)
_OF_SIGNS = (optax.hinge_loss, optax.losses.perceptron_loss)  # their targets are -1 and 1
_BINARY = (*_OF_SIGNS, optax.sigmoid_focal_loss)


def softmax_cross_entropy(logits: Array, batch: Batch) -> Outputs:
    """Computes the cross-entropy of integer labels, -log softmax(logits)[y], and the accuracy.

    If an example has several labels (one per token), its loss and accuracy are the means over them, without the padding
    that negative labels [B, L] mark. Any other label outside [0, C) gives a loss of NaN.

    Args:
        logits: float [B, ..., C]; lower precisions are cast to float32 first.
        batch: `batch.y` holds integers [B, ...] in [0, C).

    Returns:
        `loss` [B] in nats and the metric `"accuracy"` [B].

    Raises:
        ValueError: the shapes of logits and labels do not match, or the labels are not integers.
    """
    labels = batch.y
    shape = getattr(logits, "shape", ())
    if not shape or shape[:-1] != labels.shape or not jnp.issubdtype(labels.dtype, jnp.integer):
        found = f"{logits.dtype}{[*shape]}" if shape else shown(logits)
        raise UserError(
            f"softmax_cross_entropy: predictions {found} with labels {labels.dtype}{[*labels.shape]} are invalid; "
            "expected logits [B, ..., C] and integers [B, ...]. Give y.argmax(1) for one-hot labels, y.astype(int) for "
            'classes as floats, loss="sigmoid_cross_entropy" for several classes at once, "squared_error" for numbers'
        )
    record_classes(labels, logits.shape[-1])
    logits = _wide(logits)
    # by comparison, because an indexed logit has a scatter as its gradient, one more kernel in every local step
    is_label = labels[..., None] == jnp.arange(logits.shape[-1])
    of_label = jnp.sum(jnp.where(is_label, logits, 0), axis=-1)
    loss = jax.nn.logsumexp(logits, axis=-1) - jnp.where(jnp.any(is_label, axis=-1), of_label, jnp.nan)
    return _with_accuracy(loss, jnp.argmax(logits, axis=-1) == labels, labels)


def next_token(logits: Array, batch: Batch) -> Outputs:
    """Computes the cross-entropy of the next token at every place of a text, its accuracy and its perplexity per token.

    A text's loss is ℓ_b = -mean_t log softmax(z_bt)[y_bt], and the perplexity of a set is exp(mean_b ℓ_b). For texts of
    one length without padding this is the perplexity of all their tokens together; else every text counts the same.

    Args:
        logits: float [B, L, V], z.
        batch: `batch.y` holds tokens [B, L], y_bt the token after the one at place t; negative ones do not count.

    Returns:
        `loss` [B] in nats per token, the metric `"accuracy"` [B] and the logarithms of `"perplexity"` [B].

    Raises:
        ValueError: as for `softmax_cross_entropy`.
    """
    found = softmax_cross_entropy(logits, batch)
    return found._replace(logarithms={"perplexity": found.loss})


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
        return Outputs(_mean_per_example(loss), {})
    record_classes(batch.y, 2)
    return _with_accuracy(loss, (logits > 0) == (labels > 0), labels)


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
        predictions, targets = _paired(_function(loss).__name__, predictions, batch.y)
        targets = targets.astype(predictions.dtype)
        error = predictions - targets
        losses = _mean_per_example(loss(predictions, targets))
        return Outputs(losses, {"mae": _mean_per_example(jnp.abs(error))}, {"rmse": _mean_per_example(error**2)})

    return of_batch


LOSSES: dict[str, Callable[[Any, Batch], Outputs]] = {
    "softmax_cross_entropy": softmax_cross_entropy,
    "next_token": next_token,
    "sigmoid_cross_entropy": sigmoid_cross_entropy,
    "squared_error": of_errors(optax.squared_error),
    "absolute_error": of_errors(absolute_error),
    "huber": of_errors(optax.huber_loss),
    "log_cosh": of_errors(optax.log_cosh),
}
"""Losses by the names that `from_linen`, `from_nnx` and `from_torch` take."""


def as_loss(owner: str, loss: Loss | str) -> Loss:
    """Returns a loss as a function of predictions and batch.

    Args:
        owner: the adapter, for the message.
        loss: a name of `LOSSES`, a loss of Optax, or such a function.

    Raises:
        ValueError: there is no loss of this name.
    """
    if isinstance(loss, str) or not callable(loss):
        check_choice(owner, "loss", loss, tuple(LOSSES), ", or a function (predictions, batch) -> a loss per example")
        return LOSSES[loss]
    return _of_optax(loss) if str(getattr(_function(loss), "__module__", "")).startswith("optax") else loss


def _of_optax(loss: Callable[..., Any]) -> Loss:
    """Returns a loss of Optax, or a `functools.partial` of one, as a loss of batches."""
    if _function(loss) in _OF_ERRORS:
        return of_errors(loss)
    plain = None if getattr(loss, "keywords", None) else _function(loss)
    if plain is optax.sigmoid_binary_cross_entropy:
        return sigmoid_cross_entropy
    if plain is optax.softmax_cross_entropy_with_integer_labels:
        return softmax_cross_entropy

    def of_batch(predictions: Any, batch: Batch) -> Any:
        targets = batch.y
        shape: tuple[int, ...] = getattr(predictions, "shape", ())
        whole, binary = jnp.issubdtype(targets.dtype, jnp.integer), _function(loss) in _BINARY
        per_class = whole and not binary and shape[:-1] == targets.shape and shape[-1] > 1
        if not per_class:
            predictions, targets = _paired(_function(loss).__name__, predictions, targets)
        if whole and (binary or per_class):
            record_classes(batch.y, shape[-1] if per_class else 2)
        if _function(loss) in _OF_SIGNS:
            targets = jnp.where(targets > 0, 1, -1)
        return _mean_per_example(loss(_wide(predictions), targets))

    return of_batch


def _paired(name: str, predictions: Any, targets: Array) -> tuple[Array, Array]:
    """Returns predictions, at least in float32, and targets in one shape; an axis of length 1 may be missing.

    Raises:
        ValueError: the shapes differ, so broadcasting would compare every prediction with every target.
    """
    shape = getattr(predictions, "shape", None)
    if shape == (*targets.shape, 1):
        predictions = predictions[..., 0]
    elif shape is not None and targets.shape == (*shape, 1):
        targets = targets[..., 0]
    elif shape != targets.shape:
        raise UserError(
            f"{name}: predictions of shape {shown(predictions) if shape is None else shape} do not fit targets of "
            f"shape {targets.shape}; expected one shape. Give the last layer as many outputs as a sample has targets"
        )
    return _wide(predictions), targets


def _wide(predictions: Array) -> Array:
    return predictions.astype(jnp.promote_types(predictions.dtype, jnp.float32))


def _function(loss: Any) -> Any:
    return _function(loss.func) if isinstance(loss, functools.partial) else loss


def _with_accuracy(loss: Array, correct: Array, labels: Array) -> Outputs:
    """Returns means per example of losses and right predictions, [B, ...]; negative labels [B, L] are padding."""
    counted = labels >= 0 if labels.ndim > 1 else None
    accuracy = _mean_per_example(correct.astype(loss.dtype), counted)
    return Outputs(_mean_per_example(loss, counted), {"accuracy": accuracy})


def _mean_per_example(values: Array, counted: Array | None = None) -> Array:
    """Returns the means [B] of values [B, ...] over all axes but the first.

    Args:
        values: the values.
        counted: bool [B, ...], the values that count, by default all; 0 is the mean of none.
    """
    axes = tuple(range(1, values.ndim))
    if counted is None:
        return values.mean(axis=axes)
    return jnp.where(counted, values, 0).sum(axis=axes) / jnp.maximum(counted.sum(axis=axes), 1)
