"""Compression of updates: few coordinates, or few bits per coordinate."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from jaxafl.client.upload.contract import Array, Leaves, Sent, Size, VectorUpload
from jaxafl.device.keys import drawing_key
from jaxafl.options import UserError, check_number, static


def largest(keys: Array, count: int) -> Array:
    """Returns a mask of the `count` largest of unsigned integers [d]; of equal ones the first.

    It finds the smallest of them bit by bit, by counting, and needs no sort.
    """

    def raised(position: Array, least: Array) -> Array:
        higher = least | (jnp.ones((), keys.dtype) << (bits - 1 - position).astype(keys.dtype))
        return jnp.where(jnp.sum(keys >= higher, dtype=jnp.int32) >= count, higher, least)

    bits = 8 * keys.dtype.itemsize
    least = jax.lax.fori_loop(0, bits, raised, jnp.zeros((), keys.dtype))
    equal = keys == least
    missing = count - jnp.sum(keys > least, dtype=jnp.int32)
    return (keys > least) | (equal & (jnp.cumsum(equal, dtype=jnp.int32) <= missing))


class _Sparse(VectorUpload):
    """Base class of uploads of k coordinates.

    Args:
        share: k / d in (0, 1]; k = round(share · d), and at least 1. Give either `share` or `count`.
        count: k.
    """

    reads_run = False

    share: float | None = static(default=None, kw_only=True)  # by name, since top_k(1) could mean either
    count: int | None = static(default=None, kw_only=True)

    def kept(self, entries: int) -> int:
        """Returns k for updates of d = `entries` numbers."""
        return self.count if self.share is None and self.count else max(1, round((self.share or 0) * entries))

    def check(self, leaves: Leaves) -> None:
        if (self.share is None) == (self.count is None):
            raise ValueError(f"{self.name}: give either share or count, got share={self.share}, count={self.count}")
        if self.share is not None:
            check_number(self.name, "share", self.share, above=0, most=1)
        if self.count is not None and self.count > sum(leaves):
            raise UserError(f"{self.name}: count={self.count} exceeds the {sum(leaves)} numbers of an update")


class top_k(_Sparse):
    """Keeps the k coordinates of largest absolute value and sets the others to 0; of equal ones the first.

    Sends k values and their indices: k (b + ⌈log₂ d⌉) bits, b per value.

    Args:
        share: k / d in (0, 1]; k = round(share · d), and at least 1. Give either `share` or `count`.
        count: k.

    References:
        Stich, Cordonnier, Jaggi (2018), "Sparsified SGD with memory", NeurIPS, Definition 2.2.
    """

    references = ("stich2018",)

    def bound(self, norm: Any) -> Any:
        return norm  # a number of them becomes 0

    def of_vector(self, v: Array, sent: Sent) -> Array:
        count = self.kept(v.size)
        if 50 * count <= v.size:  # a partial sort is then faster than counting
            indices = jax.lax.top_k(jnp.abs(v), count)[1]
            return jnp.zeros_like(v).at[indices].set(v[indices])
        unsigned = f"uint{8 * v.dtype.itemsize}"
        return jnp.where(largest(jax.lax.bitcast_convert_type(jnp.abs(v), unsigned), count), v, 0)

    def size(self, size: Size, leaves: Leaves) -> Size:
        entries = min(size.entries, self.kept(sum(leaves)))
        return size._replace(entries=entries, index_bits=math.ceil(math.log2(sum(leaves))))


class random_k(_Sparse):
    """Keeps k coordinates, drawn uniformly without replacement, and sets the others to 0.

    Kept values are multiplied by d / k if `unbiased`. Sends k values and the 64 bits of a key: k b + 64 bits.

    Args:
        share: k / d in (0, 1]; k = round(share · d), and at least 1. Give either `share` or `count`.
        count: k.
        unbiased: if True, the expectation is Δ.

    References:
        Stich, Cordonnier, Jaggi (2018), "Sparsified SGD with memory", NeurIPS, Definition 2.2.
    """

    references = ("stich2018",)

    unbiased: bool = static(default=True, kw_only=True)

    def of_vector(self, v: Array, sent: Sent) -> Array:
        count = self.kept(v.size)
        drawn = largest(jax.random.bits(drawing_key(sent.key), v.shape), count)
        return jnp.where(drawn, v * (v.size / count if self.unbiased else 1), 0)

    def feedback_scale(self, leaves: Leaves) -> float:
        if self.unbiased:
            raise UserError("error_feedback: random_k is unbiased, so that errors would grow; write unbiased=False")
        return 1.0

    def size(self, size: Size, leaves: Leaves) -> Size:
        if size.entries != sum(leaves):
            return size  # of a sparse update, zeros may be drawn
        return size._replace(entries=self.kept(sum(leaves)), extra=size.extra + 64)


class sign(VectorUpload):
    """Sends signs: Δ ← (‖Δ‖₁ / d) sign(Δ) with `scale`, else sign(Δ); sign(0) = 0.

    Sends one bit per number, and 32 for the scale.

    Args:
        scale: if True, signs are multiplied by the mean absolute value.

    References:
        Karimireddy, Rebjock, Stich, Jaggi (2019), "Error feedback fixes SignSGD and other gradient compression
        schemes", ICML, section 2.
    """

    reads_run = False

    references = ("karimireddy2019",)

    scale: bool = static(default=True)

    def of_vector(self, v: Array, sent: Sent) -> Array:
        return jnp.sign(v) * (jnp.abs(v).mean() if self.scale else 1)

    def feedback_scale(self, leaves: Leaves) -> float:
        if not self.scale:
            raise UserError("error_feedback: sign(scale=False) is no contraction; write sign()")
        return 1.0

    def size(self, size: Size, leaves: Leaves) -> Size:
        return size._replace(bits=1, extra=size.extra + 32 * self.scale, scaled=self.scale)


class qsgd(VectorUpload):
    """Rounds to s levels at random: Δ_j ← ‖Δ‖₂ sign(Δ_j) l_j / s.

    l_j = ⌊r⌋ + Bernoulli(r - ⌊r⌋) with r = s |Δ_j| / ‖Δ‖₂, so that the expectation is Δ. Sends a sign, a level and the
    norm: d (1 + ⌈log₂(s + 1)⌉) + 32 bits.

    Args:
        levels: s ≥ 1.

    References:
        Alistarh, Grubic, Li, Tomioka, Vojnovic (2017), "QSGD: Communication-efficient SGD via gradient quantization and
        encoding", NeurIPS, section 3.1.
    """

    reads_run = False

    references = ("alistarh2017",)

    levels: int = static(default=16)

    def of_vector(self, v: Array, sent: Sent) -> Array:
        norm = jnp.linalg.norm(v)
        ratio = self.levels * jnp.abs(v) / jnp.where(norm > 0, norm, 1)
        lower = jnp.floor(ratio)
        level = lower + (jax.random.uniform(drawing_key(sent.key), v.shape, v.dtype) < ratio - lower)
        return jnp.sign(v) * norm * level / self.levels

    def feedback_scale(self, leaves: Leaves) -> float:
        d = sum(leaves)
        return 1 / (1 + min(d / self.levels**2, math.sqrt(d) / self.levels))

    def size(self, size: Size, leaves: Leaves) -> Size:
        return size._replace(bits=1 + math.ceil(math.log2(self.levels + 1)), extra=size.extra + 32, scaled=True)
