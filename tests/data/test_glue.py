"""GLUE from tsv files and from TFDS, tokenised: what is read, what is cut, and what is said when it cannot be."""

from __future__ import annotations

import gzip
import pathlib
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("tokenizers", reason="tokenizers is not installed (the bert extra)")

from jaxafl.data import dirichlet, glue_mrpc, glue_rte, glue_sst2
from jaxafl.readers.pretrained import load_tokenizer, tokenise
from tests.tiny_bert import WORDS

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
PAD, UNKNOWN, CLS, SEP, GOOD, BAD, FILM = range(7)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory) -> str:
    """A checkpoint of which only vocab.txt is there."""
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return str(folder)


def write(path: pathlib.Path, *rows: str, newline: str = "\n") -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = (newline.join(rows) + newline).encode()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def sst2(directory: pathlib.Path, *rows: str, header: str = "sentence\tlabel") -> None:
    for part in ("train", "dev"):
        write(directory / "glue" / "SST-2" / f"{part}.tsv", header, *rows)


def test_a_pair_is_cls_first_sep_second_sep_with_padding_to_the_longest(vocabulary):
    found = tokenise(load_tokenizer(vocabulary), [("Good film", "the bad film"), ("cafés", "xyz")], 20)
    film, the, s, cafe = FILM, 7, 10, 12
    assert found.arrays["input_ids"].tolist() == [
        [CLS, GOOD, film, SEP, the, BAD, film, SEP],
        [CLS, cafe, s, SEP, UNKNOWN, SEP, PAD, PAD],
    ]
    assert found.arrays["token_type_ids"].tolist() == [[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1, 0, 0]]
    assert found.arrays["attention_mask"].tolist() == [[1] * 8, [1] * 6 + [0] * 2]
    assert [array.dtype for array in found.arrays.values()] == [np.uint16, np.uint8, np.uint8]
    assert not found.truncated.any()


def test_longer_examples_lose_the_end_of_their_longer_sentence_and_are_counted(vocabulary):
    sentences = [("good " * 9, "bad bad"), ("good", "bad"), ("good good", "bad " * 30)]
    found = tokenise(load_tokenizer(vocabulary), sentences, 10)
    assert found.truncated.tolist() == [True, False, True]
    assert found.arrays["input_ids"].tolist() == [
        [CLS, GOOD, GOOD, GOOD, GOOD, GOOD, SEP, BAD, BAD, SEP],
        [CLS, GOOD, SEP, BAD, SEP, PAD, PAD, PAD, PAD, PAD],
        [CLS, GOOD, GOOD, SEP, BAD, BAD, BAD, BAD, BAD, SEP],
    ]
    with pytest.raises(ValueError, match="max_length must be at least 8, got 7"):
        tokenise(load_tokenizer(vocabulary), sentences, 7)


@pytest.mark.parametrize(
    ("load", "files", "rows", "labels", "width"),
    [
        (
            glue_rte,
            ("RTE/train.tsv", "RTE/dev.tsv"),
            ["index\tsentence1\tsentence2\tlabel", "0\tgood\tgood film\tentailment", "1\tgood\tbad\tnot_entailment"],
            [0, 1],
            6,
        ),
        (
            glue_mrpc,
            ("glue/MRPC_train.tsv.gz", "glue/MRPC_dev.tsv.gz"),
            [
                "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",
                '1\t5\t6\tthe film .\tthe " film "',
                "0\t7\t8\ta\tbad",
            ],
            [1, 0],
            10,
        ),
        (
            glue_sst2,
            ("glue/SST-2/train.tsv.gz", "glue/SST-2/dev.tsv"),
            ["sentence\tlabel", "good\t1", "bad\t0"],
            [1, 0],
            3,
        ),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_the_three_tasks_from_tsv_files_in_every_place(vocabulary, tmp_path, load, files, rows, labels, width, newline):
    train, dev = files
    write(tmp_path / train, *rows, newline=newline)
    write(tmp_path / dev, rows[0], rows[2], newline=newline)
    dataset = load(vocabulary, data_dir=tmp_path)
    assert dataset.y.tolist() == labels and dataset.y_test.tolist() == labels[1:]
    assert dataset.name == load.__name__ and dataset.num_classes == 2
    assert {leaf.shape for leaf in dataset.x.values()} == {(2, width)}
    data = dataset.partition(dirichlet(1.0, clients=1))
    assert data.description["vocabulary"] == len(WORDS)
    assert data.description["truncated_training_samples"] == 0 and data.description["source"] == "tsv"
    x, y = data.fetch(data.arrays, 0, jnp.arange(2), None)
    assert {leaf.dtype for leaf in x.values()} == {jnp.dtype(jnp.int32)}
    assert sorted(np.asarray(y).tolist()) == sorted(labels)
    x, _ = data.example
    assert x["input_ids"].shape[0] == 1 and x["input_ids"][0, 0] == CLS


@pytest.mark.parametrize("longer", ["train", "dev"])
def test_both_sets_are_padded_to_the_longest_example_of_either(vocabulary, tmp_path, longer):
    sst2(tmp_path, "good\t1")
    write(tmp_path / "glue" / "SST-2" / f"{longer}.tsv", "sentence\tlabel", "good bad film\t1")
    dataset = glue_sst2(vocabulary, data_dir=tmp_path)
    long, short = (dataset.x, dataset.x_test) if longer == "train" else (dataset.x_test, dataset.x)
    assert long["input_ids"].tolist() == [[CLS, GOOD, BAD, FILM, SEP]]
    assert short["input_ids"].tolist() == [[CLS, GOOD, SEP, PAD, PAD]]
    assert short["attention_mask"].tolist() == [[1, 1, 1, 0, 0]]
    assert [dataset.x_test[name].dtype for name in sorted(dataset.x_test)] == [np.uint8, np.uint16, np.uint8]


@pytest.mark.parametrize(
    ("header", "rows"),
    [
        ("text\tlabel", ["good\t1"]),
        ("sentence\tlabel", ["good\t1", "bad\t2"]),
        ("sentence\tlabel", ["good\t1", "bad\tfilm\t0"]),
    ],
)
def test_damaged_files_are_named(vocabulary, tmp_path, header, rows):
    sst2(tmp_path, *rows, header=header)
    with pytest.raises(ValueError, match=r"train\.tsv is damaged: expected the columns sentence, label"):
        glue_sst2(vocabulary, data_dir=tmp_path)


def test_missing_files_tokenizers_and_other_encodings_are_named(vocabulary, tmp_path):
    write(tmp_path / "glue" / "RTE_train.tsv.gz", "index\tsentence1\tsentence2\tlabel")
    with pytest.raises(FileNotFoundError, match=r"holds only part of glue_rte: RTE_dev\.tsv"):
        glue_rte(vocabulary, data_dir=tmp_path)
    sst2(tmp_path, "good\t1")
    with pytest.raises(FileNotFoundError, match=r"was not found with tokenizer\.json or vocab\.txt"):
        glue_sst2(str(tmp_path / "nowhere"), data_dir=tmp_path)
    (tmp_path / "glue" / "SST-2" / "dev.tsv").write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"dev\.tsv is damaged: expected UTF-8 text"):
        glue_sst2(vocabulary, data_dir=tmp_path)


@pytest.mark.data
@pytest.mark.parametrize(
    ("load", "histogram", "histogram_test"),
    [
        (glue_rte, [1249, 1241], [146, 131]),
        (glue_mrpc, [1194, 2474], [129, 279]),
        (glue_sst2, [29780, 37569], [428, 444]),
    ],
)
def test_the_real_sets(data_dir, vocabulary, load, histogram, histogram_test):
    dataset = load(vocabulary, max_length=64, data_dir=data_dir)
    assert np.bincount(dataset.y).tolist() == histogram
    assert np.bincount(dataset.y_test).tolist() == histogram_test
    lengths = dataset.x["attention_mask"].sum(axis=1)
    assert lengths.min() >= 3 and lengths.max() <= 64
    assert (lengths == 64).sum() >= dataset.source["truncated_training_samples"] > 0 or load is glue_sst2


PREPARE = """
import sys
import tensorflow_datasets as tfds

features = tfds.features.FeaturesDict({
    "sentence1": tfds.features.Text(), "sentence2": tfds.features.Text(),
    "label": tfds.features.ClassLabel(names=["not_equivalent", "equivalent"]),
})
rows = [("good", "a good film", 1), ("the bad film was bad", "caf\\u00e9", 0), ("a", "the the the the the the", 1)]
make = lambda some: [(i, {"sentence1": a, "sentence2": b, "label": c}) for i, (a, b, c) in enumerate(some)]
tfds.dataset_builders.store_as_tfds_dataset(
    name="mrpc", version="2.0.0", data_dir=sys.argv[1] + "/glue", features=features, file_format="array_record",
    split_datasets={"train": make(rows), "validation": make(rows[:2])},
)
"""


@pytest.mark.tfds
def test_a_set_prepared_by_tfds_holds_texts_of_any_length(vocabulary, tmp_path):
    pytest.importorskip("tensorflow", reason="TensorFlow is not installed (the tfds extra)")
    pytest.importorskip("array_record", reason="array_record is not installed (the tfds extra)")
    command = [sys.executable, "-c", PREPARE, str(tmp_path)]
    finished = subprocess.run(command, capture_output=True, text=True, cwd=CHECKOUT, check=False)
    assert finished.returncode == 0, finished.stderr
    dataset = glue_mrpc(vocabulary, data_dir=tmp_path)
    assert dataset.source["source"] == "tfds 2.0.0"
    found = {tuple(row[mask == 1].tolist()): int(label) for row, mask, label in zip(
        dataset.x["input_ids"], dataset.x["attention_mask"], dataset.y, strict=True
    )}  # fmt: skip
    the, a, was, cafe = 7, 8, 9, 12
    assert found == {
        (CLS, GOOD, SEP, a, GOOD, FILM, SEP): 1,
        (CLS, the, BAD, FILM, was, BAD, SEP, cafe, SEP): 0,
        (CLS, a, SEP, the, the, the, the, the, the, SEP): 1,
    }
    assert sorted(dataset.y_test.tolist()) == [0, 1]
