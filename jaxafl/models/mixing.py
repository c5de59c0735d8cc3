"""Detection of losses of one's own that compare a prediction with the targets of other samples."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.models.model import Batch

_SAMPLES = 3


def warn_of_mixing(loss: Callable[[Any, Batch], Any], predictions: Any, batch: Batch) -> None:
    """Warns if the loss of a sample changes with the target of another one, for example by broadcasting.

    Args:
        loss: function of predictions and batch; an error that it raises here is ignored.
        predictions: shapes of the predictions, each leaf [B, ...].
        batch: an example batch, of which shapes and dtypes matter.
    """

    def filled(leaf: Any) -> jax.Array:
        shape = (_SAMPLES, *leaf.shape[1:])
        return jnp.linspace(0.1, 0.9, int(np.prod(shape))).reshape(shape).astype(leaf.dtype)

    def first_loss(changed: bool) -> float:
        low, high = (0, 1) if jnp.issubdtype(batch.y.dtype, jnp.integer) else (0.25, 0.75)
        y = np.full((_SAMPLES, *batch.y.shape[1:]), low, batch.y.dtype)
        y[1:] = high if changed else low
        found = loss(given, Batch(x, jnp.asarray(y), jnp.ones(_SAMPLES, bool)))
        return float(np.asarray(getattr(found, "loss", found))[0])

    try:
        with jax.ensure_compile_time_eval():
            given, x = jax.tree.map(filled, (predictions, batch.x))
            losses = first_loss(False), first_loss(True)
    except Exception:  # the loss is checked elsewhere
        return
    if np.isfinite(losses).all() and not np.isclose(*losses, rtol=1e-4, atol=1e-6):
        forms = (str(jax.tree.map(lambda leaf: [*leaf.shape[1:]], one)) for one in (predictions, batch.y))
        warnings.warn(
            "the loss of a sample changes with the targets of other samples of the batch, padding included. Do they "
            "broadcast? A prediction has the shape {} and a target {}. Losses by name pair them".format(*forms),
            stacklevel=2,
        )
