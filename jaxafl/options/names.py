"""Checks of names for variables of results, which Python, xarray, NetCDF and file systems must accept."""

from __future__ import annotations

import keyword
import re
import unicodedata
from collections.abc import Collection
from typing import Any

from jaxafl.options.checks import UserError, shown

_LONGEST = 100  # characters; file systems allow 255 bytes with prefixes and endings
_PLAIN = ("accuracy", "loss")  # no names of xarray; without this list, every run imports xarray


def check_name(
    about: str, name: Any, taken: Collection[str] = (), beginnings: tuple[str, ...] = (), prefix: str = ""
) -> None:
    """Raises `ValueError` for a name that cannot be a variable of a result, and suggests another one.

    Args:
        about: start of the message, with `{}` for the name: `the model X records the metric {}`.
        name: the name that the user gave.
        taken: reserved names.
        beginnings: reserved prefixes.
        prefix: prefix that results put before the name, which makes more names valid.
    """
    intro = about.format(shown(name))
    if not isinstance(name, str):
        raise UserError(f"{intro}, a name that is not a text")
    plain = re.sub(r"\W+", "_", unicodedata.normalize("NFKC", name)).strip("_")[:_LONGEST] or "own"
    plain = plain if plain.isidentifier() else f"own_{plain}"
    written = f"{prefix}{name}"
    start = next((start for start in beginnings if name.startswith(start)), "")
    if keyword.iskeyword(written) or not name.isidentifier() or name.startswith("_") or plain != name.strip("_"):
        why = (
            "a variable of a result cannot be called so: a name has letters, digits and _ only, begins with a letter, "
            f"is no keyword of Python and has at most {_LONGEST} characters"
        )
    elif name in taken or start:
        why = f"results have {f'names that begin with {start!r}' if start else 'this name'} for something else"
        plain = name.removeprefix(start)
    elif _of_xarray(written):
        why = f"result.{written} is a method or an attribute of every xarray.Dataset"
    else:
        return
    used = not plain or keyword.iskeyword(plain) or plain in taken or plain.startswith(beginnings) or _of_xarray(plain)
    raise UserError(f"{intro}, but {why}; write {f'own_{plain}' if used else plain!r}")


def _of_xarray(name: str) -> bool:
    if name in _PLAIN:
        return False
    import xarray as xr

    return hasattr(xr.Dataset, name)
