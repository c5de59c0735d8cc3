"""idx files, the format of MNIST: a big-endian header, then the values."""

from __future__ import annotations

import hashlib
import math
import pathlib

import numpy as np

from jaxafl.data.archive import damaged, read_content

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: pathlib.Path, sha256: str | None = None) -> np.ndarray:
    """Read an idx file, gzipped (`*.gz`) or not.

    Args:
        path: The file.
        sha256: Expected SHA-256 of the unzipped content, in hexadecimal; `None` skips this check.

    Returns:
        The array, in native byte order.

    Raises:
        ValueError: If the file is damaged: a broken gzip stream, a bad header, a wrong length or a wrong SHA-256. The
            message names the file and what was expected.
    """
    content = read_content(path)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _TYPES:
        raise damaged(path, f"expected an idx header (two zero bytes, a type, a rank); it begins with {content[:4]!r}")
    dtype, rank = np.dtype(_TYPES[content[2]]), content[3]
    start = 4 + 4 * rank
    if len(content) < start:
        raise damaged(path, f"expected a header of {start} bytes; the content has {len(content)}")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", rank, 4))
    expected = start + dtype.itemsize * math.prod(shape)
    if len(content) != expected:
        raise damaged(
            path, f"expected {expected} bytes for the shape {shape} in its header; the content has {len(content)}"
        )
    found = hashlib.sha256(content).hexdigest()
    if sha256 is not None and found != sha256:
        raise damaged(path, f"expected content with SHA-256 {sha256}; found {found}")
    return np.frombuffer(content, dtype, offset=start).reshape(shape).astype(dtype.newbyteorder("="))
