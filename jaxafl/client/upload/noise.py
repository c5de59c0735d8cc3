"""Clipping and Gaussian noise of updates at the client."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxafl.client.upload.contract import Array, Leaves, Sent, Size, Upload, VectorUpload
from jaxafl.device.keys import drawing_key
from jaxafl.options import Number, UserError, number


class clip_by_global_norm(Upload):
    """Clips the norm of an update: Δ ← Δ · min(1, C / ‖Δ‖₂), the norm over all trained parameters as one vector.

    Args:
        max_norm: C > 0, one number or one per client.

    References:
        McMahan, Ramage, Talwar, Zhang (2018), "Learning differentially private recurrent language models", ICLR.
    """

    reads_run = False

    references = ("mcmahan2018",)

    max_norm: Number = number(above=0, per_client=True)

    def bound(self, norm: Any) -> Any:
        return self.max_norm

    def apply(self, delta: Any, sent: Sent) -> Any:
        norm = optax.tree.norm(delta)
        factor = jnp.where(norm > self.max_norm, self.max_norm / jnp.where(norm > 0, norm, 1), 1)
        return jax.tree.map(lambda leaf: leaf * factor.astype(leaf.dtype), delta)

    def size(self, size: Size, leaves: Leaves) -> Size:
        return size if size.scaled else size._replace(extra=size.extra + 32, scaled=True)  # the factor


class add_noise(VectorUpload):
    """Adds Gaussian noise to an update: Δ ← Δ + N(0, σ² I), drawn for each run of each client.

    Local differential privacy with noise multiplier z after `clip_by_global_norm(C)` takes σ = z C.

    Args:
        std: standard deviation σ ≥ 0 of every coordinate, one number or one per client.
    """

    reads_run = False

    std: Number = number(least=0, per_client=True)

    @property
    def noise(self) -> Any:
        return self.std

    def of_vector(self, v: Array, sent: Sent) -> Array:
        return v + self.std * jax.random.normal(drawing_key(sent.key), v.shape, v.dtype)

    def feedback_scale(self, leaves: Leaves) -> float:
        raise UserError(
            "error_feedback: add_noise would be taken back by the client's next update; add the noise after it, "
            "chain(error_feedback(...), add_noise(...))"
        )

    def size(self, size: Size, leaves: Leaves) -> Size:
        return size.dense(leaves)
