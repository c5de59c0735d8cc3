"""Data from a dataset of Hugging Face's `datasets` that is at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxafl.data.arrays import check_ids, hold_out
from jaxafl.data.dataset import Dataset
from jaxafl.data.federated import FederatedData
from jaxafl.data.partition import by_user
from jaxafl.data.preprocessing import Preprocessing, as_integers, as_is, cast
from jaxafl.options import UserError, check_whole
from jaxafl.readers.pretrained import load_tokenizer, tokenise


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
    seed: int = 0,
) -> FederatedData | Dataset:
    """A `datasets.Dataset` or `DatasetDict` as the data of a simulation.

    Args:
        dataset: a `DatasetDict` with a training and a test split, or a `Dataset` of which some is held out.
        x: the column of the samples: images (uint8 `[n, height, width, channels]`), numbers, lists or arrays of numbers
            of one shape, or texts; two columns for pairs of texts.
        y: the column of the labels: integers, `ClassLabel`, or words (numbered in sorted order).
        client: the column that says whose a sample is; `None` gives a pooled `Dataset` to partition.
        split, test: names of the splits of a `DatasetDict`.
        test_fraction: share of the samples (of every client) to hold out for testing, in (0, 1), where there is no test
            split to use.
        tokenizer: for texts: a `tokenizers.Tokenizer`, or the folder or name of a checkpoint, as for `glue_mrpc`.
        max_length: the most tokens of a text; longer ones are cut and counted (`truncated` of the description).
        preprocessing: cast and normalisation in the step; by default images, floats and other uint8 samples are cast to
            floats unscaled, integers stay as they are.
        name: name of the dataset; by default its own.
        seed: of the held-out samples.

    Returns:
        Federated data where `client` is given, else a `Dataset`.

    Raises:
        ValueError: there is no such column or split, samples have several shapes, or there is no test set.
        TypeError: this is no dataset of Hugging Face, or a column holds something else.
    """
    splits, owned = _splits(dataset, split, test, test_fraction)
    first = splits[0]
    columns = [x] if isinstance(x, str) else list(x)
    for column in (*columns, y, *([client] if client else [])):
        if column not in first.column_names:
            raise UserError(f"there is no column {column!r}; there are {', '.join(first.column_names)}")
    name = name or str(getattr(first.info, "dataset_name", None) or "huggingface")
    labels, classes = _labels(name, [part[y] for part in splits], first.features[y])
    told: dict[str, str | int | float] = {"source": "huggingface", "x": ", ".join(columns), "y": y}
    samples, more, usual = _samples(name, splits, columns, tokenizer, max_length)
    users = check_ids(name, np.asarray(first[client])) if client else None
    test_clients = None
    if test_fraction is not None:
        seed = check_whole(name, "seed", seed, least=0, most=None)
        everyone = np.zeros(len(labels[0]), np.int64) if users is None else users
        apart = hold_out(name, everyone, test_fraction, np.random.default_rng(seed))
        samples = [_rows(samples[0], ~apart), _rows(samples[0], apart)]
        labels = [labels[0][~apart], labels[0][apart]]
        if users is not None:
            users, test_clients = users[~apart], users[apart].astype(np.int32)
        told |= {"test_fraction": float(test_fraction), "test_seed": seed}
    elif client and client in owned.column_names:
        test_clients = _owners(first[client], owned[client])
    pooled = Dataset(
        name, samples[0], labels[0], samples[1], labels[1], classes, preprocessing or usual, users, told | more
    )
    return pooled if users is None else pooled.partition(by_user()).owned_test(test_clients)


def _splits(dataset: Any, split: str, test: str, test_fraction: float | None) -> tuple[list[Any], Any]:
    """The training split and, unless some of it is held out, the test split."""
    if isinstance(dataset, Mapping):
        wanted = [split] if test_fraction is not None else [split, test]
        for name in wanted:
            if name not in dataset:
                advice = "; test_fraction=0.2 holds some of the training samples out" if name == test else ""
                raise UserError(f"there is no split {name!r}; there are {', '.join(dataset)}{advice}")
        splits = [dataset[name] for name in wanted]
    else:
        splits = [dataset]
        if test_fraction is None:
            raise UserError("a single Dataset needs test_fraction, the share of it that is held out for testing")
    for part in splits:
        if not hasattr(part, "column_names") or not hasattr(part, "features"):
            raise TypeError(f"from_huggingface takes a datasets.Dataset or DatasetDict, got {type(part).__name__}")
    return splits, splits[-1]


def _labels(name: str, columns: list[Any], feature: Any) -> tuple[list[np.ndarray], int]:
    values = [np.asarray(column) for column in columns]
    names = getattr(feature, "names", None)
    if all(value.dtype.kind in "iu" for value in values):
        return values, len(names) if names else int(max(value.max() for value in values)) + 1
    if all(value.dtype.kind in "US" for value in values):
        known = np.unique(np.concatenate(values))
        return [np.searchsorted(known, value) for value in values], len(known)
    raise TypeError(f"{name}: labels must be integers or words, got {values[0].dtype}")


def _samples(
    name: str, splits: list[Any], columns: list[str], tokenizer: Any, max_length: int
) -> tuple[list[Any], dict[str, str | int | float], Preprocessing]:
    """The samples of every split, what the description says of them, and how they are usually preprocessed."""
    first = splits[0][0][columns[0]]
    if isinstance(first, str):
        if tokenizer is None:
            raise UserError(f"{name}: the column {columns[0]!r} holds texts, which need a tokenizer=...")
        made = load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
        texts = [list(zip(*(part[column] for column in columns), strict=True)) for part in splits]
        tokens = tokenise(made, [text for part in texts for text in part], max_length)
        stops = np.cumsum([len(part) for part in texts])
        found = [
            {key: array[stop - len(part) : stop] for key, array in tokens.arrays.items()}
            for part, stop in zip(texts, stops, strict=True)
        ]
        said = {"vocabulary": made.get_vocab_size(), "truncated": tokens.truncated}
        return found, said, Preprocessing(as_integers, None, "tokens")
    if len(columns) > 1:
        raise UserError(f"{name}: only texts can come from two columns")
    arrays = [_stacked(name, part[columns[0]], columns[0]) for part in splits]
    return arrays, {}, cast() if arrays[0].dtype.kind == "f" or arrays[0].dtype == np.uint8 else as_is()


def _stacked(name: str, column: Sequence[Any], of: str) -> np.ndarray:
    """The samples of a column as one array; images with their channels last."""
    parts = [np.asarray(sample) for sample in column]
    shapes = {part.shape for part in parts}
    if len(shapes) > 1 or parts[0].dtype.kind not in "fiub":
        raise UserError(
            f"{name}: the samples in {of!r} must be numbers of one shape, got {parts[0].dtype} of the shapes "
            f"{', '.join(map(str, sorted(shapes)[:3]))}"
        )
    array = np.stack(parts)
    if hasattr(column[0], "getbands") and array.ndim == 3:  # an image of one channel
        array = array[..., None]
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _rows(samples: Any, chosen: np.ndarray) -> Any:
    return {key: array[chosen] for key, array in samples.items()} if isinstance(samples, dict) else samples[chosen]


def _owners(train: Sequence[Any], test: Sequence[Any]) -> np.ndarray:
    """The client of each test sample, -1 for those who do not train."""
    known, ids = np.unique(np.asarray(train)), np.asarray(test)
    place = np.minimum(np.searchsorted(known, ids), len(known) - 1)
    return np.where(known[place] == ids, place, -1).astype(np.int32)
