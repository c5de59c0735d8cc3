"""Readers for files that may be damaged: gzipped or not, with a known SHA-256, text or arrays."""

from __future__ import annotations

import gzip
import hashlib
import pathlib
import zlib

import numpy as np

_SUMS = pathlib.Path(__file__).with_name("SHA256SUMS").read_text().splitlines()
SHA256: dict[str, str] = {name: digest for digest, name in map(str.split, _SUMS)}
"""`dataset/file` -> SHA-256 of the canonical file, unzipped if its name ends in `.gz`, archives as they are."""
_IDX_TYPES = {0x08: ">u1", 0x0C: ">i4"}


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


def read_idx(path: pathlib.Path, sha256: str) -> np.ndarray:
    """Reads an idx file, the format of MNIST: a big-endian header, then the values; gzipped (`*.gz`) or not.

    Args:
        path: the file.
        sha256: expected SHA-256 of the unzipped content, in hexadecimal.

    Returns:
        The array, in native byte order.

    Raises:
        ValueError: the file is damaged. The message names the file.
    """
    content = read_content(path)
    check_sha256(path, content, sha256)
    dtype, rank = np.dtype(_IDX_TYPES[content[2]]), content[3]
    shape = np.frombuffer(content, ">u4", rank, 4)
    return np.frombuffer(content, dtype, offset=4 + 4 * rank).reshape(shape).astype(dtype.newbyteorder("="))


def check_sha256(path: pathlib.Path | str, content: bytes, expected: str | None) -> None:
    """Raises `ValueError` unless the content has the expected SHA-256 (hexadecimal; `None` skips the check)."""
    found = hashlib.sha256(content).hexdigest()
    if expected is not None and found != expected:
        raise damaged(path, f"expected SHA-256 {expected}; found {found} ({len(content)} bytes)")


def damaged(path: pathlib.Path | str, detail: str, advice: str = "Replace it by the canonical file.") -> ValueError:
    """Returns the error for a damaged file, to be raised by the caller.

    Args:
        path: the file.
        detail: the expected and the found content, without a full stop.
        advice: advice, one sentence.
    """
    return ValueError(f"{path} is damaged: {detail}. {advice}")
