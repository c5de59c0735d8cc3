"""Datasets of Hugging Face, made here."""

from __future__ import annotations

import importlib.util
import pathlib
from typing import Any

import numpy as np
import pytest

import jaxafl as afl

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


def test_some_is_held_out_of_a_single_dataset(pictures: Any) -> None:
    found = afl.data.from_huggingface(pictures, x="image", y="label", client="writer", test_fraction=0.25, seed=1)
    assert found.counts.tolist() == [9] * 5 and len(found.y_test) == 15
    assert found.test_clients is not None and np.bincount(found.test_clients).tolist() == [3] * 5


@pytest.mark.slow
def test_a_pooled_dataset_is_partitioned_and_trains(pictures: Any) -> None:
    both = datasets.DatasetDict({"train": pictures, "test": pictures.select(range(10))})
    pooled = afl.data.from_huggingface(both, x="image", y="label")
    data = pooled.partition(afl.data.iid(4))
    clock = afl.clock.synchronous()
    client = afl.Client(learning_rate=0.1, steps=1, batch_size=4)
    sim = afl.Simulation(data, afl.models.logistic(3), client, afl.server.fedavg(), clock)
    assert np.isfinite(sim.run(2).loss.values).all()


def test_labels_may_be_numbers_or_words() -> None:
    table = datasets.Dataset.from_dict({"v": [[1.0, 2.0], [3.0, 4.0]] * 10, "kind": ["yes", "no"] * 10})
    found = afl.data.from_huggingface(table, x="v", y="kind", test_fraction=0.2)
    assert (found.x.shape, str(found.x.dtype), found.num_classes) == ((16, 2), "float32", 2)
    assert set(zip(found.x[:, 0].tolist(), found.y.tolist(), strict=True)) == {(1.0, 1), (3.0, 0)}


def test_labels_may_be_targets_of_a_regression_or_several() -> None:
    table = datasets.Dataset.from_dict({"v": [1.0, 2.0] * 10, "price": [0.5, 1.5] * 10, "tags": [[0, 1], [-1, 4]] * 10})
    found = afl.data.from_huggingface(table, x="v", y="price", test_fraction=0.2)
    assert (found.num_classes, str(found.y.dtype), np.unique(found.y - found.x).tolist()) == (None, "float32", [-0.5])
    found = afl.data.from_huggingface(table, x="v", y="tags", test_fraction=0.2)
    assert (found.num_classes, found.y.shape, found.y.min()) == (5, (16, 2), -1)


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


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            {"x": "pixels", "y": "label", "test_fraction": 0.2},
            "no column 'pixels'; there are image, label, writer",
        ),
        ({"x": "image", "y": "label"}, "a single Dataset needs test_fraction"),
        ({"x": "writer", "y": "label", "test_fraction": 0.2}, "holds texts, which need a tokenizer"),
        ({"x": ["image", "image"], "y": "label", "test_fraction": 0.2}, "only texts can come from two columns"),
    ],
)
def test_invalid_options_raise(how: dict[str, Any], said: str, pictures: Any) -> None:
    with pytest.raises(ValueError, match=said):
        afl.data.from_huggingface(pictures, **how)


def test_an_unsupported_dataset_raises(pictures: Any) -> None:
    with pytest.raises(TypeError, match=r"takes a datasets\.Dataset or DatasetDict, got ndarray"):
        afl.data.from_huggingface(np.zeros(3), x="a", y="b", test_fraction=0.2)
    with pytest.raises(ValueError, match=r"there is no split 'test'; there are train; test_fraction"):
        afl.data.from_huggingface(datasets.DatasetDict({"train": pictures}), x="image", y="label")
    ragged = datasets.Dataset.from_dict({"v": [[1.0], [1.0, 2.0]] * 5, "y": [0, 1] * 5})
    with pytest.raises(ValueError, match=r"numbers of one shape, got float64 of the shapes \(1,\), \(2,\)"):
        afl.data.from_huggingface(ragged, x="v", y="y", test_fraction=0.2)


def table(rows: int = 6, **columns: Any) -> Any:
    return datasets.Dataset.from_dict({"y": [0, 1] * (rows // 2)} | columns)


def test_a_palette_is_read_as_its_colours_in_every_split() -> None:
    colours = np.zeros((4, 6, 3), np.uint8)
    colours[:, :3], colours[:, 3:] = (255, 0, 0), (0, 255, 0)
    picture, kinds = images.fromarray(colours), datasets.Features({"x": datasets.Image(), "y": datasets.Value("int64")})
    train, test = (
        datasets.Dataset.from_dict({"x": [one] * 2, "y": [0, 1]}, features=kinds)
        for one in (picture.convert("P"), picture.convert("L"))
    )
    both = datasets.DatasetDict({"train": train.with_format("numpy"), "test": test})
    found = afl.data.from_huggingface(both, x="x", y="y")
    np.testing.assert_array_equal(found.x[0], colours)
    np.testing.assert_array_equal(found.x_test[0], np.repeat(np.asarray(picture.convert("L"))[..., None], 3, axis=2))


def test_an_image_of_16_bits_is_a_number_not_a_token() -> None:
    deep = images.fromarray(np.arange(16, dtype=np.uint16).reshape(4, 4) * 4000)
    kinds = datasets.Features({"x": datasets.Image(), "y": datasets.Value("int64")})
    made = datasets.Dataset.from_dict({"x": [deep] * 4, "y": [0, 1, 0, 1]}, features=kinds)
    data = afl.data.from_huggingface(made, x="x", y="y", test_fraction=0.5).partition(afl.data.iid(1))
    assert data.example[0].dtype == np.float32 and data.example[0].max() == 60_000


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
    both["test"] = table(x=[[1.0]] * 6)
    with pytest.raises(ValueError, match=r"named classes in some splits, and bare numbers in 'test'.*ClassLabel"):
        afl.data.from_huggingface(both, x="x", y="y")


def test_rows_come_in_the_order_of_a_shuffled_and_filtered_dataset() -> None:
    made = table(10, x=[[float(one)] for one in range(10)]).shuffle(seed=1).filter(lambda row: row["x"][0] > 2)
    found = afl.data.from_huggingface(datasets.DatasetDict({"train": made, "test": made}), x="x", y="y")
    assert found.x[:, 0].tolist() == [row["x"][0] for row in made]
    assert found.y.tolist() == [int(one) % 2 for one in found.x[:, 0]]


def test_clients_keep_their_names() -> None:
    made = table(x=[[0.0]] * 6, who=["eve", "bob", "eve", "bob", "ann", "ann"])
    found = afl.data.from_huggingface(made, x="x", y="y", client="who", test_fraction=0.5)
    assert found.client_names.tolist() == ["ann", "bob", "eve"]
    coded = made.cast_column("who", datasets.ClassLabel(names=["eve", "bob", "ann"]))
    test = table(2, x=[[0.0]] * 2, who=["zoe", "eve"])
    found = afl.data.from_huggingface(datasets.DatasetDict({"train": coded, "test": test}), x="x", y="y", client="who")
    assert found.client_names.tolist() == ["ann", "bob", "eve"] and found.test_clients.tolist() == [-1, 2]
    numbered = datasets.DatasetDict({"train": table(x=[[0.0]] * 6, who=[0, 0, 0, 1, 1, 1]), "test": test})
    with pytest.raises(TypeError, match="got both"):
        afl.data.from_huggingface(numbered, x="x", y="y", client="who")


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"y": [0, 1, -1, -1, 0, 1]}, r"2 of 6 labels in 'y' of the split 'train' are negative.*test='validation'"),
        ({"y": [0, 1, None, 1, 0, 1]}, r"1 of 6 labels in 'y' .* are missing .None."),
        ({"x": [[1.0], None, [1.0], [1.0], [1.0], [1.0]]}, r"sample 1 in 'x' of the split 'train' is missing"),
        ({"x": [[float("nan")]] * 6}, "sample 0 is NaN or infinite"),
        ({"x": [{"bytes": b"1", "path": None}] * 6}, r"encoded images.*datasets\.Image\(\)"),
    ],
)
def test_missing_labels_and_samples_are_said(columns: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        afl.data.from_huggingface(table(**{"x": [[1.0]] * 6} | columns), x="x", y="y", test_fraction=0.5)


def test_streams_and_transforms_are_refused() -> None:
    made = table(x=[[1.0]] * 6)
    with pytest.raises(ValueError, match=r"is a stream \(IterableDataset\).*from_list\(list\(stream\.take"):
        afl.data.from_huggingface(made.to_iterable_dataset(), x="x", y="y")
    with pytest.raises(ValueError, match=r"has a transform.*dataset\.map"):
        afl.data.from_huggingface(made.with_transform(lambda rows: rows), x="x", y="y", test_fraction=0.5)


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


def test_a_name_that_cannot_be_loaded_is_a_clear_error(tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        OSError, match=r"from_huggingface: 'nobody/nothing' could not be loaded: .*\. Check the name; on a"
    ):
        afl.data.from_huggingface("nobody/nothing", x="x", y="y")
    (tmp_path / "train.csv").write_text("x,y\n1,0\n")
    with pytest.raises(ValueError, match=r"could not be loaded: BuilderConfig 'other' not found"):
        afl.data.from_huggingface(tmp_path, x="x", y="y", config="other")
    with pytest.raises(ValueError, match="config='rte' is for a dataset given by name"):
        afl.data.from_huggingface(table(x=[[1.0]] * 6), x="x", y="y", config="rte", test_fraction=0.5)


def test_a_name_without_the_package_names_the_extra(monkeypatch: Any) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r'from_huggingface\(.mnist.\) needs .*: pip install "jaxafl\[hf\]"'):
        afl.data.from_huggingface("mnist", x="image", y="label")
