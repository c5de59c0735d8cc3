"""Preprocessing of a raw batch inside the training step: augmentation, cast and normalisation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.options import Part, UserError, as_numbers, check_number, check_options, static


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """Traceable functions applied to a raw batch, and their description for result files.

    Attributes:
        transform: maps a raw batch `[B, ...]` to the input of the model; applied to training and test samples.
        augment: maps `(raw sample, PRNG key)` to a raw sample of equal shape and dtype; applied under `vmap` to
            training samples only, before `transform`. `None` means no augmentation.
        description: one line, for example `"x/255, mean 0.1307, std 0.3081"`.
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
    """Returns a preprocessing that casts to float32 and computes `(x / scale - mean) / std`, as usual for uint8 pixels.

    Args:
        scale: divisor of raw values; 255 maps uint8 pixels to [0, 1].
        mean: mean of the scaled values, one number or one per channel (the last axis).
        std: standard deviation of the scaled values, one number or one per channel; positive.
        augment: optional random transformation of a raw training sample, see `Preprocessing`.

    Raises:
        ValueError: `scale` or `std` is not positive, or a number is not finite.
        TypeError: `scale`, `mean` or `std` is not a number.
    """
    check_number("normalise", "scale", scale, above=0)
    centre, width = (as_numbers("normalise", *given).astype(np.float32) for given in (("mean", mean), ("std", std)))
    if not np.isfinite(centre).all() or not ((width > 0) & np.isfinite(width)).all():
        raise UserError(f"normalise: mean={mean}, std={std} is invalid; expected finite numbers and std > 0")
    words = f"x/{scale:g}"
    if np.any(centre != 0) or np.any(width != 1):
        words += f", mean {mean}, std {std}"
    transform = _Normalise(scale, *(tuple(part.tolist()) if part.ndim else float(part) for part in (centre, width)))
    return Preprocessing(transform, augment, words + _words(augment))


def cast(*, augment: Callable[[Any, jax.Array], Any] | None = None) -> Preprocessing:
    """Returns a preprocessing that only casts to JAX's float type: float32, or float64 if `jax_enable_x64` is set now.

    Args:
        augment: optional random transformation of a raw training sample, see `Preprocessing`.
    """
    dtype = jnp.result_type(float)
    return Preprocessing(_Cast(dtype), augment, dtype.name + _words(augment))


def as_is() -> Preprocessing:
    """Returns a preprocessing that changes nothing, for example for integer tokens."""
    return Preprocessing(_identity, None, "none")


def as_integers(x: Any) -> Any:
    """Casts a raw batch of tokens, an array or a pytree of arrays, to int32; traceable."""
    return jax.tree.map(lambda leaf: jnp.int32(leaf), x)


class crop_and_flip(Part):
    """Random crop and horizontal flip, the usual augmentation of CIFAR: `normalise(..., augment=crop_and_flip())`.

    The image is padded by `padding` rows and columns of raw zeros on each side (black, before normalisation, as in
    torchvision's `RandomCrop`). A window of the original size is cut out at one of (2·padding + 1)² equally likely
    places, and mirrored left to right with probability 1/2.

    Args:
        padding: pixels on each side; 0 means no crop.
        flip: if True, mirror half of the images.

    Raises:
        ValueError: `padding` is negative.
        TypeError: `padding` is not a whole number, or `flip` not a bool.

    References:
        He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition", CVPR 2016, section 4.2.
    """

    padding: int = static(default=4, least=0)
    flip: bool = static(default=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self)

    def __call__(self, sample: jax.Array, key: jax.Array) -> jax.Array:
        """Augments one raw image [H, W, C] without change of shape and dtype; traceable."""
        places = 2 * self.padding + 1
        top, left, mirror = jax.random.randint(key, (3,), 0, jnp.array([places, places, 2], jnp.int32), jnp.int32)
        padded = jnp.pad(sample, ((self.padding, self.padding), (self.padding, self.padding), (0, 0)))
        crop = jax.lax.dynamic_slice(padded, (top, left, jnp.int32(0)), sample.shape)
        return jnp.where(mirror == 1, crop[:, ::-1], crop) if self.flip else crop

    @property
    def description(self) -> str:
        """One line for the description of the dataset."""
        flip = " and horizontal flip" if self.flip else ""
        return f"random crop of the image padded by {self.padding} zeros{flip}"


# Transformations compare by their options. Compared by identity, equal datasets could not share a compiled program.


@dataclasses.dataclass(frozen=True)
class _Normalise:
    scale: float
    mean: float | tuple[float, ...]
    std: float | tuple[float, ...]

    def __call__(self, x: Any) -> jax.Array:
        mean, std = np.asarray(self.mean, np.float32), np.asarray(self.std, np.float32)
        raw = jnp.asarray(x)
        found = (raw.astype(jnp.float32) / self.scale - mean) / std
        if found.shape != raw.shape:  # NumPy would make channels of them
            raise UserError(
                f"normalise: mean and std have {max(mean.size, std.size)} numbers for samples {[*raw.shape[1:]]}; "
                "expected one per channel, the last axis"
            )
        return found


@dataclasses.dataclass(frozen=True)
class _Cast:
    dtype: np.dtype

    def __call__(self, x: Any) -> jax.Array:
        return jnp.asarray(x).astype(self.dtype)


def _identity(x: Any) -> Any:
    return x


def _words(augment: Callable[[Any, jax.Array], Any] | None) -> str:
    """Describes an augmentation by its `description`, else by its name."""
    if augment is None:
        return ""
    name = getattr(augment, "__name__", type(augment).__name__)
    return f"; training samples: {getattr(augment, 'description', name)}"
