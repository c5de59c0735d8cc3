"""Images of Pillow mean what is seen, whatever mode they are stored in."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

import jaxafl as afl
from jaxafl.readers.pictures import pixels

images = pytest.importorskip("PIL.Image")
pytestmark = pytest.mark.extras
COLOURS = np.zeros((4, 6, 3), np.uint8)
COLOURS[:, :3], COLOURS[:, 3:] = (255, 0, 0), (0, 255, 0)  # red beside green
PICTURE = images.fromarray(COLOURS)
GREY = np.arange(24, dtype=np.uint8).reshape(4, 6)


@pytest.mark.parametrize("mode", ["P", "RGB", "RGBX", "CMYK", "YCbCr", "HSV"])
def test_colours_are_red_green_and_blue_in_every_mode(mode: str) -> None:
    found = pixels("toy", [PICTURE.convert(mode)])
    assert found.shape == (1, 4, 6, 3) and found.dtype == np.uint8
    assert np.abs(found[0].astype(int) - COLOURS).max() <= 2


@pytest.mark.parametrize("mode", ["RGBA", "RGBa", "PA"])
def test_colours_keep_their_opacity(mode: str) -> None:
    through = {"PA": "P", "RGBa": "RGBA"}.get(mode, mode)
    found = pixels("toy", [PICTURE.convert(through).convert(mode)])
    np.testing.assert_array_equal(found[0], np.dstack([COLOURS, np.full((4, 6), 255)]))


def test_a_palette_with_a_transparent_colour_has_an_opacity() -> None:
    picture = PICTURE.convert("P")
    picture.info["transparency"] = picture.getpixel((0, 0))
    found = pixels("toy", [picture])
    assert found[0, 0, 0, 3] == 0 and found[0, 0, 5].tolist() == [0, 255, 0, 255]


@pytest.mark.parametrize(("mode", "channels"), [("RGB", 4), ("L", 2), ("1", 2)])
def test_a_transparent_colour_gives_an_opacity_in_every_mode(mode: str, channels: int) -> None:
    picture = PICTURE.convert(mode, **({"dither": 0} if mode == "1" else {}))
    picture.info["transparency"] = picture.getpixel((0, 0))
    found = pixels("toy", [picture])
    assert found.shape == (1, 4, 6, channels)
    if mode != "1":  # both colours are in the same half
        assert found[0, 0, 0, -1] == 0 and found[0, 0, 5, -1] == 255


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "PNG"])
def test_an_image_of_several_frames_is_refused(kind: str) -> None:
    written = io.BytesIO()
    PICTURE.save(written, kind, save_all=True, append_images=[images.fromarray(GREY).convert("RGB")])
    with images.open(written) as picture, pytest.raises(ValueError, match=r"image 0 has 2 frames; give the one"):
        pixels("toy", [picture])
    PICTURE.save(written := io.BytesIO(), kind)
    assert pixels("toy", [images.open(written)]).shape == (1, 4, 6, 3)


@pytest.mark.parametrize(
    ("picture", "dtype", "expected"),
    [
        (images.fromarray(GREY), np.uint8, GREY),
        (images.fromarray(GREY > 11), np.uint8, 255 * (GREY > 11)),
        (images.fromarray(GREY.astype(np.uint16) * 2000), np.uint16, GREY.astype(int) * 2000),
        (images.fromarray(GREY.astype(np.int32) * 70_000), np.int32, GREY.astype(int) * 70_000),
        (images.fromarray(GREY.astype(np.float32) / 7), np.float32, GREY.astype(np.float32) / 7),
        (images.fromarray(GREY.astype(">u2") * 9), np.uint16, GREY.astype(int) * 9),
    ],
)
def test_images_of_one_channel_keep_their_values(picture: Any, dtype: Any, expected: np.ndarray) -> None:
    found = pixels("toy", [picture])
    assert found.shape == (1, 4, 6, 1) and found.dtype == dtype
    np.testing.assert_array_equal(found[0, ..., 0], expected)


def test_images_of_several_modes_get_the_channels_of_all() -> None:
    grey = images.fromarray(GREY)
    found = pixels("toy", [grey, PICTURE.convert("P")])
    np.testing.assert_array_equal(found, np.stack([np.repeat(GREY[..., None], 3, axis=2), COLOURS]))
    with_opacity = pixels("toy", [grey.convert("LA"), PICTURE])
    assert with_opacity.shape == (2, 4, 6, 4) and (with_opacity[..., 3] == 255).all()
    np.testing.assert_array_equal(with_opacity[0, ..., 1], GREY)
    assert pixels("toy", [grey, grey.convert("LA")]).shape == (2, 4, 6, 2)


def test_an_image_is_turned_as_its_orientation_says() -> None:
    turned = images.fromarray(GREY)
    turned.getexif()[0x0112] = 6  # a quarter to the right
    np.testing.assert_array_equal(pixels("toy", [turned])[0, ..., 0], np.rot90(GREY, -1))


@pytest.mark.parametrize(
    ("pictures", "said"),
    [
        ([PICTURE, PICTURE.resize((3, 2))], r"several sizes \(height, width\): \(2, 3\), \(4, 6\).*resize\(\(3, 2\)\)"),
        ([images.fromarray(GREY), images.fromarray(GREY.astype(np.float32))], "different depths .modes F, L."),
        ([images.new("LAB", (6, 4))], "image 0 has mode LAB.*ImageCms"),
        ([PICTURE, None], "sample 1 is no image, but a NoneType"),
    ],
)
def test_ambiguous_images_are_refused(pictures: list[Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        pixels("toy", pictures)


def test_arrays_may_be_lists_of_images() -> None:
    pictures = [PICTURE.convert("P")] * 4
    found = afl.data.from_arrays(pictures, [0, 1, 0, 1], ["a", "a", "b", "b"], test_fraction=0.5)
    np.testing.assert_array_equal(found.x_test[0], COLOURS)
    deep = [images.fromarray(GREY.astype(np.uint16) * 2000)] * 4
    found = afl.data.from_arrays(deep, [0, 1, 0, 1], ["a", "a", "b", "b"], test_fraction=0.5)
    assert found.example[0].dtype == np.float32 and found.example[0].max() == 46_000
