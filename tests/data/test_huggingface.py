"""Datasets of Hugging Face, made here."""

from __future__ import annotations

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


def test_a_pooled_dataset_is_partitioned_and_trains(pictures: Any) -> None:
    both = datasets.DatasetDict({"train": pictures, "test": pictures.select(range(10))})
    pooled = afl.data.from_huggingface(both, x="image", y="label")
    data = pooled.partition(afl.data.iid(4))
    clock = afl.clock.synchronous()
    client = afl.Client(learning_rate=0.1, steps=1, batch_size=4)
    sim = afl.Simulation(data, afl.models.logistic(3), client, afl.server.fedavg(), clock)
    assert np.isfinite(sim.run(2).loss.values).all()


def test_numbers_and_words() -> None:
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
def test_what_cannot_work_is_said(how: dict[str, Any], said: str, pictures: Any) -> None:
    with pytest.raises(ValueError, match=said):
        afl.data.from_huggingface(pictures, **how)


def test_what_is_no_dataset_is_said(pictures: Any) -> None:
    with pytest.raises(TypeError, match=r"takes a datasets\.Dataset or DatasetDict, got ndarray"):
        afl.data.from_huggingface(np.zeros(3), x="a", y="b", test_fraction=0.2)
    with pytest.raises(ValueError, match=r"there is no split 'test'; there are train; test_fraction"):
        afl.data.from_huggingface(datasets.DatasetDict({"train": pictures}), x="image", y="label")
    ragged = datasets.Dataset.from_dict({"v": [[1.0], [1.0, 2.0]] * 5, "y": [0, 1] * 5})
    with pytest.raises(ValueError, match=r"numbers of one shape, got float64 of the shapes \(1,\), \(2,\)"):
        afl.data.from_huggingface(ragged, x="v", y="y", test_fraction=0.2)
    with pytest.raises(TypeError, match="labels must be integers or words, got float64"):
        afl.data.from_huggingface(datasets.Dataset.from_dict({"v": [1.0], "y": [0.5]}), x="v", y="y", test_fraction=0.5)
