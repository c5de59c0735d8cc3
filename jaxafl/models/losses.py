"""Losses per example: `loss(predictions, batch) -> Outputs`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from jaxafl.models.model import Batch, Outputs

Array = jax.Array


def softmax_cross_entropy(logits: Array, batch: Batch) -> Outputs:
    """Cross-entropy of integer labels, -log softmax(logits)[y], and whether the largest logit is the label's.

    Where an example has several labels (a label per character of a sequence), its loss and accuracy are the means over
    them. A label outside [0, C) gives a loss of NaN rather than that of some other class.

    Args:
        logits: float [B, ..., C]; in a lower precision than float32 they are cast to it first.
        batch: `batch.y` holds integers [B, ...] in [0, C).

    Returns:
        `loss` [B] in nats and the metric `"accuracy"` [B].

    Raises:
        ValueError: where the shapes of logits and labels do not go together.
        TypeError: where the labels are not integers.
    """
    labels = batch.y
    if logits.ndim < 2 or labels.shape != logits.shape[:-1]:
        raise ValueError(
            f"cross-entropy needs labels of the shape of the logits without their last (class) axis, "
            f"got logits {logits.shape} and labels {labels.shape}"
        )
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise TypeError(
            f"cross-entropy needs integer labels, got {labels.dtype}; pass another loss for real-valued targets"
        )
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    # a negative label would count classes from the end
    labels = jnp.where(labels < 0, logits.shape[-1], labels)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    correct = (jnp.argmax(logits, axis=-1) == labels).astype(loss.dtype)
    return Outputs(_mean_per_example(loss), {"accuracy": _mean_per_example(correct)})


def _mean_per_example(values: Array) -> Array:
    return values.mean(axis=tuple(range(1, values.ndim)))
