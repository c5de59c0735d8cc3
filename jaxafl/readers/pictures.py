"""Conversion of Pillow images of any mode to arrays of brightness, colours and opacity."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from jaxafl.options import UserError

_GREY = ("1", "L", "LA", "La")
_WIDE = {"I;16": np.uint16, "I": np.int32, "F": np.float32}
"""Beginning of a mode, without the order of bytes -> dtype of its values."""


def is_picture(sample: Any) -> bool:
    """Returns True if a sample is a Pillow image."""
    return hasattr(sample, "getbands") and hasattr(sample, "convert")


def pixels(owner: str, images: Iterable[Any]) -> np.ndarray:
    """Returns Pillow images as one array.

    An image of a palette (mode P) becomes its colours, black and white (1) becomes 0 and 255, and CMYK, YCbCr and HSV
    become RGB. A transparent colour gives an opacity. Images of 16 bits (I;16) are uint16, of 32 bits int32 (I) or
    float32 (F), with their values as stored. An image is rotated by its EXIF orientation. If some images have colours,
    images of one channel are repeated in all three; if some have an opacity, the others are opaque (255).

    Args:
        owner: the owner of the images, for messages.
        images: images of one size.

    Returns:
        Array `[n, height, width, channels]`: 1 channel (brightness), 2 (brightness, opacity), 3 (RGB) or 4 (RGBA).

    Raises:
        ValueError: images have several sizes or depths.
    """
    found = [_converted(image) for image in images]
    bands = {band for image in found for band in image.getbands()}
    mode = ("RGB" if "R" in bands else "L") + "A" * ("A" in bands)
    arrays = [_pixels(image, mode) for image in found]
    forms = {(array.shape[:2], array.dtype.name) for array in arrays}
    if len(forms) > 1:
        raise UserError(
            f"{owner} holds images of several sizes or depths: {', '.join(map(str, sorted(forms)[:3]))}; expected one. "
            'Write all in one form, for example image.convert("RGB").resize((32, 32))'
        )
    return np.stack(arrays)


def _converted(image: Any) -> Any:
    """Returns an image in the mode with the fewest channels that shows it."""
    from PIL import ImageOps

    image = ImageOps.exif_transpose(image)
    mode = ("L" if image.mode in _GREY else "RGB") + "A" * image.has_transparency_data
    return image if image.mode[:4] in _WIDE else image.convert(mode)


def _pixels(image: Any, mode: str) -> np.ndarray:
    """Returns an image `[height, width, channels]` in a mode, or with its values of more than 8 bits."""
    wide = _WIDE.get(image.mode[:4])
    array = np.asarray(image).astype(wide) if wide else np.asarray(image.convert(mode))
    return array if array.ndim == 3 else array[..., None]
