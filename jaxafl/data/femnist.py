"""FEMNIST: handwritten characters, one client per writer."""

from __future__ import annotations

import hashlib
import importlib.resources
import io
import os

import numpy as np

from jaxafl.data.dataset import Dataset
from jaxafl.data.directory import data_directory, missing_dataset
from jaxafl.data.federated import FederatedData
from jaxafl.data.partition.by_user import by_user
from jaxafl.data.partition.partitioner import check_clients
from jaxafl.data.preprocessing import normalise

CLASSES = 62
_SHIPPED = "femnist_10writers.npz"
_LARGE = "femnist_207writers.npz"
_SHA256 = {
    _SHIPPED: "6b3ed2b190b9521c34c0db1c90d691200ae8a88cd5ecc02cc1965d8d4c0e65f3",
    _LARGE: "92a305bd029b049fc706145abeba15b20f9b51a95c3f2eb697f2286d9be612d6",
}


def femnist(clients: int = 10, *, data_dir: str | os.PathLike[str] | None = None) -> FederatedData:
    """FEMNIST of LEAF: 28 × 28 images of digits and letters, 62 classes, one client per real writer.

    Classes 0-9 are the digits, 10-35 the letters A-Z, 36-61 a-z. Every writer keeps LEAF's own split into training and
    test samples; the test set pools those of the clients in use. Ten writers ship with the package and need no files.
    More are read from `<data_dir>/femnist/femnist_207writers.npz`: the ten, then the others by falling number of
    training samples, so that fewer clients are always the first of more.

    Args:
        clients: Number of writers: at most 10 without further files, at most 207 with the larger file.
        data_dir: Data directory for more than ten writers; by default `$JAXAFL_DATA_DIR`, else TFDS's own default.

    Returns:
        The federated dataset: x uint8 `[n, 28, 28, 1]` in LEAF's polarity (paper is 255, ink is dark), scaled to x/255
        in the step (paper is 1.0).

    Raises:
        FileNotFoundError: If more than ten writers are asked for and the larger file is not there.
        ValueError: If a file is damaged, or more writers are asked for than there are.

    References:
        Caldas et al., "LEAF: A Benchmark for Federated Settings", arXiv:1812.01097, 2018; Cohen et al., "EMNIST:
        extending MNIST to handwritten letters", IJCNN 2017.
    """
    clients = check_clients(clients)
    shipped = _read(_SHIPPED, importlib.resources.files("jaxafl.data").joinpath("files", _SHIPPED).read_bytes())
    first = list(shipped["users"])
    if clients <= len(first):
        return _federated(shipped, first[:clients], _SHIPPED)
    path = data_directory(data_dir) / "femnist" / _LARGE
    if not path.is_file():
        raise missing_dataset(
            f"femnist with {clients} writers",
            [path],
            [f"Use clients={len(first)} or fewer: these writers ship with the package.", f"Put {_LARGE} there."],
        )
    large = _read(_LARGE, path.read_bytes())
    order = np.lexsort((large["users"], -np.bincount(large["user_train"], minlength=len(large["users"]))))
    writers = first + [user for user in large["users"][order] if user not in first]
    if clients > len(writers):
        raise ValueError(f"femnist: {clients} clients asked for, but {path} holds {len(writers)} writers")
    return _federated(large, writers[:clients], _LARGE)


def _read(file: str, content: bytes) -> dict[str, np.ndarray]:
    """The arrays of an npz file whose SHA-256 is known; never unpickles."""
    found = hashlib.sha256(content).hexdigest()
    if found != _SHA256[file]:
        raise ValueError(
            f"{file} is damaged: expected SHA-256 {_SHA256[file]}; found {found} ({len(content)} bytes). Replace it by "
            "the original file."
        )
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return dict(arrays)


def _federated(arrays: dict[str, np.ndarray], writers: list[str], file: str) -> FederatedData:
    """One client per writer, in the order given."""
    client_of = np.full(len(arrays["users"]), -1)
    for client, writer in enumerate(writers):
        client_of[arrays["users"] == writer] = client
    train, test = client_of[arrays["user_train"]], client_of[arrays["user_test"]]
    dataset = Dataset(
        "femnist",
        arrays["x_train"][train >= 0][..., None],
        arrays["y_train"][train >= 0],
        arrays["x_test"][test >= 0][..., None],
        arrays["y_test"][test >= 0],
        CLASSES,
        normalise(255.0),
        users=train[train >= 0],
        source={"source": file},
    )
    return dataset.partition(by_user())
