"""Downloads of published datasets by pooch, checked by SHA-256, and continued if they are interrupted."""

from __future__ import annotations

import contextlib
import errno
import functools
import inspect
import os
import pathlib
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

from jaxafl.options import UserError, check_choice, check_flag
from jaxafl.readers.directory import MissingDataset, data_directory
from jaxafl.readers.replacing import replacing

P = ParamSpec("P")
T = TypeVar("T")
REGISTRY = pathlib.Path(__file__).with_name("registry.txt")
"""The published files: path in the data directory, SHA-256 and address."""
PLACES = {name: f"{name}/" for name in ("mnist", "fashion_mnist", "cifar10", "cifar100", "femnist", "shakespeare")}
PLACES |= {"glue_rte": "glue/RTE", "glue_mrpc": "glue/MRPC", "glue_sst2": "glue/SST-2"}
"""Dataset -> beginning of the paths of its files."""
_MEMBERS = {  # archive -> the files to unpack; CIFAR is read from its archive
    "fed_emnist.tar.bz2": ("fed_emnist_train.h5", "fed_emnist_test.h5"),
    "shakespeare.tar.bz2": ("shakespeare_train.h5", "shakespeare_test.h5"),
    "RTE.zip": ("RTE/train.tsv", "RTE/dev.tsv"),
    "SST-2.zip": ("SST-2/train.tsv", "SST-2/dev.tsv"),
}
_CHUNK = 2**16  # bytes, the most that an interruption loses


def download(name: str, data_dir: str | os.PathLike[str] | None = None) -> pathlib.Path:
    """Downloads the published files of a dataset into the data directory; `jaxafl data NAME` does the same.

    Every file is compared with its published SHA-256 before it gets its name, so a folder never holds half a file.
    Complete files are not downloaded again. An interrupted download goes on where it stopped, if the server can do so.
    If several processes download into one folder, one of them does, and the others wait for it.

    Args:
        name: `"mnist"` (with QMNIST's writers), `"fashion_mnist"`, `"cifar10"`, `"cifar100"`, `"femnist"` and
            `"shakespeare"` (LEAF's writers and roles, as TensorFlow Federated publishes them),
            `"glue_rte"`, `"glue_mrpc"` or `"glue_sst2"`.
        data_dir: data directory; by default `$JAXAFL_DATA_DIR`, else TFDS's default.

    Returns:
        The folder with the files.

    Raises:
        ValueError: the name is unknown, or an address has another file than the published one.
        ConnectionError: a server cannot be reached, refuses, or ends the connection too early.
        OSError: the folder cannot be written, or the disk is too small.
    """
    check_choice("download", "name", name, tuple(PLACES))
    import pooch
    import requests

    files = pooch.create(data_directory(data_dir), base_url="")
    files.load_registry(REGISTRY)
    folder = files.abspath / pathlib.Path(f"{PLACES[name]}x").parent
    for file in [file for file in files.registry if file.startswith(PLACES[name])]:
        path = files.abspath / file
        part = path.with_name(f".{path.name}.part")
        try:
            with _locked(path.parent):
                if not path.exists() or pooch.file_hash(str(path)) != files.registry[file]:
                    _complete(files.urls[file], part)
                files.fetch(file, processor=_unpacked, downloader=lambda _url, new, _, part=part: os.replace(part, new))
        except requests.RequestException as error:
            reason = getattr(error.args[0] if error.args else error, "reason", error)
            raise ConnectionError(
                f"{name}: {files.urls[file]} could not be downloaded: {reason}. Run it again, and it goes on where it "
                f"stopped. Without network, copy {folder} from a machine where `jaxafl data {name}` was run."
            ) from error
        except ValueError as error:
            raise UserError(
                f"{name}: {files.urls[file]} has another file than the published one: {str(error).partition('. ')[0]}. "
                f"Nothing of it is kept. Run it again, or put {path.name} from another source into {path.parent}."
            ) from error
        except OSError as error:
            if error.errno == errno.ENOSPC:
                part.unlink(missing_ok=True)
            raise OSError(
                error.errno,
                f"{name}: {path.name} cannot be written: {error.strerror}. Make room, or name another data directory",
                str(path.parent),
            ) from error
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


@contextlib.contextmanager
def _locked(folder: pathlib.Path) -> Iterator[None]:
    """Holds the lock of a folder, so that only one process at a time writes into it."""
    import fcntl  # not on Windows

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _complete(url: str, part: pathlib.Path) -> None:
    """Downloads the rest of a file. An interrupted download is tried again if it got further than before."""
    import requests

    while True:
        size = part.stat().st_size if part.exists() else 0
        try:
            return _continue(url, part, size)
        except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError):
            if not part.exists() or part.stat().st_size <= size:
                raise


def _continue(url: str, part: pathlib.Path, size: int) -> None:
    """Downloads a file from its byte `size` on, or from its beginning if the server does not offer that."""
    import requests
    from rich.console import Console
    from rich.progress import track

    # identity: a server may compress the content again, which would change its SHA-256
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={size}-"} if size else {})
    with requests.get(url, headers=headers, stream=True, timeout=30) as response:
        if response.status_code == requests.codes.requested_range_not_satisfiable:
            return  # nothing is left to download
        response.raise_for_status()
        rest = int(response.headers.get("Content-Length", 0))
        if rest > shutil.disk_usage(part.parent).free:
            raise OSError(errno.ENOSPC, f"the disk has less than the {rest / 1e6:.0f} MB that are needed")
        shown: Any = {"total": rest / _CHUNK or None, "transient": True, "console": Console(stderr=True)}
        with part.open("ab" if response.status_code == requests.codes.partial_content else "wb") as file:
            for chunk in track(response.iter_content(_CHUNK), f"downloading {part.name[1:-5]}", **shown):
                file.write(chunk)


def _unpacked(path: str, *_: Any) -> None:
    """Unpacks the files that are read from an archive next to it, and splits MRPC; a processor for pooch."""
    archive = pathlib.Path(path)
    members = [member for member in _MEMBERS.get(archive.name, ()) if not (archive.parent / member).is_file()]
    if members:
        with tempfile.TemporaryDirectory(prefix=".", dir=archive.parent) as folder:
            has_filter = archive.suffix != ".zip" and hasattr(tarfile, "data_filter")  # not before Python 3.11.4
            safe: Any = {"filter": "data"} if has_filter else {}
            shutil.unpack_archive(archive, folder, **safe)
            for member in members:
                (archive.parent / member).parent.mkdir(exist_ok=True)
                os.replace(pathlib.Path(folder, member), archive.parent / member)
    if archive.name == "mrpc_dev_ids.tsv":
        ids = {tuple(line.split("\t")[:2]) for line in archive.read_text(encoding="utf-8").splitlines()}
        every = archive.with_name("msr_paraphrase_train.txt").read_text(encoding="utf-8-sig").split("\n")
        for half in ("train", "dev"):
            rows = [line for line in every[1:] if (tuple(line.split("\t")[1:3]) in ids) == (half == "dev")]
            with replacing(archive.with_name(f"{half}.tsv")) as unfinished:
                unfinished.write_text("\n".join([every[0], *rows]), encoding="utf-8", newline="\n")
