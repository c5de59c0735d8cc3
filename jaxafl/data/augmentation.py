"""Random changes of training images, made inside the compiled step."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxafl.checks import check_flag, check_whole


@dataclasses.dataclass(frozen=True)
class CropAndFlip:
    """See `crop_and_flip`."""

    padding: int
    flip: bool

    def __call__(self, sample: jax.Array, key: jax.Array) -> jax.Array:
        """One raw image [H, W, C], changed; traced."""
        if sample.ndim != 3:
            raise ValueError(f"crop_and_flip needs images [H, W, C] with a channel axis; got shape {sample.shape}")
        places = 2 * self.padding + 1
        top, left, mirror = jax.random.randint(key, (3,), 0, jnp.array([places, places, 2], jnp.int32), jnp.int32)
        around = (self.padding, self.padding)
        padded = jnp.pad(sample, (around, around, (0, 0)))
        crop = jax.lax.dynamic_slice(padded, (top, left, jnp.int32(0)), sample.shape)
        return jnp.where(mirror == 1, crop[:, ::-1], crop) if self.flip else crop

    @property
    def description(self) -> str:
        """One line for people."""
        flip = " and horizontal flip" if self.flip else ""
        return f"random crop of the image padded by {self.padding} zeros{flip}"


def crop_and_flip(padding: int = 4, flip: bool = True) -> CropAndFlip:
    """Random crop and horizontal flip, the usual augmentation of CIFAR.

    The image is framed by `padding` rows and columns of raw zeros (black, before normalisation, as torchvision's
    `RandomCrop` does on raw images), cut back to its size at one of the (2·padding + 1)² places, all equally likely,
    and mirrored left to right with probability 1/2.

    Args:
        padding: Pixels on each side; 0 leaves the image where it is.
        flip: Whether to mirror.

    Returns:
        A traced function `(raw image [H, W, C], PRNG key) -> image of the same shape and dtype`, for
        `normalise(..., augment=crop_and_flip())`.

    Raises:
        ValueError: If `padding` is negative.
        TypeError: If `padding` is not a whole number, or `flip` not a bool.

    References:
        He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition", CVPR 2016, section 4.2.
    """
    check_whole("crop_and_flip", "padding", padding, 0)
    check_flag("crop_and_flip", "flip", flip)
    return CropAndFlip(int(padding), bool(flip))
