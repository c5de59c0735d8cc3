"""Paths as users write them."""

from __future__ import annotations

import os
import pathlib

from jaxafl.options.checks import UserError, shown


def as_path(path: str | os.PathLike[str]) -> pathlib.Path:
    """Returns a path in which `~` and `~user` at its begin are home directories, as a shell would have them.

    Raises:
        TypeError: it is no path.
        ValueError: there is no such user.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"a file is named by its path, a str or pathlib.Path such as 'result.nc'; got {shown(path)}")
    try:
        return pathlib.Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(f"{path} has no home directory; a file of this name is ./{path}") from error
