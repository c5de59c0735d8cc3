"""Downloads of published datasets by pooch, checked by SHA-256."""

from __future__ import annotations

import functools
import inspect
import pathlib
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from jaxafl.options import check_choice, check_flag
from jaxafl.readers.directory import Directory, MissingDataset, data_directory

P = ParamSpec("P")
T = TypeVar("T")
REGISTRY = pathlib.Path(__file__).with_name("registry.txt")
"""The published files: path in the data directory, SHA-256 and address."""
PLACES = {name: f"{name}/" for name in ("mnist", "fashion_mnist", "cifar10", "cifar100", "femnist", "shakespeare")}
PLACES |= {"glue_rte": "glue/RTE", "glue_mrpc": "glue/MRPC", "glue_sst2": "glue/SST-2"}
"""Dataset -> beginning of the paths of its files."""


def download(name: str, data_dir: Directory = None) -> pathlib.Path:
    """Downloads the published files of a dataset into the data directory; `jaxafl data NAME` does the same.

    Every file is compared with its published SHA-256 before it gets its name, so a folder never holds half a file.
    Complete files are not downloaded again.

    Args:
        name: `"mnist"` (with QMNIST's writers), `"fashion_mnist"`, `"cifar10"`, `"cifar100"`, `"femnist"` and
            `"shakespeare"` (LEAF's writers and roles, as TensorFlow Federated publishes them),
            `"glue_rte"`, `"glue_mrpc"` or `"glue_sst2"`.
        data_dir: data directory; by default `$JAXAFL_DATA_DIR`, else TFDS's default.

    Returns:
        The folder with the files.

    Raises:
        ValueError: the name is unknown, or an address has another file than the published one.
        OSError: a server cannot be reached, refuses, or ends the connection too early (by the package requests).
    """
    check_choice("download", "name", name, tuple(PLACES))
    import pooch

    files = pooch.create(data_directory(data_dir), base_url="")
    files.load_registry(REGISTRY)
    folder = (files.abspath / f"{PLACES[name]}x").parent
    # identity: a server may compress the content again, which would change its SHA-256
    client = pooch.HTTPDownloader(headers={"Accept-Encoding": "identity"}, timeout=30)
    for file in [file for file in files.registry if file.startswith(PLACES[name])]:
        unpack = pooch.Unzip if file.endswith(".zip") else pooch.Untar if ".tar." in file else None
        files.fetch(file, processor=unpack and unpack(extract_dir="."), downloader=client)
    if name == "glue_mrpc":
        _split_mrpc(folder / "MRPC")
    return folder


def downloadable(load: Callable[P, T]) -> Callable[P, T]:
    """Decorates the loader of a dataset in `PLACES`, which has the options `data_dir` and `download`.

    With `download=True`, missing files are downloaded and loaded. Otherwise the error for missing files first says how
    to download them.
    """
    name = load.__name__

    @functools.wraps(load)
    def loaded(*args: P.args, **options: P.kwargs) -> T:
        given = inspect.signature(load).bind(*args, **options).arguments
        check_flag(name, "download", given.get("download", False))
        try:
            return load(*args, **options)
        except MissingDataset as error:
            if not given.get("download"):
                ways = f"afl.data.{name}(download=True), jaxafl run --download or jaxafl data {name}"
                raise MissingDataset(f"{name} is missing. Download it: {ways}.\n{error}") from None
        download(name, given.get("data_dir"))
        return load(*args, **options)

    return loaded


def _split_mrpc(folder: pathlib.Path) -> None:
    """Splits the published pairs of MRPC into GLUE's training and dev set."""
    ids = {tuple(line.split("\t")[:2]) for line in (folder / "mrpc_dev_ids.tsv").read_text("utf-8").splitlines()}
    header, *lines = (folder / "msr_paraphrase_train.txt").read_text("utf-8-sig").split("\n")
    for half in ("train", "dev"):
        rows = [line for line in lines if (tuple(line.split("\t")[1:3]) in ids) == (half == "dev")]
        (folder / f"{half}.tsv").write_text("\n".join([header, *rows]), "utf-8", newline="\n")
