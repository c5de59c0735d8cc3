"""The folder of a comparison: one sweep folder per method, their names and the limits of the runs."""

from __future__ import annotations

import json
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxafl.callbacks.store import check_folder
from jaxafl.options import UserError, as_path
from jaxafl.results.curves import known_until
from jaxafl.sweep.gather import gather

if TYPE_CHECKING:  # xarray takes a third of a second to import, so it is when a result is made
    import xarray as xr

_UNTIL = "until.json"
_METHODS = "methods.json"


def begun(folder: Any, names: Sequence[str], until: Mapping[str, float]) -> dict[str, pathlib.Path | None]:
    """Returns the folder of each method. Raises `ValueError` if the folder holds runs with other limits."""
    if folder is None:
        return dict.fromkeys(names)
    path = check_folder("folder", folder)
    known = path / _UNTIL
    if known.is_file() and (before := json.loads(known.read_text())) != until:
        raise UserError(f"{path} holds runs until {before}, not {dict(until)}; name another folder, or the same limits")
    folders = {name: path / re.sub(r"[^\w.=,+-]+", "_", name) for name in names}
    if len(set(folders.values())) < len(names):
        raise UserError(f"compare: two methods would have the same folder: {', '.join(map(str, folders.values()))}")
    known.write_text(json.dumps(dict(until)))
    listed = path / _METHODS
    earlier = json.loads(listed.read_text()) if listed.is_file() else {}
    now = {name: own.name for name, own in folders.items()}
    listed.write_text(json.dumps(now | {name: own for name, own in earlier.items() if name not in now}))
    return dict(folders)


def is_comparison(folder: str | os.PathLike[str]) -> bool:
    """Returns True if this is the folder of a comparison."""
    return (as_path(folder) / _METHODS).is_file()


def gathered(folder: str | os.PathLike[str]) -> tuple[dict[str, xr.Dataset], str | dict[str, float]]:
    """Returns the results of the methods by name, and the point at which they are compared.

    Raises:
        ValueError: this is not the folder of a comparison, or a method has no finished run.
    """
    path = as_path(folder)
    if not is_comparison(path):
        raise UserError(f"{path} is not the folder of a comparison: there is no {_METHODS} in it")
    folders = json.loads((path / _METHODS).read_text())
    for name, own in folders.items():
        if not (path / own / "sweep.json").is_file():
            raise UserError(
                f"the method {name!r} of the comparison in {path} has not begun; the same call continues it"
            )
    found = {name: gather(path / own) for name, own in folders.items()}
    return found, compared_at(json.loads((path / _UNTIL).read_text()), found)


def compared_at(limits: Mapping[str, float], found: Mapping[str, Any]) -> str | dict[str, float]:
    """Returns the limit of simulated time if it is the only limit and all runs that did not fail have passed it."""
    seconds = limits.get("time", np.inf)
    passed = all(
        ((known_until(one, one.final_time) >= seconds) | (one.failed_step >= 0)).all() for one in found.values()
    )
    return {"time": seconds} if set(limits) == {"time"} and passed else "last"
