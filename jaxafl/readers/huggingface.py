"""Datasets of Hugging Face's `datasets`: loading by name, and splits, samples, labels and clients from columns."""

from __future__ import annotations

import importlib.util
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxafl.options import UserError, as_array, as_path
from jaxafl.readers.pictures import is_picture, pixels


def load_named(name: str | os.PathLike[str], config: str | None) -> Any:
    """Loads all splits of a dataset of the hub, of its cache on disk or of a folder.

    Args:
        name: `"owner/name"`, or a folder: of `save_to_disk`, or of files that `datasets.load_dataset` reads.
        config: name of the configuration, if the dataset has several.

    Raises:
        ImportError: the package datasets is not installed.
        ValueError: there is no such configuration, or the files have another form.
        OSError: the hub cannot be reached, or has no such dataset.
    """
    if importlib.util.find_spec("datasets") is None:
        raise ImportError(f'from_huggingface({str(name)!r}) needs the package datasets: pip install "jaxafl[hf]"')
    import datasets

    folder = as_path(name)
    try:
        if any((folder / file).is_file() for file in ("dataset_dict.json", "state.json")):
            return datasets.load_from_disk(folder)
        return datasets.load_dataset(os.fspath(folder if folder.is_dir() else name), config)
    except (ValueError, RuntimeError, OSError) as error:
        problem = f"from_huggingface: {str(name)!r} could not be loaded: {str(error).rstrip('.')}."
        advice = "Check the name; on a machine without network, give a folder, or copy the cache of another machine."
        raise (OSError(f"{problem} {advice}") if isinstance(error, OSError) else UserError(problem)) from error


def splits_of(dataset: Any, split: str, test: str, test_fraction: float | None) -> dict[str, Any]:
    """Returns the training split and the test split by name; without `test` if a fraction of the training is held out.

    Rows keep the order of a shuffled, filtered or sorted dataset. Values are read as stored, without the format of
    `with_format`.

    Raises:
        ValueError: a split is missing, is a stream, or has a transform, which would be ignored.
        TypeError: this is not a dataset of Hugging Face.
    """
    if isinstance(dataset, Mapping):
        wanted = [split] if test_fraction is not None else [split, test]
        for name in wanted:
            if name not in dataset:
                advice = "; test_fraction=0.2 holds some of the training samples out" if name == test else ""
                raise UserError(f"there is no split {name!r}; there are {', '.join(dataset)}{advice}")
        found = {name: dataset[name] for name in wanted}
    else:
        found = {split: dataset}
        if test_fraction is None and not _streams(dataset):
            raise UserError("a single Dataset needs test_fraction, the share of it that is held out for testing")
    for name, part in found.items():
        if _streams(part):
            raise UserError(
                f"the split {name!r} is a stream ({type(part).__name__}), but clients draw their samples at random: "
                "load it whole, load_dataset(..., streaming=False), or the first 10,000 samples of it, "
                "datasets.Dataset.from_list(list(stream.take(10_000)), features=stream.features)"
            )
        if not hasattr(part, "column_names") or not hasattr(part, "features"):
            raise TypeError(f"from_huggingface takes a datasets.Dataset or DatasetDict, got {type(part).__name__}")
        if part.format["type"] == "custom":
            raise UserError(
                f"the split {name!r} has a transform (set_transform or with_transform), which only acts on rows as "
                "they are looked up; store what it makes, dataset.map(...), or take it off, dataset.with_format(None)"
            )
    return {name: part.with_format(None) for name, part in found.items()}


def labels_of(owner: str, splits: Mapping[str, Any], column: str) -> tuple[list[np.ndarray], int]:
    """Returns the classes of every split, and the number of classes.

    Classes with names (`ClassLabel`) are matched by name, so splits may number them in different orders. Words are
    numbered in sorted order.

    Raises:
        ValueError: samples have no label (-1 or None), or only some splits name their classes.
        TypeError: labels are neither integers nor words.
    """
    values = {name: _complete(owner, name, column, list(part[column])) for name, part in splits.items()}
    names = {name: getattr(part.features[column], "names", None) for name, part in splits.items()}
    for name, labels in values.items():
        if labels.ndim == 1 and labels.dtype.kind in "iu" and labels.min(initial=0) < 0:
            raise UserError(
                f"{owner}: {np.sum(labels < 0)} of {len(labels)} labels in {column!r} of the split {name!r} are "
                "negative, as in test splits that are published without labels; use a split that has labels (for "
                "example test='validation'), test_fraction=0.2 in the place of a test split, or leave them out: "
                f"dataset.filter(lambda row: row[{column!r}] >= 0)"
            )
    known = list(dict.fromkeys(word for named in names.values() for word in named or ()))
    words = [labels for labels in values.values() if labels.dtype.kind == "U"]
    if known and all(names[name] or labels.dtype.kind == "U" for name, labels in values.items()):
        known += sorted({str(word) for labels in words for word in labels} - set(known))
        place = {word: number for number, word in enumerate(known)}
        tables = {name: np.array([place[word] for word in named or ()], np.int64) for name, named in names.items()}
        for name, labels in values.items():
            if labels.dtype.kind != "U" and labels.max(initial=0) >= len(tables[name]):
                raise UserError(
                    f"{owner}: labels in {column!r} of the split {name!r} go to {labels.max()}, but its ClassLabel "
                    f"names {len(tables[name])} classes"
                )
        classes = [
            np.array([place[word] for word in labels], np.int64) if labels.dtype.kind == "U" else tables[name][labels]
            for name, labels in values.items()
        ]
        return classes, len(known)
    if known:
        unnamed = ", ".join(repr(name) for name, named in names.items() if not named)
        raise UserError(
            f"{owner}: {column!r} has named classes in some splits, and bare numbers in {unnamed}, which may mean "
            f"others; say which: dataset.cast_column({column!r}, datasets.ClassLabel(names=[...]))"
        )
    if len(words) == len(values):
        known_words = np.unique(np.concatenate(words))
        return [np.searchsorted(known_words, labels) for labels in words], len(known_words)
    if all(labels.dtype.kind in "iu" for labels in values.values()):
        return list(values.values()), int(max(labels.max() for labels in values.values())) + 1
    return list(values.values()), 0


def identities_of(splits: Mapping[str, Any], column: str) -> list[list[Any]]:
    """Returns the client of each sample, for every split with the column; clients of a `ClassLabel` by name."""
    found = []
    for part in splits.values():
        if column in part.column_names:
            names = getattr(part.features[column], "names", None)
            values = list(part[column])
            found.append([names[value] if value is not None else None for value in values] if names else values)
    return found


def arrays_of(owner: str, splits: Mapping[str, Any], column: str) -> list[np.ndarray]:
    """Returns the samples of a column of every split, one array per split.

    The dtype is that of the dataset, with float32 for float64. Images are converted by `pixels`, with equal channels in
    every split.

    Raises:
        ValueError: samples have several shapes, are missing, not finite or not numbers.
    """
    samples = _samples(owner, splits, column)
    first = next(samples, None)
    every = itertools.chain([first], samples)
    if is_picture(first):
        array = pixels(f"{owner}: {column!r}", every)
    else:
        array = _stacked(owner, first, every, column, _dtype(next(iter(splits.values())).features[column]))
    return np.split(array, np.cumsum([len(part) for part in splits.values()])[:-1])


def _samples(owner: str, splits: Mapping[str, Any], column: str) -> Iterator[Any]:
    """Yields the samples of all splits one by one, so that decoded images are not held in memory twice."""
    for name, part in splits.items():
        for place, sample in enumerate(part[column]):
            if sample is None:
                raise UserError(
                    f"{owner}: sample {place} in {column!r} of the split {name!r} is missing (None); leave it out: "
                    f"dataset.filter(lambda row: row[{column!r}] is not None)"
                )
            yield sample


def _stacked(owner: str, first: Any, samples: Iterable[Any], column: str, dtype: str | None) -> np.ndarray:
    if isinstance(first, Mapping) and {"bytes", "path"} <= set(first):
        raise UserError(
            f"{owner}: {column!r} holds encoded images; decode them: dataset.cast_column({column!r}, datasets.Image())"
        )
    if isinstance(first, Sequence) and not isinstance(first, str) and any(map(is_picture, first)):
        raise UserError(f"{owner}: {column!r} holds several images per sample; make one column, or one array, of each")
    parts = [as_array(owner, f"a sample in {column!r}", sample) for sample in samples]
    shapes = {part.shape for part in parts}
    if len(shapes) != 1 or any(part.dtype.kind not in "fiub" for part in parts):
        kinds = ", ".join(sorted({str(part.dtype) for part in parts}))
        raise UserError(
            f"{owner}: the samples in {column!r} must be numbers of one shape, got {kinds} of the shapes "
            f"{', '.join(map(str, sorted(shapes)[:3]))}"
        )
    array = np.stack(parts)
    if dtype is not None and array.dtype.kind in "iu":
        array = array.astype(dtype, copy=False)
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _dtype(feature: Any) -> str | None:
    """Returns the dtype of the integers in a feature, which Python's lists do not carry; `None` for other features."""
    while feature is not None and not isinstance(getattr(feature, "dtype", None), str):
        feature = getattr(feature, "feature", None)
    try:
        return np.dtype(feature.dtype).name if np.dtype(feature.dtype).kind in "iu" else None
    except (AttributeError, TypeError):
        return None


def _streams(part: Any) -> bool:
    return hasattr(part, "column_names") and not hasattr(part, "__len__")


def _complete(owner: str, split: str, column: str, values: list[Any]) -> np.ndarray:
    missing = sum(value is None for value in values)
    if missing:
        raise UserError(
            f"{owner}: {missing} of {len(values)} labels in {column!r} of the split {split!r} are missing (None); "
            f"leave them out, dataset.filter(lambda row: row[{column!r}] is not None), or use a split that has labels"
        )
    return np.asarray(values)
