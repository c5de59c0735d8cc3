"""FEMNIST: handwritten characters, one client per writer."""

from __future__ import annotations

import importlib.resources
import io
import os
import pathlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from jaxafl.data.dataset import Dataset
from jaxafl.data.federated import FederatedData
from jaxafl.data.partition import by_user
from jaxafl.data.preprocessing import normalise
from jaxafl.options import check_whole, named
from jaxafl.readers.archive import SHA256, check_sha256
from jaxafl.readers.directory import data_directory, find_file
from jaxafl.readers.download import downloadable
from jaxafl.readers.leaf import Users, leaf_halves, length_of, pooled, read_examples, read_halves

Source: TypeAlias = dict[str, str | int | float]
CLASSES = 62
_PIXELS = 28 * 28
_SHIPPED = "femnist_10writers.npz"
_LARGE = "femnist_207writers.npz"


@named
@downloadable
def femnist(
    clients: int | None = 10, *, data_dir: str | os.PathLike[str] | None = None, download: bool = False
) -> FederatedData:
    """Loads FEMNIST of LEAF: 28 × 28 images of digits and letters, 62 classes, one client per writer.

    Classes 0-9 are the digits, 10-35 the letters A-Z, 36-61 a-z. Up to ten writers ship with the package and need no
    files. More, or all (`clients=None`), are read from the first of these that exists:

    1. LEAF's json files, `<data_dir>/femnist/train/*.json` and `test/*.json` (gzipped as `*.json.gz` or not): the full
       dataset of about 3,500 writers, or any sample of it;
    2. `<data_dir>/femnist/fed_emnist_train.h5` and `fed_emnist_test.h5`, LEAF's images of 3,400 writers as TensorFlow
       Federated publishes them (`download=True` gets these, 170 MB);
    3. `<data_dir>/femnist/femnist_207writers.npz`.

    In either case, clients are the shipped writers if the files hold them, then the others by decreasing number of
    training samples. Every writer keeps LEAF's split into training and test samples (`-t sample`), and the test set
    pools the test samples of the clients in use. If LEAF held out entire writers instead (`-t user`), the test set
    pools all samples of these writers. `description` records the files and the split.

    Args:
        clients: number of writers; `None` for all that the files hold.
        data_dir: data directory for more than ten writers; by default `$JAXAFL_DATA_DIR`, else TFDS's default.
        download: if True, missing files are downloaded first, see `jaxafl.data.download`.

    Returns:
        The federated dataset: x uint8 `[n, 28, 28, 1]` in LEAF's polarity (paper is 255, ink is dark), scaled to x/255
        in the step (paper is 1.0).

    Raises:
        FileNotFoundError: more than ten writers are requested, and neither kind of file exists.
        ValueError: a file is damaged, or more writers are requested than the files hold.

    References:
        Caldas et al., "LEAF: A Benchmark for Federated Settings", arXiv:1812.01097, 2018; Cohen et al., "EMNIST:
        extending MNIST to handwritten letters", IJCNN 2017.
    """
    clients = None if clients is None else check_whole("femnist", "clients", clients)
    arrays = _read(_SHIPPED, importlib.resources.files("jaxafl.data").joinpath("files", _SHIPPED).read_bytes())
    source: Source = {"source": _SHIPPED}
    first = arrays["users"].tolist()
    folder = data_directory(data_dir) / "femnist"
    if clients is None or clients > len(first):
        arrays, source = _from_directory(folder, f"femnist with {clients or 'all'} writers", len(first))
    writers = _in_order(arrays, first)
    if clients is not None and clients > len(writers):
        raise ValueError(
            f"femnist: {clients} clients asked for, but {folder} ({source['source']}) holds {len(writers)} writers; "
            "jaxafl data femnist downloads 3,400"
        )
    return _federated(arrays, writers[:clients], source)


def _from_directory(folder: pathlib.Path, wanted: str, shipped: int) -> tuple[dict[str, np.ndarray], Source]:
    """Reads the json, HDF5 or npz files; returns the arrays and the source for `description`."""
    train, test = leaf_halves("femnist", folder)
    if train:
        arrays, split = read_json(train, test)
        return arrays, {"source": "LEAF json", "files": len(train) + len(test), "split": split}
    published = [folder / f"fed_emnist_{half}.h5" for half in ("train", "test")]
    if all(path.is_file() for path in published):
        return _arrays(*map(_read_published, published)), {"source": "TensorFlow Federated", "split": "sample"}
    ways = [
        f"Use clients={shipped} or fewer: these writers ship with the package.",
        "Run LEAF's own preprocessing (github.com/TalwalkarLab/leaf, data/femnist: preprocess.sh -s niid "
        f"--sf 1.0 -k 0 -t sample) and put the json files of its data/train and data/test into "
        f"{folder / 'train'} and {folder / 'test'}, or {_LARGE} into {folder}.",
    ]
    # find_file skips the folders and the unpaired files; they are listed for the error only.
    path = find_file(wanted, [folder / "train", folder / "test", *published, folder / _LARGE], ways)
    return _read(_LARGE, path.read_bytes()), {"source": _LARGE}


def _in_order(arrays: dict[str, np.ndarray], first: list[str]) -> np.ndarray:
    """Returns indices into `users` with training samples: first `first`, then by decreasing size, then by name."""
    counts = np.bincount(arrays["user_train"], minlength=len(arrays["users"]))
    rank = np.array([first.index(user) if user in first else len(first) for user in arrays["users"].tolist()])
    order = np.lexsort((arrays["users"], -counts, rank))
    return order[counts[order] > 0]


def _read(file: str, content: bytes) -> dict[str, np.ndarray]:
    """Reads the arrays of an npz file after checking its SHA-256; never unpickles."""
    check_sha256(file, content, SHA256[f"femnist/{file}"])
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return dict(arrays)


def _federated(arrays: dict[str, np.ndarray], writers: np.ndarray, source: Source) -> FederatedData:
    """Constructs the federated dataset, with one client per writer in the given order."""
    client_of = np.full(len(arrays["users"]), -1)
    client_of[writers] = np.arange(len(writers))
    users = client_of[arrays["user_train"]]
    train = users >= 0
    owners = client_of[arrays["user_test"]].astype(np.int32)
    test = (owners >= 0) | (source.get("split") == "user")
    x, y, users = (_rows(array, train) for array in (arrays["x_train"], arrays["y_train"], users))
    x_test, y_test = (_rows(arrays[f"{part}_test"], test) for part in "xy")
    dataset = Dataset(
        *("femnist", x[..., None], y, x_test[..., None], y_test, CLASSES, normalise(255.0), users, source),
        references=("caldas2018",),
        user_names=arrays["users"][writers],
    )
    return dataset.partition(by_user()).owned_test(owners[test])  # -1 for writers that LEAF held out entirely


def _rows(array: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Returns the rows to keep; the array itself if all are, because a copy may take hundreds of megabytes."""
    return array if kept.all() else array[kept]


def read_json(train: Sequence[pathlib.Path], test: Sequence[pathlib.Path]) -> tuple[dict[str, np.ndarray], str]:
    """Reads LEAF's json files as flat arrays. Pixels are stored as uint8, which is exact: LEAF writes x/255.

    Args:
        train: files of the training half.
        test: files of the test half.

    Returns:
        A dict of arrays: `users` (names, sorted), `x_train` uint8 `[n, 28, 28]`, `y_train`, `user_train` (index into
        `users`), `x_test`, `y_test` and `user_test`. The second result is LEAF's kind of split, see `read_halves`.

    Raises:
        ValueError: a file is damaged (see `read_leaf`), an image does not have 784 pixels in [0, 1], a label is out of
            range, a half holds no sample, or only some of the test writers have training samples.
    """
    *halves, split = read_halves("femnist", "writers", train, test, lambda x, y: (_pixels(x), _labels(y)))
    return _arrays(*halves), split


def _read_published(path: pathlib.Path) -> Users:
    every = read_examples(path, "pixels", "label")
    return {user: (_pixels([*x.reshape(len(x), -1)]), _labels(y.tolist())) for user, (x, y) in every}


def _pixels(x: list[Any]) -> np.ndarray:
    """Converts images to uint8 `[n, 28, 28]`."""
    for image in x:
        if not isinstance(image, list | np.ndarray) or len(image) != _PIXELS:
            raise ValueError(f"an image needs {_PIXELS} pixels; got {length_of(image, 'values')}")
    try:
        pixels = np.array(x, np.float32).reshape(-1, 28, 28)
    except (TypeError, ValueError) as error:
        raise ValueError(f"pixels must be numbers; {error}") from error
    if not ((pixels >= 0) & (pixels <= 1)).all():
        raise ValueError(f"pixels must lie in [0, 1]; they run from {pixels.min()} to {pixels.max()}")
    return np.rint(pixels * 255).astype(np.uint8)


def _labels(y: list[Any]) -> np.ndarray:
    labels = np.array(y) if y else np.zeros(0, np.uint8)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError(f"labels must be whole numbers; got {y[:3]}")
    if len(labels) and not 0 <= labels.min() <= labels.max() < CLASSES:
        raise ValueError(f"labels run from {labels.min()} to {labels.max()}, outside 0..{CLASSES - 1}")
    return labels.astype(np.uint8)


def _arrays(train: Users, test: Users) -> dict[str, np.ndarray]:
    users = np.array(sorted(train.keys() | test.keys()))
    arrays = {"users": users}
    for part, half in (("train", train), ("test", test)):
        arrays[f"x_{part}"], arrays[f"y_{part}"], owners = pooled(half)
        arrays[f"user_{part}"] = np.searchsorted(users, owners)
    return arrays
