"""Conversion of Pillow images of any mode to arrays of brightness, colours and opacity."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from jaxafl.options import UserError

_SEEN_AS = {
    "1": "L", "L": "L", "LA": "LA", "La": "LA", "P": "RGB", "PA": "RGBA", "RGB": "RGB", "RGBX": "RGB", "RGBA": "RGBA",
    "RGBa": "RGBA", "CMYK": "RGB", "YCbCr": "RGB", "HSV": "RGB",
}  # fmt: skip
"""Mode -> mode with 8 bits per channel that shows an equal image."""
_WIDE = {"I;16": np.uint16, "I;16L": np.uint16, "I;16B": np.uint16, "I;16N": np.uint16, "I": np.int32, "F": np.float32}
_WITH_OPACITY = {"1": "LA", "L": "LA", "P": "RGBA", "RGB": "RGBA"}
"""Mode -> mode with 8 bits per channel and opacity, for images with a transparent colour."""


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
        images: images of one size, with one frame each.

    Returns:
        Array `[n, height, width, channels]`: 1 channel (brightness), 2 (brightness, opacity), 3 (RGB) or 4 (RGBA).

    Raises:
        ValueError: images have several sizes or frames, a mode has no meaning as pixels (LAB), or depths differ.
    """
    modes = set()
    found = []
    for place, image in enumerate(images):
        if not is_picture(image):
            raise UserError(f"{owner}: sample {place} is no image, but a {type(image).__name__}")
        modes.add(image.mode)
        found.append(_pixels(owner, place, image))
    if len(sizes := {array.shape[:2] for array in found}) > 1:
        wanted = min(sizes)
        raise UserError(
            f"{owner} holds images of several sizes (height, width): {', '.join(map(str, sorted(sizes)[:3]))}; write "
            f"them in one size, for example image.resize(({wanted[1]}, {wanted[0]}))"
        )
    if len({array.dtype for array in found}) > 1:
        raise UserError(
            f"{owner} holds images of different depths (modes {', '.join(sorted(modes))}), which have no common scale; "
            'write all in one mode, for example image.convert("L")'
        )
    colours = any(array.shape[2] > 2 for array in found)
    opacity = any(array.shape[2] % 2 == 0 for array in found)
    return np.stack([_with_channels(array, colours, opacity) for array in found])


def _pixels(owner: str, place: int, image: Any) -> np.ndarray:
    """Returns one image `[height, width, channels]` with the smallest number of channels that shows it."""
    from PIL import ImageOps

    if getattr(image, "is_animated", False) and image.format != "MPO":  # MPO files of cameras hold previews as frames
        raise UserError(
            f"{owner}: image {place} has {image.n_frames} frames; give the one that is meant, "
            'image.convert("RGB") after image.seek(0), or each as a sample of its own'
        )
    image = ImageOps.exif_transpose(image)
    by_mode = _WITH_OPACITY if "transparency" in image.info else _SEEN_AS
    mode = by_mode.get(image.mode, _SEEN_AS.get(image.mode))
    if mode is not None:
        array = np.asarray(image if image.mode == mode else image.convert(mode))
    elif image.mode in _WIDE:
        array = np.asarray(image).astype(_WIDE[image.mode])
    else:
        lab = (
            'for LAB ImageCms.profileToProfile(image, ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB"), '
            'outputMode="RGB")'
        )
        raise UserError(
            f"{owner}: image {place} has mode {image.mode}, which has no one meaning as pixels; convert all images to "
            f'RGB or L first: image.convert("RGB"), {lab}'
        )
    return array if array.ndim == 3 else array[..., None]


def _with_channels(array: np.ndarray, colours: bool, opacity: bool) -> np.ndarray:
    channels = array.shape[2]
    seen, opaque = array[..., : channels - (channels % 2 == 0)], array[..., channels - 1 :]
    if colours and seen.shape[2] == 1:
        seen = np.repeat(seen, 3, axis=2)
    if opacity:
        return np.concatenate([seen, opaque if channels % 2 == 0 else np.full_like(seen[..., :1], 255)], axis=2)
    return seen
