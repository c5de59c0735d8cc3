"""Atomic replacement of files."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator

from jaxafl.options import as_path


def temporary_path(path: str | os.PathLike[str]) -> pathlib.Path:
    """Returns the path under which a file is written until it is complete, with its folder and ending."""
    target = as_path(path).resolve()  # keeps a symbolic link, and replaces its target
    return target.with_name(f".{target.stem}.{os.getpid()}.part{target.suffix}")


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """Yields a temporary path; the file written to it replaces `path` at the end, unless an error occurs."""
    unfinished = temporary_path(path)
    try:
        yield unfinished
        os.replace(unfinished, as_path(path).resolve())
    finally:
        unfinished.unlink(missing_ok=True)
