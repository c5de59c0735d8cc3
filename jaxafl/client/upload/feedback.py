"""Error feedback: each client adds what a compressor left out to its next update."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import optax

from jaxafl.client.upload.contract import Leaves, Sent, Size, Tree, Upload, as_upload, leaves_of
from jaxafl.options import UserError


class error_feedback(Upload):
    """Compresses p = Δ + e, and keeps the error for the client's next run: Δ ← C(p), e ← p - C(p), from e = 0.

    Errors stay bounded only if C is a contraction, such as `top_k` or `sign()`. `qsgd(levels=s)` becomes one by the
    factor 1 / (1 + min(d / s², √d / s)). e changes at the end of every run that the client completes, whether or not
    its update arrives; aborted runs leave it. It takes memory of d numbers per client.

    Args:
        compressor: C, an upload.

    Raises:
        ValueError: C is unbiased (`random_k()`), draws noise, or is no contraction.

    References:
        Karimireddy, Rebjock, Stich, Jaggi (2019), "Error feedback fixes SignSGD and other gradient compression
        schemes", ICML, Algorithm 1, with the learning rate inside Δ.
    """

    references = ("karimireddy2019",)

    compressor: Upload = dataclasses.field()

    @property
    def ends(self) -> bool:  # type: ignore[override]
        """Whether the compressor does."""
        return any(one.ends for one in self.compressor.in_order)

    @property
    def reads_run(self) -> bool:  # type: ignore[override]
        """Whether the compressor does."""
        return self.compressor.reads_run

    def __post_init__(self) -> None:
        if isinstance(self.compressor, optax.GradientTransformation):
            object.__setattr__(self, "compressor", as_upload(self.compressor))
        super().__post_init__()

    def init(self, params: Tree) -> Tree:
        return optax.tree.zeros_like(params), self.compressor.init(params)

    def update(self, delta: Tree, row: Tree, sent: Sent) -> tuple[Tree, Tree]:
        error, inner = row
        whole = jax.tree.map(jnp.add, delta, error)
        received, inner = self.compressor.update(whole, inner, sent)
        scale = self.compressor.feedback_scale(leaves_of(delta))
        if scale != 1:
            received = optax.tree.scale(scale, received)
        return received, (optax.tree.sub(whole, received), inner)

    def feedback_scale(self, leaves: Leaves) -> float:
        raise UserError("error_feedback: its compressor is error_feedback; write error_feedback(compressor) once")

    def size(self, size: Size, leaves: Leaves) -> Size:
        return self.compressor.size(size, leaves)

    def check(self, leaves: Leaves) -> None:
        self.compressor.check(leaves)
        self.compressor.feedback_scale(leaves)
