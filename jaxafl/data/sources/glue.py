"""Three tasks of GLUE, tokenised for a BERT checkpoint: RTE, MRPC and SST-2."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from jaxafl.data.dataset import Dataset
from jaxafl.data.preprocessing import Preprocessing, as_integers
from jaxafl.options import named
from jaxafl.readers.archive import damaged, read_text
from jaxafl.readers.directory import Directory, data_directory, find_files, missing_dataset
from jaxafl.readers.download import downloadable
from jaxafl.readers.pretrained import load_tokenizer, tokenise
from jaxafl.readers.tfds_source import how_to_prepare, prepared_directory, read_prepared


@named
@downloadable
def glue_rte(
    tokenizer: str = "bert-base-uncased",
    max_length: int = 128,
    data_dir: Directory = None,
    *,
    download: bool = False,
) -> Dataset:
    """Loads RTE of GLUE: does the first sentence entail the second? 2,490 training and 277 test pairs.

    Classes, numbered as in TFDS: 0 entailment, 1 not_entailment. The search follows `glue_mrpc`, with the folder `RTE`.

    Args:
        tokenizer: folder or name of the checkpoint with the tokenizer, usually the model's checkpoint.
        max_length: the most tokens of a pair; longer pairs are cut and counted.
        data_dir: data directory; by default `$JAXAFL_DATA_DIR`, else TFDS's default.
        download: if True, missing files are downloaded first, see `jaxafl.data.download`.

    Returns:
        The dataset; see `glue_mrpc`.

    Raises:
        FileNotFoundError, ImportError, ValueError: see `glue_mrpc`.

    References:
        Wang et al., "GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language Understanding", ICLR 2019;
        Dagan et al. 2006, Bar-Haim et al. 2006, Giampiccolo et al. 2007, Bentivogli et al. 2009.
    """
    return _load(_RTE, tokenizer, max_length, data_dir)


@named
@downloadable
def glue_mrpc(
    tokenizer: str = "bert-base-uncased",
    max_length: int = 128,
    data_dir: Directory = None,
    *,
    download: bool = False,
) -> Dataset:
    """Loads MRPC of GLUE: do two sentences mean the same? 3,668 training and 408 test pairs.

    Classes: 0 not equivalent, 1 equivalent (68 % of the test pairs). The test set is GLUE's labelled dev set, because
    GLUE's test set has no labels. The places are searched in this order (tsv files may be gzipped as `*.gz`):

    1. `train.tsv` and `dev.tsv` in `<data_dir>/glue/MRPC` or `<data_dir>/MRPC`;
    2. `MRPC_train.tsv` and `MRPC_dev.tsv` in `<data_dir>/glue`;
    3. `<data_dir>/glue/mrpc/<version>`, prepared by TensorFlow Datasets (see `prepare_tfds`) and read without
       TensorFlow. Its samples have another order.

    Args:
        tokenizer: folder or name of the checkpoint with the tokenizer, usually the model's checkpoint (see
            `jaxafl.readers.pretrained.pretrained_directory`).
        max_length: the most tokens of a pair; longer pairs are cut and counted (`truncated_...` in the description).
        data_dir: data directory; by default `$JAXAFL_DATA_DIR`, else TFDS's default.
        download: if True, missing files are downloaded first, see `jaxafl.data.download`.

    Returns:
        The dataset: x a dict of `input_ids`, `token_type_ids` and `attention_mask` `[n, L]` (see
        `jaxafl.readers.pretrained.Tokens`), L the longest pair of both sets after cutting; int32 in the step.
        `vocabulary` in the description is the number of tokens of the tokenizer.

    Raises:
        FileNotFoundError: no place has the dataset or the tokenizer.
        ImportError: the tokenizers package is not installed.
        ValueError: a file lacks a column, holds an unknown label or holds no sample.

    References:
        Wang et al., "GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language Understanding", ICLR 2019;
        Dolan and Brockett, "Automatically Constructing a Corpus of Sentential Paraphrases", IWP 2005.
    """
    return _load(_MRPC, tokenizer, max_length, data_dir)


@named
@downloadable
def glue_sst2(
    tokenizer: str = "bert-base-uncased",
    max_length: int = 128,
    data_dir: Directory = None,
    *,
    download: bool = False,
) -> Dataset:
    """Loads SST-2 of GLUE: the sentiment of a phrase from a film review, 67,349 training and 872 test phrases.

    Classes: 0 negative, 1 positive. The search follows `glue_mrpc`, with the folder `SST-2`, and `sst2` in TFDS.

    Args:
        tokenizer: folder or name of the checkpoint with the tokenizer, usually the model's checkpoint.
        max_length: the most tokens of a phrase; longer phrases are cut and counted.
        data_dir: data directory; by default `$JAXAFL_DATA_DIR`, else TFDS's default.
        download: if True, missing files are downloaded first, see `jaxafl.data.download`.

    Returns:
        The dataset; see `glue_mrpc`.

    Raises:
        FileNotFoundError, ImportError, ValueError: see `glue_mrpc`.

    References:
        Wang et al., "GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language Understanding", ICLR 2019;
        Socher et al., "Recursive Deep Models for Semantic Compositionality Over a Sentiment Treebank", EMNLP 2013.
    """
    return _load(_SST2, tokenizer, max_length, data_dir)


Half: TypeAlias = tuple[list[tuple[str, ...]], np.ndarray]


class _Task(NamedTuple):
    """Names and files of a task; `columns`, `label` and `labels` describe the tsv files."""

    name: str
    folder: str
    columns: tuple[str, ...]
    label: str
    labels: Mapping[str, int]
    features: tuple[str, ...]
    reference: str


_ADVICE = "Replace it by GLUE's own file."
_TOKENS = Preprocessing(as_integers, None, "WordPiece tokens")
_PAIR = ("sentence1", "sentence2")
_BINARY = {"0": 0, "1": 1}
_RTE = _Task("glue_rte", "RTE", _PAIR, "label", {"entailment": 0, "not_entailment": 1}, _PAIR, "dagan2006")
_MRPC = _Task("glue_mrpc", "MRPC", ("#1 String", "#2 String"), "Quality", _BINARY, _PAIR, "dolan2005")
_SST2 = _Task("glue_sst2", "SST-2", ("sentence",), "label", _BINARY, ("sentence",), "socher2013")


def _load(task: _Task, name: str, max_length: int, data_dir: Directory) -> Dataset:
    route, ((train, y), (test, y_test)) = _read(task, data_directory(data_dir))
    tokenizer = load_tokenizer(name, data_dir)
    tokens = tokenise(tokenizer, [*train, *test], max_length)
    source = {
        "source": route,
        "tokenizer": str(name),
        "vocabulary": tokenizer.get_vocab_size(),
        "max_length": max_length,
        "truncated_training_samples": int(tokens.truncated[: len(y)].sum()),
        "truncated_test_samples": int(tokens.truncated[len(y) :].sum()),
    }
    x, x_test = tokens.split([len(y)])
    return Dataset(task.name, x, y, x_test, y_test, 2, _TOKENS, None, source, ("wang2019glue", task.reference))


def _read(task: _Task, directory: pathlib.Path) -> tuple[str, list[Half]]:
    """Returns the source, and the labelled sentences of the training and the dev set."""
    folder = directory / "glue" / task.folder
    names, in_tfds = ["train.tsv", "dev.tsv"], task.name.replace("_", "/")
    places = {folder: names, directory / task.folder: names, folder.parent: [f"{task.folder}_{name}" for name in names]}
    if files := find_files(task.name, places.items()):
        return "tsv", [_read_tsv(task, path) for path in files]
    if prepared := prepared_directory(in_tfds, directory):
        return f"tfds {prepared.name}", [_read_prepared(task, prepared, split) for split in ("train", "validation")]
    ways = [
        f"Put GLUE's train.tsv and dev.tsv of {task.folder} (gzipped as *.gz or not) into {folder}.",
        how_to_prepare(in_tfds),
    ]
    raise missing_dataset(task.name, [*places, directory / in_tfds], ways)


def _read_tsv(task: _Task, path: pathlib.Path) -> Half:
    """Reads sentences and classes from a tab-separated file, whose first line names the columns.

    Quotation marks are ordinary characters, as in GLUE's files.
    """
    header, *lines = (line.rstrip("\r").split("\t") for line in read_text(path, _ADVICE).split("\n") if line.strip())
    try:
        rows = [dict(zip(header, line, strict=True)) for line in lines]
        classes = [task.labels[row[task.label]] for row in rows]
        return [tuple(row[name] for name in task.columns) for row in rows], np.array(classes, np.int32)
    except (KeyError, ValueError) as error:
        wanted = f"expected the columns {', '.join((*task.columns, task.label))} in every line"
        raise damaged(path, f"{wanted}; {type(error).__name__}: {error}", _ADVICE) from error


def _read_prepared(task: _Task, prepared: pathlib.Path, split: str) -> Half:
    *sentences, labels = read_prepared(prepared, split, *task.features, "label")
    columns = [[text.decode("utf-8") for text in column] for column in sentences]
    return list(zip(*columns, strict=True)), labels
