"""What happens to a raw batch inside the training step: augmentation, cast and normalisation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.checks import as_numbers, check_number


@dataclasses.dataclass(frozen=True, eq=False)
class Preprocessing:
    """Traced functions applied to a raw batch, and the words that describe them in a result file.

    Attributes:
        transform: Maps a raw batch `[B, ...]` to what the model sees; applied to training and test samples.
        augment: Maps `(raw sample, PRNG key)` to a raw sample of the same shape and dtype; applied under `vmap` to
            training samples only, before `transform`. `None` leaves training samples as they are.
        description: One line for people, for example `"x/255, mean 0.1307, std 0.3081"`.
    """

    transform: Callable[[Any], Any]
    augment: Callable[[Any, jax.Array], Any] | None = None
    description: str = ""


def normalise(
    scale: float = 255.0,
    mean: float | Sequence[float] = 0.0,
    std: float | Sequence[float] = 1.0,
    *,
    augment: Callable[[Any, jax.Array], Any] | None = None,
) -> Preprocessing:
    """Cast to float32 and compute `(x / scale - mean) / std`, the usual treatment of uint8 pixels.

    Args:
        scale: What a raw value is divided by first; 255 maps uint8 pixels to [0, 1].
        mean: Mean of the scaled values, one number or one per channel (the last axis).
        std: Standard deviation of the scaled values, one number or one per channel; positive.
        augment: Optional random transformation of a raw training sample, see `Preprocessing`.

    Returns:
        The preprocessing.

    Raises:
        ValueError: If `scale` or `std` is not positive, or a number is not finite.
        TypeError: If something is not a number.
    """
    check_number("normalise", "scale", scale, above=0)
    centre, width = (as_numbers("normalise", *given).astype(np.float32) for given in (("mean", mean), ("std", std)))
    if not np.isfinite(centre).all() or not ((width > 0) & np.isfinite(width)).all():
        raise ValueError(f"normalise: mean and std must be finite and std > 0, got mean={mean}, std={std}")

    def transform(x: Any) -> jax.Array:
        return (jnp.asarray(x).astype(jnp.float32) / scale - centre) / width

    words = f"x/{scale:g}"
    if np.any(centre != 0) or np.any(width != 1):
        words += f", mean {mean}, std {std}"
    return Preprocessing(transform, augment, words + _words(augment))


def cast(*, augment: Callable[[Any, jax.Array], Any] | None = None) -> Preprocessing:
    """Cast to float32 and change nothing else."""
    return Preprocessing(lambda x: jnp.asarray(x).astype(jnp.float32), augment, "float32" + _words(augment))


def as_is() -> Preprocessing:
    """Leave samples untouched, for example integer tokens."""
    return Preprocessing(lambda x: x, None, "none")


def _words(augment: Callable[[Any, jax.Array], Any] | None) -> str:
    """What is said of an augmentation: its `description`, else its name."""
    if augment is None:
        return ""
    name = getattr(augment, "__name__", type(augment).__name__)
    return f"; training samples: {getattr(augment, 'description', name)}"
