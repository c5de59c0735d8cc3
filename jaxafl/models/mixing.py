"""Detection of losses of one's own that compare a prediction with the targets of other samples."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.device import operations
from jaxafl.models.model import Batch

_SAMPLES = 3
_MANY = 1009  # a number that is rarely the size of another axis


def warn_of_mixing(loss: Callable[[Any, Batch], Any], predictions: Any, batch: Batch) -> None:
    """Warns if the loss of a sample changes with the target of another one, for example by broadcasting.

    Args:
        loss: function of predictions and batch; an error that it raises here is ignored.
        predictions: shapes of the predictions, each leaf [B, ...].
        batch: an example batch, of which shapes and dtypes matter.
    """
    _warn(lambda some: loss(jax.tree.map(_filled, predictions), some), batch, predictions)


def warn_of_pairs(losses: Callable[[Batch], Any], batch: Batch) -> None:
    """Warns likewise of a loss of parameters and samples, which is computed only if it has arrays [B, B].

    Args:
        losses: batch of any size -> loss [B]; an error that it raises here is ignored.
        batch: an example batch.
    """
    many = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((_MANY, *leaf.shape[1:]), leaf.dtype), batch)
    shapes: list[tuple[int, ...]] = []
    with contextlib.suppress(Exception):  # the loss is checked elsewhere
        shapes += [one.aval.shape for each in operations(jax.make_jaxpr(losses)(many).jaxpr) for one in each.outvars]
    if any(shape.count(_MANY) > 1 for shape in shapes):
        _warn(losses, batch)


def _warn(losses: Callable[[Batch], Any], batch: Batch, predictions: Any = None) -> None:
    """Warns if the first loss of `losses(batch)` changes with the targets of the other samples."""

    def first_loss(changed: bool) -> float:
        low, high = (0, 1) if jnp.issubdtype(batch.y.dtype, jnp.integer) else (0.25, 0.75)
        y = np.full((_SAMPLES, *batch.y.shape[1:]), low, batch.y.dtype)
        y[1:] = high if changed else low
        found = losses(Batch(jax.tree.map(_filled, batch.x), jnp.asarray(y), jnp.ones(_SAMPLES, bool)))
        return float(np.asarray(getattr(found, "loss", found))[0])

    try:
        with jax.ensure_compile_time_eval():
            both = first_loss(False), first_loss(True)
    except Exception:  # the loss is checked elsewhere
        return
    if np.isfinite(both).all() and not np.isclose(*both, rtol=1e-4, atol=1e-6):
        predicted, target = (str(jax.tree.map(lambda leaf: [*leaf.shape[1:]], one)) for one in (predictions, batch.y))
        form = f"A prediction has the shape {predicted} and a target {target}. Losses by name pair them"
        if predictions is None:
            form = f"A target has the shape {target}; of a network with one output, take predictions[..., 0]"
        warnings.warn(
            "the loss of a sample changes with the targets of other samples of the batch, padding included. Do they "
            f"broadcast? {form}",
            stacklevel=2,
        )


def _filled(leaf: Any) -> jax.Array:
    shape = (_SAMPLES, *leaf.shape[1:])
    return jnp.linspace(0.1, 0.9, int(np.prod(shape))).reshape(shape).astype(leaf.dtype)
