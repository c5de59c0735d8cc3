"""Three tasks of GLUE, tokenised for a BERT checkpoint: RTE, MRPC and SST-2."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.data.dataset import Dataset
from jaxafl.data.directory import data_directory, missing_dataset
from jaxafl.data.image_source import partial_dataset
from jaxafl.data.preprocessing import Preprocessing
from jaxafl.data.tfds_source import prepared_directory, read_prepared
from jaxafl.data.tokenise import load_tokenizer, tokenise
from jaxafl.data.tsv import read_tsv


def glue_rte(
    tokenizer: str = "bert-base-uncased", max_length: int = 128, data_dir: str | os.PathLike[str] | None = None
) -> Dataset:
    """RTE of GLUE: does the first sentence entail the second? 2,490 training and 277 test pairs.

    Classes, numbered as TFDS does: 0 entailment, 1 not_entailment. Found as `glue_mrpc` is, with `RTE` for its folder.

    Args:
        tokenizer: Folder or name of the checkpoint whose tokens are wanted: that of the model.
        max_length: The most tokens of a pair; longer ones are cut and counted.
        data_dir: Data directory; by default `$JAXAFL_DATA_DIR`, else TFDS's own default.

    Returns:
        The dataset; see `glue_mrpc`.

    Raises:
        FileNotFoundError, ImportError, ValueError: See `glue_mrpc`.

    References:
        Wang et al., "GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language Understanding", ICLR 2019;
        Dagan et al. 2006, Bar-Haim et al. 2006, Giampiccolo et al. 2007, Bentivogli et al. 2009.
    """
    return _load(_RTE, tokenizer, max_length, data_dir)


def glue_mrpc(
    tokenizer: str = "bert-base-uncased", max_length: int = 128, data_dir: str | os.PathLike[str] | None = None
) -> Dataset:
    """MRPC of GLUE: do two sentences mean the same? 3,668 training and 408 test pairs.

    Classes: 0 not equivalent, 1 equivalent (68 % of the test pairs). The test set is GLUE's labelled dev set; its own
    test set has no labels. Looked for in this order: `train.tsv` and `dev.tsv` in `<data_dir>/glue/MRPC` or
    `<data_dir>/MRPC`, `MRPC_train.tsv` and `MRPC_dev.tsv` in `<data_dir>/glue` (all gzipped as *.gz or not), then
    `<data_dir>/glue/mrpc/<version>` as prepared by TensorFlow Datasets (see `prepare_tfds`), which is read without
    TensorFlow and has an order of its own.

    Args:
        tokenizer: Folder or name of the checkpoint whose tokens are wanted: that of the model (see
            `jaxafl.data.pretrained.pretrained_directory`).
        max_length: The most tokens of a pair; longer ones are cut and counted (`truncated_...` of the description).
        data_dir: Data directory; by default `$JAXAFL_DATA_DIR`, else TFDS's own default.

    Returns:
        The dataset: x a dict of `input_ids`, `token_type_ids` and `attention_mask` `[n, L]` (see
        `jaxafl.data.tokenise.Tokens`), L the longest pair of both sets after cutting; int32 in the step.
        `vocabulary` of the description is the number of tokens that the tokenizer knows.

    Raises:
        FileNotFoundError: If the dataset or the tokenizer is in none of these places.
        ImportError: If the tokenizers package is not installed.
        ValueError: If a file lacks a column (which, and what its header has), holds an unknown label (in which line) or
            no sample.

    References:
        Wang et al., "GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language Understanding", ICLR 2019;
        Dolan and Brockett, "Automatically Constructing a Corpus of Sentential Paraphrases", IWP 2005.
    """
    return _load(_MRPC, tokenizer, max_length, data_dir)


def glue_sst2(
    tokenizer: str = "bert-base-uncased", max_length: int = 128, data_dir: str | os.PathLike[str] | None = None
) -> Dataset:
    """SST-2 of GLUE: the sentiment of a phrase from a film review, 67,349 training and 872 test phrases.

    Classes: 0 negative, 1 positive. Found as `glue_mrpc` is, with `SST-2` for its folder and `sst2` in TFDS.

    Args:
        tokenizer: Folder or name of the checkpoint whose tokens are wanted: that of the model.
        max_length: The most tokens of a phrase; longer ones are cut and counted.
        data_dir: Data directory; by default `$JAXAFL_DATA_DIR`, else TFDS's own default.

    Returns:
        The dataset; see `glue_mrpc`.

    Raises:
        FileNotFoundError, ImportError, ValueError: See `glue_mrpc`.

    References:
        Wang et al., "GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language Understanding", ICLR 2019;
        Socher et al., "Recursive Deep Models for Semantic Compositionality Over a Sentiment Treebank", EMNLP 2013.
    """
    return _load(_SST2, tokenizer, max_length, data_dir)


@dataclasses.dataclass(frozen=True)
class _Task:
    """What tells one task from another; `columns` and `labels` are those of the tsv files."""

    name: str
    folder: str
    prepared: str
    columns: tuple[str, ...]
    label: str
    labels: Mapping[str, int]
    features: tuple[str, ...]
    reference: str


_PAIR = ("sentence1", "sentence2")
_BINARY = {"0": 0, "1": 1}
_RTE = _Task("glue_rte", "RTE", "glue/rte", _PAIR, "label", {"entailment": 0, "not_entailment": 1}, _PAIR, "dagan2006")
_MRPC = _Task("glue_mrpc", "MRPC", "glue/mrpc", ("#1 String", "#2 String"), "Quality", _BINARY, _PAIR, "dolan2005")
_SST2 = _Task("glue_sst2", "SST-2", "glue/sst2", ("sentence",), "label", _BINARY, ("sentence",), "socher2013")


class _Split(NamedTuple):
    sentences: list[tuple[str, ...]]
    labels: np.ndarray


def _load(task: _Task, name: str, max_length: int, data_dir: str | os.PathLike[str] | None) -> Dataset:
    directory = data_directory(data_dir)
    files = _tsv_files(task, directory)
    prepared = None if files else prepared_directory(task.prepared, directory)
    if files:
        route = "tsv"
        train, test = (_Split(*read_tsv(path, task.columns, task.label, task.labels)) for path in files)
    elif prepared:
        route = f"tfds {prepared.name}"
        train, test = (_read_prepared(task, prepared, split) for split in ("train", "validation"))
    else:
        raise missing_dataset(
            task.name,
            [directory / "glue" / task.folder, directory / task.folder, directory / "glue", directory / task.prepared],
            [
                f"Put GLUE's train.tsv and dev.tsv of {task.folder} (gzipped as *.gz or not) into "
                f"{directory / 'glue' / task.folder}.",
                f'Prepare it with TensorFlow Datasets: pip install "jaxafl[tfds]", then '
                f"jaxafl.data.prepare_tfds({task.prepared!r}, data_dir=...); the reading needs no TensorFlow.",
            ],
        )
    tokenizer = load_tokenizer(name, data_dir)
    x, x_test = (tokenise(tokenizer, split.sentences, max_length) for split in (train, test))
    width = max(half.arrays["input_ids"].shape[1] for half in (x, x_test))
    return Dataset(
        task.name,
        _padded(x.arrays, width),
        train.labels,
        _padded(x_test.arrays, width),
        test.labels,
        2,
        Preprocessing(_as_int32, None, "WordPiece tokens"),
        source={
            "source": route,
            "tokenizer": os.fspath(name),
            "vocabulary": tokenizer.get_vocab_size(),
            "max_length": max_length,
            "truncated_training_samples": x.truncated,
            "truncated_test_samples": x_test.truncated,
        },
        references=("wang2019glue", task.reference),
    )


def _tsv_files(task: _Task, directory: pathlib.Path) -> list[pathlib.Path]:
    """The training and the dev file, from the first place that holds either of them; empty if none does."""
    places = [(directory / "glue" / task.folder, ""), (directory / task.folder, "")]
    for folder, prefix in [*places, (directory / "glue", f"{task.folder}_")]:
        names = [f"{prefix}{part}.tsv" for part in ("train", "dev")]
        found = {name: path for name in names for path in (folder / f"{name}.gz", folder / name) if path.is_file()}
        absent = [name for name in names if name not in found]
        if found and absent:
            raise partial_dataset(folder, task.name, f"{absent[0]} (or *.gz)")
        if found:
            return [found[name] for name in names]
    return []


def _read_prepared(task: _Task, prepared: pathlib.Path, split: str) -> _Split:
    *sentences, labels = read_prepared(prepared, split, *task.features, "label")
    columns = [[text.decode("utf-8") for text in column] for column in sentences]
    return _Split(list(zip(*columns, strict=True)), labels)


def _padded(arrays: dict[str, np.ndarray], width: int) -> dict[str, np.ndarray]:
    """Arrays `[n, width]`, with zeros, as `tokenise` pads, behind the tokens."""
    return {name: np.pad(array, ((0, 0), (0, width - array.shape[1]))) for name, array in arrays.items()}


def _as_int32(x: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf).astype(jnp.int32), x)
