"""FEMNIST: handwritten characters, one client per real writer."""

from __future__ import annotations

import hashlib
import importlib.resources
import io
import os
import pathlib

import numpy as np

from jaxafl.checks import check_whole
from jaxafl.data.dataset import Dataset
from jaxafl.data.directory import data_directory, missing_dataset
from jaxafl.data.federated import FederatedData
from jaxafl.data.femnist_leaf import read_json
from jaxafl.data.leaf import leaf_files
from jaxafl.data.partition.by_user import by_user
from jaxafl.data.preprocessing import normalise

CLASSES = 62
_SHIPPED = "femnist_10writers.npz"
_LARGE = "femnist_207writers.npz"
_SHA256 = {
    _SHIPPED: "6b3ed2b190b9521c34c0db1c90d691200ae8a88cd5ecc02cc1965d8d4c0e65f3",
    _LARGE: "92a305bd029b049fc706145abeba15b20f9b51a95c3f2eb697f2286d9be612d6",
}


def femnist(clients: int | None = 10, *, data_dir: str | os.PathLike[str] | None = None) -> FederatedData:
    """FEMNIST of LEAF: 28 × 28 images of digits and letters, 62 classes, one client per real writer.

    Classes 0-9 are the digits, 10-35 the letters A-Z, 36-61 a-z. Up to ten writers ship with the package and need no
    files. More, or all (`clients=None`), are read from the first of these that is there:

    1. LEAF's own json files, `<data_dir>/femnist/train/*.json` and `test/*.json` (gzipped as `*.json.gz` or not): the
       full dataset of about 3,500 writers, or any sample of it;
    2. `<data_dir>/femnist/femnist_207writers.npz`.

    Clients are in either case the shipped writers, where the files hold them, then the others by falling number of
    training samples. Every writer keeps LEAF's own split into training and test samples (`-t sample`), and the test set
    pools those of the clients in use. Where LEAF held out whole writers instead (`-t user`), the test set is all of
    theirs. `description` says which files and which split.

    Args:
        clients: Number of writers; `None` for all that the files hold.
        data_dir: Data directory for more than ten writers; by default `$JAXAFL_DATA_DIR`, else TFDS's own default.

    Returns:
        The federated dataset: x uint8 `[n, 28, 28, 1]` in LEAF's polarity (paper is 255, ink is dark), scaled to x/255
        in the step (paper is 1.0).

    Raises:
        FileNotFoundError: If more than ten writers are asked for and neither kind of file is there.
        ValueError: If a file is damaged, or more writers are asked for than there are.

    References:
        Caldas et al., "LEAF: A Benchmark for Federated Settings", arXiv:1812.01097, 2018; Cohen et al., "EMNIST:
        extending MNIST to handwritten letters", IJCNN 2017.
    """
    clients = None if clients is None else check_whole("femnist", "clients", clients)
    shipped = _read(_SHIPPED, importlib.resources.files("jaxafl.data").joinpath("files", _SHIPPED).read_bytes())
    first = [str(user) for user in shipped["users"]]
    if clients is not None and clients <= len(first):
        return _federated(shipped, first[:clients], {"source": _SHIPPED})
    folder = data_directory(data_dir) / "femnist"
    arrays, source = _from_directory(folder, f"femnist with {clients or 'all'} writers", len(first))
    writers = _in_order(arrays, first)
    if clients is not None and clients > len(writers):
        raise ValueError(
            f"femnist: {clients} clients asked for, but {folder} ({source['source']}) holds {len(writers)} writers"
        )
    return _federated(arrays, writers[:clients], source)


def _from_directory(
    folder: pathlib.Path, wanted: str, shipped: int
) -> tuple[dict[str, np.ndarray], dict[str, str | int | float]]:
    """The arrays of the json files, else of the npz file, with what `description` says of them."""
    train, test = leaf_files(folder / "train"), leaf_files(folder / "test")
    if train and test:
        arrays, split = read_json(train, test, CLASSES)
        return arrays, {"source": "LEAF json", "files": len(train) + len(test), "split": split}
    if train or test:
        there, absent = ("train", "test") if train else ("test", "train")
        raise FileNotFoundError(
            f"{folder} holds only part of femnist: no json file in {absent}. Add those that LEAF wrote with the ones "
            f"in {there}, or remove these to let {_LARGE} be used."
        )
    path = folder / _LARGE
    if not path.is_file():
        raise missing_dataset(
            wanted,
            [folder / "train", folder / "test", path],
            [
                f"Use clients={shipped} or fewer: these writers ship with the package.",
                "Run LEAF's own preprocessing (github.com/TalwalkarLab/leaf, data/femnist: preprocess.sh -s niid "
                f"--sf 1.0 -k 0 -t sample) and put the json files of its data/train and data/test into "
                f"{folder / 'train'} and {folder / 'test'}, or {_LARGE} into {folder}.",
            ],
        )
    return _read(_LARGE, path.read_bytes()), {"source": _LARGE}


def _in_order(arrays: dict[str, np.ndarray], first: list[str]) -> list[str]:
    """Writers with training samples: those of `first`, then the others by falling number of them, then by name."""
    counts = np.bincount(arrays["user_train"], minlength=len(arrays["users"]))
    order = [index for index in np.lexsort((arrays["users"], -counts)) if counts[index]]
    found = [str(arrays["users"][index]) for index in order]
    return [user for user in first if user in found] + [user for user in found if user not in first]


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


def _federated(
    arrays: dict[str, np.ndarray], writers: list[str], source: dict[str, str | int | float]
) -> FederatedData:
    """One client per writer, in the order given."""
    client_of = np.full(len(arrays["users"]), -1)
    index = {str(user): number for number, user in enumerate(arrays["users"])}
    client_of[[index[writer] for writer in writers]] = np.arange(len(writers))
    train = client_of[arrays["user_train"]]
    test = client_of[arrays["user_test"]] >= 0
    if source.get("split") == "user":
        test[:] = True
    kept = train >= 0
    dataset = Dataset(
        "femnist",
        _rows(arrays["x_train"], kept)[..., None],
        _rows(arrays["y_train"], kept),
        _rows(arrays["x_test"], test)[..., None],
        _rows(arrays["y_test"], test),
        CLASSES,
        normalise(255.0),
        users=_rows(train, kept),
        source=source,
        references=("caldas2018",),
    )
    return dataset.partition(by_user())


def _rows(array: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """The rows to keep; the array itself, not a copy of hundreds of megabytes, where that is all of them."""
    return array if kept.all() else array[kept]
