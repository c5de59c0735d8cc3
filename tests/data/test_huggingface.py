"""Datasets of Hugging Face, made here."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

import jaxafl as afl
from jaxafl.readers.pictures import pixels as to_array

datasets = pytest.importorskip("datasets")
images = pytest.importorskip("PIL.Image")
pytestmark = pytest.mark.extras
SAMPLES = 60


@pytest.fixture(scope="module")
def pixels() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (SAMPLES, 8, 8), dtype=np.uint8)


@pytest.fixture(scope="module")
def pictures(pixels: np.ndarray) -> Any:
    columns = {
        "image": [images.fromarray(one) for one in pixels],
        "label": [index % 3 for index in range(SAMPLES)],
        "writer": [f"w{index % 5}" for index in range(SAMPLES)],
    }
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"])}
    features = datasets.Features(kinds | {"writer": datasets.Value("string")})
    return datasets.Dataset.from_dict(columns, features=features)


def test_images_of_writers(pictures: Any, pixels: np.ndarray) -> None:
    both = datasets.DatasetDict({"train": pictures, "test": pictures.select(range(10))})
    found = afl.data.from_huggingface(both, x="image", y="label", client="writer")
    assert (found.num_clients, found.num_classes, found.x_test.shape) == (5, 3, (10, 8, 8, 1))
    np.testing.assert_array_equal(found.x_test[..., 0], pixels[:10])
    assert found.test_clients is not None and found.test_clients.tolist() == [0, 1, 2, 3, 4] * 2
    x, y = found.gather(found.arrays, 1, np.arange(3))
    np.testing.assert_array_equal(np.asarray(x)[..., 0], pixels[[1, 6, 11]])
    assert np.asarray(y).tolist() == [1, 0, 2]


def test_labels_may_be_numbers_or_words() -> None:
    table = datasets.Dataset.from_dict({"v": [[1.0, 2.0], [3.0, 4.0]] * 10, "kind": ["yes", "no"] * 10})
    found = afl.data.from_huggingface(table, x="v", y="kind", test_fraction=0.2)
    assert (found.x.shape, str(found.x.dtype), found.num_classes) == ((16, 2), "float32", 2)
    assert set(zip(found.x[:, 0].tolist(), found.y.tolist(), strict=True)) == {(1.0, 1), (3.0, 0)}


def test_texts_are_tokenised() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = {"[UNK]": 0, "the": 1, "cat": 2, "dog": 3}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    table = datasets.Dataset.from_dict({"a": ["the cat", "dog"] * 10, "b": ["cat", "the dog"] * 10, "y": [0, 1] * 10})
    both = datasets.DatasetDict({"train": table, "test": table.select(range(4))})
    found = afl.data.from_huggingface(both, x=["a", "b"], y="y", tokenizer=tokenizer)
    assert found.x_test["input_ids"][:2].tolist() == [[1, 2, 2], [3, 1, 3]]
    assert found.x["input_ids"].shape == (20, 3)


def table(rows: int = 6, **columns: Any) -> Any:
    return datasets.Dataset.from_dict({"y": [0, 1] * (rows // 2)} | columns)


def test_arrays_have_the_type_that_the_dataset_says() -> None:
    kinds = datasets.Features({"x": datasets.Array2D((2, 2), "uint8"), "y": datasets.Value("int64")})
    made = datasets.Dataset.from_dict({"x": [np.full((2, 2), 200, np.uint8)] * 4, "y": [0, 1] * 2}, features=kinds)
    for way in (made, made.with_format("numpy")):
        found = afl.data.from_huggingface(way, x="x", y="y", test_fraction=0.5)
        assert found.x.dtype == np.uint8 and found.preprocessing.description == "float32"


def test_classes_are_matched_by_their_names() -> None:
    def split(names: list[str], y: list[int]) -> Any:
        return table(x=[[float(one)] for one in y], y=y).cast_column("y", datasets.ClassLabel(names=names))

    both = datasets.DatasetDict({"train": split(["cat", "dog"], [0, 1] * 3), "test": split(["dog", "cat"], [0, 1] * 3)})
    found = afl.data.from_huggingface(both, x="x", y="y")
    assert found.y.tolist() == [0, 1] * 3 and found.y_test.tolist() == [1, 0] * 3 and found.num_classes == 2
    both["test"] = table(x=[[1.0]] * 6, y=["dog", "cat", "dog", "emu", "cat", "cat"])
    found = afl.data.from_huggingface(both, x="x", y="y")
    assert found.y_test.tolist() == [1, 0, 1, 2, 0, 0] and found.num_classes == 3


def test_rows_come_in_the_order_of_a_shuffled_and_filtered_dataset() -> None:
    made = table(10, x=[[float(one)] for one in range(10)]).shuffle(seed=1).filter(lambda row: row["x"][0] > 2)
    found = afl.data.from_huggingface(datasets.DatasetDict({"train": made, "test": made}), x="x", y="y")
    assert found.x[:, 0].tolist() == [row["x"][0] for row in made]
    assert found.y.tolist() == [int(one) % 2 for one in found.x[:, 0]]


def test_rows_without_a_client_are_refused() -> None:
    table = datasets.Dataset.from_dict({"v": [[1.0]] * 4, "y": [0, 1] * 2, "who": [1.0, float("nan"), 1.0, 2.0]})
    with pytest.raises(ValueError, match="sample 1"):
        afl.data.from_huggingface(table, x="v", y="y", client="who", test_fraction=0.5)


def test_clients_keep_their_names() -> None:
    made = table(x=[[0.0]] * 6, who=["eve", "bob", "eve", "bob", "ann", "ann"])
    found = afl.data.from_huggingface(made, x="x", y="y", client="who", test_fraction=0.5)
    assert found.client_names.tolist() == ["ann", "bob", "eve"]
    coded = made.cast_column("who", datasets.ClassLabel(names=["eve", "bob", "ann"]))
    test = table(2, x=[[0.0]] * 2, who=["zoe", "eve"])
    found = afl.data.from_huggingface(datasets.DatasetDict({"train": coded, "test": test}), x="x", y="y", client="who")
    assert found.client_names.tolist() == ["ann", "bob", "eve"] and found.test_clients.tolist() == [-1, 2]


def test_a_dataset_is_loaded_by_the_name_of_its_folder(pictures: Any, tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    both = datasets.DatasetDict({"train": pictures, "test": pictures.select(range(10))})
    both.save_to_disk(tmp_path / "saved")
    expected = afl.data.from_huggingface(both, x="image", y="label", client="writer")
    for split, part in both.items():
        (tmp_path / "files").mkdir(exist_ok=True)
        part.to_parquet(tmp_path / "files" / f"{split}.parquet")
    for name in (tmp_path / "saved", str(tmp_path / "files")):
        found = afl.data.from_huggingface(name, x="image", y="label", client="writer")
        np.testing.assert_array_equal(found.x_test, expected.x_test)
        assert found.client_names.tolist() == expected.client_names.tolist()
        assert found.counts.tolist() == expected.counts.tolist() and found.num_classes == 3


@pytest.mark.parametrize(
    ("change", "options", "error"),
    [
        ({}, {"test_fraction": None}, "test_fraction"),
        ({}, {"x": "word"}, "tokenizer"),
        ({}, {"x": ["x", "y"]}, "two columns"),
        ({"y": [0, 1, None, 1, 0, 1]}, {}, "labels"),
        ({"x": [[1.0], None, [1.0], [1.0], [1.0], [1.0]]}, {}, "inhomogeneous|samples"),
        ({"x": [[1.0], [1.0, 2.0]] * 3}, {}, "inhomogeneous|shape"),
    ],
)
def test_invalid_columns_and_options(change: dict[str, Any], options: dict[str, Any], error: str) -> None:
    made = table(**{"x": [[1.0]] * 6, "word": ["a"] * 6} | change)
    with pytest.raises((ValueError, TypeError), match=error):
        afl.data.from_huggingface(made, **{"x": "x", "y": "y", "test_fraction": 0.5} | options)


def test_transforms_and_missing_splits_raise() -> None:
    made = table(x=[[1.0]] * 6)
    with pytest.raises(ValueError, match=r"transform.*dataset\.map"):
        afl.data.from_huggingface(made.with_transform(lambda rows: rows), x="x", y="y", test_fraction=0.5)
    with pytest.raises(ValueError, match=r"no split 'test'"):
        afl.data.from_huggingface(datasets.DatasetDict({"train": made}), x="x", y="y")


COLOURS = np.zeros((4, 6, 3), np.uint8)
COLOURS[:, :3], COLOURS[:, 3:] = (255, 0, 0), (0, 255, 0)  # red beside green
PICTURE = images.fromarray(COLOURS)
GREY = np.arange(24, dtype=np.uint8).reshape(4, 6)
OPAQUE = np.dstack([COLOURS, np.full((4, 6), 255)])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [(mode, COLOURS) for mode in ("P", "RGB", "RGBX", "CMYK", "YCbCr", "HSV")] + [("RGBA", OPAQUE), ("PA", OPAQUE)],
)
def test_colours_and_opacity_are_those_of_every_mode(mode: str, expected: np.ndarray) -> None:
    found = to_array("toy", [(PICTURE.convert("P") if mode == "PA" else PICTURE).convert(mode)])
    assert found.shape == (1, *expected.shape) and found.dtype == np.uint8
    assert np.abs(found[0].astype(int) - expected).max() <= 2


@pytest.mark.parametrize(("mode", "channels"), [("P", 4), ("RGB", 4), ("L", 2)])
def test_a_transparent_colour_gives_an_opacity(mode: str, channels: int) -> None:
    picture = PICTURE.convert(mode)
    picture.info["transparency"] = picture.getpixel((0, 0))
    found = to_array("toy", [picture])
    assert found.shape == (1, 4, 6, channels) and found[0, 0, [0, 5], -1].tolist() == [0, 255]


@pytest.mark.parametrize(
    "grey", [GREY, GREY.astype(np.uint16) * 2000, GREY.astype(np.int32) * 70_000, GREY / np.float32(7)]
)
def test_images_of_one_channel_keep_their_values_and_several_get_the_channels_of_all(grey: np.ndarray) -> None:
    found = to_array("toy", [images.fromarray(grey)])
    assert found.shape == (1, 4, 6, 1) and found.dtype == grey.dtype
    np.testing.assert_array_equal(found[0, ..., 0], grey)
    both = to_array("toy", [images.fromarray(GREY), PICTURE.convert("P")])
    np.testing.assert_array_equal(both, np.stack([np.repeat(GREY[..., None], 3, axis=2), COLOURS]))
    with_opacity = to_array("toy", [images.fromarray(GREY).convert("LA"), PICTURE])
    assert with_opacity.shape == (2, 4, 6, 4) and (with_opacity[..., 3] == 255).all()
    turned = images.fromarray(GREY)
    turned.getexif()[0x0112] = 6  # a quarter to the right
    np.testing.assert_array_equal(to_array("toy", [turned])[0, ..., 0], np.rot90(GREY, -1))


def test_images_of_several_forms_raise_and_lists_of_images_are_samples() -> None:
    for other in (PICTURE.resize((3, 2)), images.fromarray(GREY.astype(np.float32))):
        with pytest.raises(ValueError, match="several sizes or depths"):
            to_array("toy", [PICTURE, other])
    for picture, expected in ((PICTURE.convert("P"), 255), (images.fromarray(GREY.astype(np.uint16) * 2000), 46_000)):
        data = afl.data.from_arrays([picture] * 4, [0, 1, 0, 1], ["a", "a", "b", "b"], test_fraction=0.5)
        assert data.example[0].dtype == np.float32 and data.example[0].max() == expected
