"""Data from a dataset of Hugging Face's `datasets`, by name or loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxafl.data.arrays import hold_out
from jaxafl.data.dataset import Dataset
from jaxafl.data.federated import FederatedData
from jaxafl.data.identities import check_ids
from jaxafl.data.partition import by_user
from jaxafl.data.preprocessing import Preprocessing, as_integers, as_is, cast
from jaxafl.options import UserError, check_whole, named
from jaxafl.readers.huggingface import arrays_of, identities_of, labels_of, load_named, splits_of
from jaxafl.readers.pictures import is_picture
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
        ValueError: a column or split does not exist, a split is a stream or has a transform, samples have several
            shapes or are missing, labels are missing, or there is no test set.
        TypeError: `dataset` is not a Hugging Face dataset, or a column has another type.
        ImportError, OSError: a dataset given by name cannot be loaded.
    """
    if isinstance(dataset, str | os.PathLike):
        dataset = load_named(dataset, config)
    elif config is not None:
        raise UserError(f"from_huggingface: config={config!r} is for a dataset given by name; load it, or leave it out")
    splits = splits_of(dataset, split, test, test_fraction)
    first = splits[split]
    columns = [x] if isinstance(x, str) else list(x)
    for part_name, part in splits.items():
        wanted = [*columns, y, *([client] if client and part is first else [])]
        for column in wanted:
            if column not in part.column_names:
                where = f" in the split {part_name!r}" if len(splits) > 1 else ""
                raise UserError(f"there is no column {column!r}{where}; there are {', '.join(part.column_names)}")
    name = name or str(getattr(first.info, "dataset_name", None) or "huggingface")
    labels, classes = labels_of(name, splits, y)
    source: dict[str, str | int | float] = {"source": "huggingface", "x": ", ".join(columns), "y": y}
    samples, more, usual = _samples(name, splits, columns, tokenizer, max_length)
    users = known = test_clients = None
    if client:
        ids = identities_of(splits, client)
        numbers, known = check_ids(name, [one for part in ids for one in part])
        users, test_clients = numbers[: len(ids[0])], numbers[len(ids[0]) :]
        training = np.unique(users)  # ids without training samples are no clients and get -1
        place = np.full(len(known), -1, np.int32)
        place[training] = np.arange(len(training))
        users, test_clients, known = place[users], place[test_clients], known[training]
    if test_fraction is not None:
        seed = check_whole(name, "seed", seed, least=0, most=None)
        everyone = np.zeros(len(labels[0]), np.int64) if users is None else users
        out = hold_out(name, everyone, test_fraction, np.random.default_rng(seed))
        samples = [_rows(samples[0], ~out), _rows(samples[0], out)]
        labels = [labels[0][~out], labels[0][out]]
        if users is not None:
            users, test_clients = users[~out], users[out]
        source |= {"test_fraction": float(test_fraction), "test_seed": seed}
    pooled = Dataset(
        name,
        *(samples[0], labels[0], samples[1], labels[1], classes or None, preprocessing or usual),
        users=users,
        source=source | more,
        user_names=known,
    )
    return pooled if users is None else pooled.partition(by_user()).owned_test(test_clients)


def _samples(
    name: str, splits: Mapping[str, Any], columns: list[str], tokenizer: Any, max_length: int
) -> tuple[list[Any], dict[str, str | int | float], Preprocessing]:
    """Returns the samples of every split, entries for the description, and the default preprocessing."""
    first = next(iter(splits.values()))[0][columns[0]]
    if isinstance(first, str):
        if tokenizer is None:
            raise UserError(f"{name}: the column {columns[0]!r} holds texts, which need a tokenizer=...")
        loaded = load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
        texts = [list(zip(*(part[column] for column in columns), strict=True)) for part in splits.values()]
        tokens = tokenise(loaded, [text for part in texts for text in part], max_length)
        stops = np.cumsum([len(part) for part in texts])
        found = [
            {key: array[stop - len(part) : stop] for key, array in tokens.arrays.items()}
            for part, stop in zip(texts, stops, strict=True)
        ]
        said = {"vocabulary": loaded.get_vocab_size(), "truncated": tokens.truncated}
        return found, said, Preprocessing(as_integers, None, "tokens")
    if len(columns) > 1:
        raise UserError(f"{name}: only texts can come from two columns")
    arrays = arrays_of(name, splits, columns[0])
    scaled = is_picture(first) or arrays[0].dtype.kind == "f" or arrays[0].dtype == np.uint8
    return arrays, {}, cast() if scaled else as_is()


def _rows(samples: Any, chosen: np.ndarray) -> Any:
    return {key: array[chosen] for key, array in samples.items()} if isinstance(samples, dict) else samples[chosen]
