"""Readers for files that may be damaged or hostile: into memory, without unpacking or unpickling."""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import pathlib
import tarfile
import zlib
from collections.abc import Iterable, Sequence

import numpy as np

from jaxafl.readers.directory import MissingDataset

_SUMS = pathlib.Path(__file__).with_name("SHA256SUMS").read_text().splitlines()
SHA256: dict[str, str] = {name: digest for digest, name in map(str.split, _SUMS)}
"""`dataset/file` -> SHA-256 of the canonical file, unzipped if its name ends in `.gz`, archives as they are."""
_IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_content(path: pathlib.Path) -> bytes:
    """Returns the content of a file, unzipped if it ends in `.gz`; raises `ValueError` for a damaged gzip file."""
    raw = path.read_bytes()
    if path.suffix != ".gz":
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, f"expected a complete gzip file; {error}") from error


def read_text(path: pathlib.Path, advice: str) -> str:
    """Returns the UTF-8 text of a file, gzipped or not, without a byte-order mark; `advice` ends the error message."""
    try:
        return read_content(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise damaged(path, f"expected UTF-8 text; {error}", advice) from error


def read_members(path: pathlib.Path, names: Sequence[str]) -> list[bytes]:
    """Reads some members of a tar archive, gzipped or not, into memory. Nothing is written; other members are skipped.

    Args:
        path: the archive.
        names: paths of regular files inside it, for example `"cifar-10-batches-bin/test_batch.bin"`.

    Returns:
        The content of each member, in the order of `names`.

    Raises:
        ValueError: the archive is damaged or cut short, lacks a member, holds one twice, or holds a link or a device
            in its place. The message names the archive and the member.
    """
    found: dict[str, bytes] = {}
    content = io.BytesIO(read_content(path))
    try:
        with tarfile.open(fileobj=content, mode="r:") as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                if name not in names:
                    continue
                stream = archive.extractfile(member) if member.isfile() else None
                if stream is None:
                    raise damaged(path, f"its member {name!r} is a link, a folder or a device, not a plain file")
                if name in found:
                    raise damaged(path, f"it holds {name} twice")
                found[name] = stream.read()
    except tarfile.TarError as error:
        raise damaged(path, f"expected a complete tar archive; {error}") from error
    if absent := [name for name in names if name not in found]:
        raise damaged(path, f"it lacks {', '.join(absent)}")
    return [found[name] for name in names]


def read_idx(path: pathlib.Path, sha256: str | None = None) -> np.ndarray:
    """Reads an idx file, the format of MNIST: a big-endian header, then the values; gzipped (`*.gz`) or not.

    Args:
        path: the file.
        sha256: expected SHA-256 of the unzipped content, in hexadecimal; `None` skips this check.

    Returns:
        The array, in native byte order.

    Raises:
        ValueError: the file is damaged: a broken gzip stream, a bad header, a wrong length or a wrong SHA-256. The
            message names the file and what was expected.
    """
    content = read_content(path)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _IDX_TYPES:
        raise damaged(path, f"expected an idx header (two zero bytes, a type, a rank); it begins with {content[:4]!r}")
    dtype = np.dtype(_IDX_TYPES[content[2]])
    rank = content[3]
    start = 4 + 4 * rank
    if len(content) < start:
        raise damaged(path, f"expected a header of {start} bytes; the content has {len(content)}")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", rank, 4))
    expected = start + dtype.itemsize * math.prod(shape)
    if len(content) != expected:
        raise damaged(
            path, f"expected {expected} bytes for the shape {shape} in its header; the content has {len(content)}"
        )
    check_sha256(path, content, sha256)
    return np.frombuffer(content, dtype, offset=start).reshape(shape).astype(dtype.newbyteorder("="))


def check_sha256(path: pathlib.Path | str, content: bytes, expected: str | None) -> None:
    """Raises `ValueError` unless the content has the expected SHA-256 (hexadecimal; `None` skips the check)."""
    found = hashlib.sha256(content).hexdigest()
    if expected is not None and found != expected:
        raise damaged(path, f"expected SHA-256 {expected}; found {found} ({len(content)} bytes)")


def lacking(content: object, *keys: str) -> str:
    """Returns the keys that parsed json lacks, for a message; "" if it is an object with all of them."""
    found = content if isinstance(content, dict) else {}
    return ", ".join(repr(key) for key in keys if key not in found)


def find_files(name: str, places: Iterable[tuple[pathlib.Path, Sequence[str]]]) -> list[pathlib.Path]:
    """Returns the files of a dataset, gzipped as `*.gz` or not, from the first folder that holds any of them.

    Args:
        name: name of the dataset.
        places: folders, each with the names of the files in it.

    Returns:
        The paths in the order of the names; empty if no folder holds any.

    Raises:
        FileNotFoundError: the folder holds only some of them.
    """
    for folder, names in places:
        found = {file: path for file in names for path in (folder / f"{file}.gz", folder / file) if path.is_file()}
        absent = [file for file in names if file not in found]
        if found and absent:
            raise partial_dataset(folder, name, f"{', '.join(absent)} (or *.gz)")
        if found:
            return [found[file] for file in names]
    return []


def damaged(path: pathlib.Path | str, detail: str, advice: str = "Replace it by the canonical file.") -> ValueError:
    """Returns the error for a damaged file, to be raised by the caller.

    Args:
        path: the file.
        detail: the expected and the found content, without a full stop.
        advice: advice, one sentence.
    """
    return ValueError(f"{path} is damaged: {detail}. {advice}")


def partial_dataset(folder: pathlib.Path, name: str, absent: str) -> MissingDataset:
    """Returns the error for a folder that lacks the file `absent` of a dataset."""
    return MissingDataset(
        f"{folder} holds only part of {name}: {absent} is missing. Add what is missing, or remove the rest to let "
        "another source be used."
    )
