"""FEMNIST: handwritten characters, one client per writer."""

from __future__ import annotations

import importlib.resources
import io
import pathlib
from typing import Any

import numpy as np

from jaxafl.data.dataset import Dataset, Source
from jaxafl.data.federated import FederatedData
from jaxafl.data.partition.alike import by_user
from jaxafl.data.preprocessing import normalise
from jaxafl.options import check_whole, named
from jaxafl.readers.archive import SHA256, check_sha256
from jaxafl.readers.directory import Directory, data_directory, missing_dataset
from jaxafl.readers.download import downloadable
from jaxafl.readers.leaf import Users, leaf_halves, pooled, read_examples, read_halves

CLASSES = 62
_SHIPPED = "femnist_10writers.npz"
_LARGE = "femnist_207writers.npz"


@named
@downloadable
def femnist(clients: int | None = 10, *, data_dir: Directory = None, download: bool = False) -> FederatedData:
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
    train, test = _read_npz(_SHIPPED, importlib.resources.files("jaxafl.data").joinpath("files", _SHIPPED).read_bytes())
    source: Source = {"source": _SHIPPED}
    first = [*train]
    folder = data_directory(data_dir) / "femnist"
    if clients is None or clients > len(first):
        (train, test), source = _from_directory(folder, f"femnist with {clients or 'all'} writers")
    counts = {user: len(y) for user, (_, y) in train.items() if len(y)}
    writers = sorted(counts, key=lambda user: ([*first, user].index(user), -counts[user], user))
    if clients is not None and clients > len(writers):
        raise ValueError(
            f"femnist: {clients} clients asked for; {folder} ({source['source']}) holds {len(writers)} writers"
        )
    number = {user: client for client, user in enumerate(writers[:clients])}
    x, y, users = pooled({user: train[user] for user in train if user in number})
    whole = source.get("split") == "user"
    x_test, y_test, owners = pooled({user: test[user] for user in test if whole or user in number})
    dataset = Dataset(
        *("femnist", x[..., None], y, x_test[..., None], y_test, CLASSES, normalise(255.0)),
        users=np.array([number[user] for user in users.tolist()]),
        source=source,
        references=("caldas2018",),
        user_names=np.array([*number]),
    )
    owned = np.array([number.get(user, -1) for user in owners], np.int32)  # -1: LEAF held the writer out entirely
    return dataset.partition(by_user()).owned_test(owned)


def _from_directory(folder: pathlib.Path, wanted: str) -> tuple[list[Users], Source]:
    """Reads the json, HDF5 or npz files; returns training and test samples by writer, and the source."""
    train, test = leaf_halves("femnist", folder)
    if train:
        *halves, split = read_halves("femnist", train, test, lambda x, y: (_pixels(x), _labels(y)))
        return halves, {"source": "LEAF json", "files": len(train) + len(test), "split": split}
    published = [folder / f"fed_emnist_{half}.h5" for half in ("train", "test")]
    if all(path.is_file() for path in published):
        return [*map(_read_published, published)], {"source": "TensorFlow Federated", "split": "sample"}
    if (folder / _LARGE).is_file():
        return _read_npz(_LARGE, (folder / _LARGE).read_bytes()), {"source": _LARGE}
    ways = [
        "Use clients=10 or fewer: these writers ship with the package.",
        "Run LEAF's own preprocessing (github.com/TalwalkarLab/leaf, data/femnist: preprocess.sh -s niid "
        f"--sf 1.0 -k 0 -t sample) and put its data/train and data/test, or {_LARGE}, into {folder}.",
    ]
    raise missing_dataset(wanted, [folder / "train", folder / "test", *published, folder / _LARGE], ways)


def _read_npz(file: str, content: bytes) -> list[Users]:
    """Reads training and test samples by writer from an npz file after checking its SHA-256; never unpickles."""
    check_sha256(file, content, SHA256[f"femnist/{file}"])
    with np.load(io.BytesIO(content), allow_pickle=False) as stored:
        arrays = dict(stored)
    halves: list[Users] = []
    for half in ("train", "test"):
        x, y, users = (arrays[f"{name}_{half}"] for name in ("x", "y", "user"))
        samples = {}
        for place, user in enumerate(arrays["users"].tolist()):
            own = users == place
            samples[user] = x[own], y[own]
        halves.append(samples)
    return halves


def _read_published(path: pathlib.Path) -> Users:
    return {user: (_pixels(x), _labels(y)) for user, (x, y) in read_examples(path, "pixels", "label")}


def _pixels(x: Any) -> np.ndarray:
    """Converts images to uint8 `[n, 28, 28]`, which is exact: LEAF writes x/255."""
    pixels = np.array(x, np.float32).reshape(len(x), 28, 28)
    if not ((pixels >= 0) & (pixels <= 1)).all():
        raise ValueError(f"pixels run from {pixels.min()} to {pixels.max()}, outside [0, 1]")
    return np.rint(pixels * 255).astype(np.uint8)


def _labels(y: Any) -> np.ndarray:
    labels = np.array(y, np.float64)
    if not np.isin(labels, np.arange(CLASSES)).all():
        raise ValueError(f"labels must be whole numbers in 0..{CLASSES - 1}")
    return labels.astype(np.uint8)
