"""Paths that users pass."""

from __future__ import annotations

import os
import pathlib

from jaxafl.options.checks import UserError


def as_path(path: str | os.PathLike[str]) -> pathlib.Path:
    """Returns a path with a leading `~` or `~user` replaced by the home directory.

    Raises:
        TypeError: the argument is no path.
        ValueError: the user does not exist.
    """
    try:
        return pathlib.Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(f"{path} has no home directory; a file of this name is ./{path}") from error
