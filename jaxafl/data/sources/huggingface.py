"""Data from a dataset of Hugging Face's `datasets`, by name or loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxafl.data.dataset import Dataset, Source
from jaxafl.data.federated import FederatedData
from jaxafl.data.preprocessing import Preprocessing, as_integers, cast
from jaxafl.data.sources.arrays import from_halves
from jaxafl.options import UserError, as_path, named, required
from jaxafl.readers.pictures import is_picture, pixels
from jaxafl.readers.pretrained import load_tokenizer, tokenise


@named
def from_huggingface(
    dataset: Any,
    *,
    x: str | Sequence[str],
    y: str,
    client: str | None = None,
    split: str = "train",
    test: str = "test",
    test_fraction: float | None = None,
    tokenizer: Any = None,
    max_length: int = 128,
    preprocessing: Preprocessing | None = None,
    name: str | None = None,
    config: str | None = None,
    seed: int = 0,
) -> FederatedData | Dataset:
    """Converts a dataset of Hugging Face, given by name or loaded, to the data of a simulation.

    A name needs the package datasets (`pip install "jaxafl[hf]"`), which downloads the dataset into its cache.

    Args:
        dataset: a name on the hub, such as `"flwrlabs/femnist"`; a folder with files of a dataset; a `DatasetDict` with
            a training and a test split; or a `Dataset` of which a share is held out. Rows keep the order of a shuffled
            or filtered dataset; `with_format` has no effect.
        x: the column of the samples: images, numbers, lists or arrays of numbers of one shape, or texts; two columns
            for pairs of texts. Images become `[n, height, width, channels]`: uint8 with one channel (grey, black and
            white) or three (RGB, palette, CMYK, YCbCr, HSV), and one more for opacity; uint16 for 16 bits; int32 or
            float32 for modes I and F. Their EXIF orientation is applied. If images differ in colour or opacity, all
            get the channels of both.
        y: the column of the labels: integers, `ClassLabel` (splits are matched by the names of classes), or words
            (numbered in sorted order).
        client: the column of the client of each sample, integers or strings, which become `client_names`; clients are
            numbered in sorted order. `None` gives a pooled `Dataset` to partition.
        split, test: names of the splits of a `DatasetDict`.
        test_fraction: share of the samples (of every client) to hold out for testing, in (0, 1), if no test split is
            used.
        tokenizer: for texts, a `tokenizers.Tokenizer`, or the folder or name of a checkpoint as in `glue_mrpc`.
        max_length: the most tokens of a text; longer texts are cut and counted (`truncated` in the description).
        preprocessing: cast and normalisation in the step. By default, images, floats and other uint8 samples are cast
            to floats without scaling, and other integers are not changed.
        name: name of the dataset; by default `dataset_name` of `dataset.info`.
        config: name of the configuration to load, if the dataset is given by name and has several (`"rte"` of
            `"nyu-mll/glue"`).
        seed: seed of the held-out samples.

    Returns:
        Federated data if `client` is given, else a `Dataset`.

    Raises:
        ValueError: a split does not exist or has a transform, samples have several shapes or are missing, labels are
            missing, or there is no test set.
        KeyError, ValueError: a column does not exist (by the `datasets` package).
        TypeError: a column has another type.
        ImportError, OSError: a dataset given by name cannot be loaded.
    """
    if isinstance(dataset, str | os.PathLike):
        dataset = _loaded(dataset, config)
    splits = _splits(dataset, split, test, test_fraction)
    columns = [x] if isinstance(x, str) else list(x)
    name = name or str(getattr(splits[0].info, "dataset_name", None) or "huggingface")
    labels, classes = _labels(splits, y)
    source: Source = {"source": "huggingface", "x": ", ".join(columns), "y": y}
    samples, more, usual = _samples(name, splits, columns, tokenizer, max_length)
    ids = [
        _words(part, client) if client and (part is splits[0] or client in part.column_names) else None
        for part in splits
    ]
    halves = list(zip(samples, labels, ids, strict=True))
    return from_halves(name, halves, test_fraction, seed, classes, preprocessing or usual, source | more)


def _loaded(name: str | os.PathLike[str], config: str | None) -> Any:
    """Loads all splits of a dataset of the hub, of its cache on disk, or of a folder."""
    datasets = required("datasets", "hf", f"from_huggingface({str(name)!r})")
    folder = as_path(name)
    if any((folder / file).is_file() for file in ("dataset_dict.json", "state.json")):
        return datasets.load_from_disk(folder)
    return datasets.load_dataset(os.fspath(folder if folder.is_dir() else name), config)


def _splits(dataset: Any, split: str, test: str, test_fraction: float | None) -> list[Any]:
    """Returns the training split and the test split; the first alone if a fraction of it is held out.

    Rows keep the order of a shuffled, filtered or sorted dataset. Values are read as stored, without the format of
    `with_format`.
    """
    if isinstance(dataset, Mapping):
        wanted = [split] if test_fraction is not None else [split, test]
        if absent := [name for name in wanted if name not in dataset]:
            raise UserError(f"there is no split {absent[0]!r}; expected one of {[*dataset]}, or test_fraction")
        found = [dataset[name] for name in wanted]
    else:
        found = [dataset]
    if any(part.format["type"] == "custom" for part in found):
        raise UserError("from_huggingface: a split has a transform, which has no effect. Use dataset.map(...)")
    if len(found) == 1 and test_fraction is None:
        raise UserError("a single Dataset needs test_fraction, the share of it that is held out for testing")
    return [part.with_format(None) for part in found]


def _words(part: Any, column: str) -> np.ndarray:
    """Returns the entries of a column, and those of a `ClassLabel` by name."""
    values, names = list(part[column]), getattr(part.features[column], "names", None)
    if names and None not in values and min(values) >= 0:
        values = [names[value] for value in values]
    return np.array(values)


def _labels(splits: Sequence[Any], column: str) -> tuple[list[np.ndarray], int | None]:
    """Returns the classes of every split, and their number; targets as they are.

    Classes are matched by name, so splits may number them in different orders. Names are numbered in the order of the
    first `ClassLabel`, and words without one in sorted order.
    """
    values = [_words(part, column) for part in splits]
    if any(labels.dtype.kind != "U" for labels in values):
        return [np.asarray(list(part[column])) for part in splits], None
    names = [name for part in splits for name in getattr(part.features[column], "names", None) or ()]
    known = list(dict.fromkeys([*names, *sorted({*np.concatenate(values).tolist()})]))
    place = {name: number for number, name in enumerate(known)}
    return [np.array([place[word] for word in labels.tolist()]) for labels in values], len(known)


def _samples(
    name: str, splits: Sequence[Any], columns: list[str], tokenizer: Any, max_length: int
) -> tuple[list[Any], Source, Preprocessing | None]:
    """Returns the samples of every split, entries for the description, and a preprocessing if theirs is special."""
    first = splits[0][0][columns[0]]
    stops = np.cumsum([len(part) for part in splits])[:-1]
    if isinstance(first, str):
        if tokenizer is None:
            raise UserError(f"{name}: the column {columns[0]!r} holds texts, which need a tokenizer=...")
        loaded = load_tokenizer(tokenizer)
        texts = [text for part in splits for text in zip(*(part[column] for column in columns), strict=True)]
        tokens = tokenise(loaded, texts, max_length)
        said = {"vocabulary": loaded.get_vocab_size(), "truncated": int(tokens.truncated.sum())}
        return tokens.split(stops), said, Preprocessing(as_integers, None, "tokens")
    if len(columns) > 1:
        raise UserError(f"{name}: only texts can come from two columns")
    every = (one for part in splits for one in part[columns[0]])
    if is_picture(first):
        return np.split(pixels(name, every), stops), {}, cast()
    array = np.asarray(list(every))
    feature = splits[0].features[columns[0]]
    while hasattr(feature, "feature"):
        feature = feature.feature
    if array.dtype.kind in "if":  # Python's lists do not carry the dtype
        array = array.astype(feature.dtype)
    return np.split(array, stops), {}, None
