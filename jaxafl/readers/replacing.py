"""Files that are complete at any instant."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator

from jaxafl.options import as_path


def beside(path: str | os.PathLike[str]) -> pathlib.Path:
    """The name under which a file is written before it is complete; of the same folder and ending."""
    target = as_path(path).resolve()  # a link stays one
    return target.with_name(f".{target.stem}.{os.getpid()}.part{target.suffix}")


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """The name to write a file under: it replaces the one at `path` at the end, which stays as it is after an error."""
    unfinished = beside(path)
    try:
        yield unfinished
        os.replace(unfinished, as_path(path).resolve())
    finally:
        unfinished.unlink(missing_ok=True)
