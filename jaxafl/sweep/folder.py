"""A sweep kept in a folder: its finished members, and checkpoints of those under way."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxafl import results
from jaxafl.callbacks.checkpoint import Checkpoint
from jaxafl.callbacks.identity import check_identity
from jaxafl.callbacks.store import check_folder, interval_of, numbers_in, say, steps_made
from jaxafl.options import UserError, as_path
from jaxafl.sweep.assemble import Dimension

if TYPE_CHECKING:  # xarray takes a third of a second to import, so it is when a result is made
    import xarray as xr

_ABOUT, _PLACES = "sweep.json", "places.json"


class Contents(NamedTuple):
    """A member's result, but for the values of its variables.

    Attributes:
        attrs: its attributes.
        coords: name -> (dimensions, values, attributes); no values: 0, 1, 2 ...
        sizes: dimension -> length.
        variables: name -> (dimensions, type, attributes).
    """

    attrs: dict[str, Any]
    coords: dict[str, tuple[list[str], list[Any] | None, dict[str, Any]]]
    sizes: dict[str, int]
    variables: dict[str, tuple[list[str], str, dict[str, Any]]]

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The shape of a variable."""
        return tuple(self.sizes[dim] for dim in self.variables[name][0])

    def outline(self) -> xr.Dataset:
        """Its coordinates and attributes."""
        import xarray as xr

        coords = {
            name: (dims, np.arange(self.sizes[dims[0]]) if values is None else np.asarray(values), attributes)
            for name, (dims, values, attributes) in self.coords.items()
        }
        return xr.Dataset(coords=coords, attrs=dict(self.attrs))


def check_apart(folder: str | os.PathLike[str] | None, path: pathlib.Path | None) -> None:
    """Raises if a result would be written over a member in the folder of its sweep."""
    if folder is None or path is None or path.resolve().parent != as_path(folder).resolve():
        return
    if path.name.startswith("member-"):
        raise UserError(f"{path} is the name of a member of the sweep, which would be lost; name another file")


def contents_of(dataset: xr.Dataset) -> Contents:
    """The contents of a result."""
    coords: dict[str, Any] = {}
    for name, values in dataset.coords.items():
        counted = values.ndim == 1 and np.array_equal(values, np.arange(values.size))
        coords[str(name)] = (list(values.dims), None if counted else values.values.tolist(), dict(values.attrs))
    variables: dict[str, Any] = {
        str(name): (list(v.dims), v.dtype.str, dict(v.attrs)) for name, v in dataset.data_vars.items()
    }
    return Contents(dict(dataset.attrs), coords, {str(name): size for name, size in dataset.sizes.items()}, variables)


class SweepFolder:
    """A folder with `sweep.json` (what is run), `member-00000.nc` ... (finished members, in the order of the grid) and
    `batch-00000-1` ... (checkpoints of so many members that advance together, from this one on)."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """
        Args:
            folder: of a sweep that has begun.

        Raises:
            ValueError: it is not.
        """
        self.path = as_path(folder).absolute()
        if not (self.path / _ABOUT).is_file():
            raise UserError(f"{self.path} is not the folder of a sweep: there is no {_ABOUT} in it")
        self.about: dict[str, Any] = json.loads((self.path / _ABOUT).read_text())
        self.identity, self.changed = self.about["identity"], self.about["changed"]

    @classmethod
    def begun(
        cls, folder: Any, identity: Mapping[str, Any], every: Any, keep: Any, dims: Sequence[Dimension], steps: int
    ) -> SweepFolder:
        """The folder of a sweep that begins, or goes on.

        Args:
            folder: made if it does not exist.
            identity: of the sweep.
            every, keep: of checkpoints.
            dims: of its result.
            steps: T.

        Raises:
            ValueError: it holds another sweep; says what differs.
        """
        path, changed = check_folder("folder", folder), ""
        interval_of(every)
        if numbers_in(path):
            raise UserError(f"{path} holds checkpoints of a run; name another folder")
        if not (path / _ABOUT).is_file() and any(path.glob("member-*.nc")):
            raise UserError(f"{path} holds results of a sweep, but no {_ABOUT} that says of which; name another folder")
        if (path / _ABOUT).is_file():
            known = json.loads((path / _ABOUT).read_text())
            new = check_identity(path, known["identity"], identity)
            changed = "; ".join(filter(None, (known["changed"], new)))
        about = {"identity": identity, "changed": changed, "every": every, "keep": keep, "dims": dims, "steps": steps}
        part = path / f"{_ABOUT}.part"
        part.write_text(json.dumps(about, indent=1, default=str))
        part.replace(path / _ABOUT)
        for left in path.glob(".member-*.part*"):  # by a process that was killed
            left.unlink(missing_ok=True)
        if done := len(list(path.glob("member-*.nc"))):
            say(f"{done} members in {path} are finished")
        return cls(path)

    def are_finished(self, places: Sequence[int]) -> bool:
        """Whether there are results of all these members."""
        return all(self.file(place).is_file() for place in places)

    def finished(self, places: Sequence[int]) -> list[xr.Dataset] | None:
        """The results of members, if all are there and whole."""
        if not self.are_finished(places):
            return None
        try:
            found = [results.load(self.file(place)) for place in places]
        except ValueError as error:
            warnings.warn(f"{error}: the member runs again", stacklevel=2)
            return None
        for dataset in found:  # numbers are NumPy's in a file
            numbers = {name: value.item() for name, value in dataset.attrs.items() if isinstance(value, np.generic)}
            dataset.attrs |= numbers
        shutil.rmtree(self.batch(places), ignore_errors=True)
        return found

    def checkpoint(self, places: Sequence[int]) -> Checkpoint:
        """The checkpoints of a batch."""
        made = Checkpoint(self.batch(places), self.about["every"], self.about["keep"], at_end=False)
        (self.batch(places) / _PLACES).write_text(json.dumps(list(places)))
        made.accept(self.identity, self.about["steps"])
        return made

    def keep(self, places: Sequence[int], found: Sequence[xr.Dataset]) -> None:
        """Keeps the results of a batch, whose checkpoints are no longer needed."""
        for place, dataset in zip(places, found, strict=True):
            self.file(place).with_suffix(".json").write_text(json.dumps(contents_of(dataset), default=_item))
            results.save(dataset, self.file(place))
        shutil.rmtree(self.batch(places), ignore_errors=True)

    def contents(self, place: int) -> Contents | None:
        """What the result of a member holds, if it is finished."""
        if not self.file(place).is_file():
            return None
        beside = self.file(place).with_suffix(".json")
        return (
            Contents(*json.loads(beside.read_text()))
            if beside.is_file()
            else contents_of(results.load(self.file(place)))
        )

    def under_way(self) -> dict[int, int]:
        """place -> server steps of the newest checkpoint, of members that are not finished."""
        found: dict[int, int] = {}
        for file in self.path.glob(f"batch-*/{_PLACES}"):
            found |= dict.fromkeys(json.loads(file.read_text()), steps_made(file.parent))
        return found

    def failed(self, places: Sequence[int], why: str) -> None:
        """Notes why members could not be run; an empty text: they may run again."""
        for place in places:
            file = self.file(place).with_suffix(".error")
            file.write_text(why) if why else file.unlink(missing_ok=True)

    def error(self, place: int) -> str:
        """Why a member could not be run, if so."""
        file = self.file(place).with_suffix(".error")
        return file.read_text() if file.is_file() else ""

    def batch(self, places: Sequence[int]) -> Any:
        """Where the checkpoints of a batch are."""
        return self.path / f"batch-{places[0]:05}-{len(places)}"

    def file(self, place: int) -> Any:
        """Where the result of a member is."""
        return self.path / f"member-{place:05}.nc"


def _item(value: Any) -> Any:
    return value.tolist()  # NumPy's numbers
