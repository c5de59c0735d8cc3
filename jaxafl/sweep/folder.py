"""A sweep kept in a folder: its finished members, and checkpoints of those under way."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxafl import results
from jaxafl.callbacks.checkpoint import Checkpoint, check_identity
from jaxafl.callbacks.store import check_folder, interval_of, say
from jaxafl.options import UserError

if TYPE_CHECKING:  # xarray takes a third of a second to import, so it is when a result is made
    import xarray as xr


class SweepFolder:
    """A folder with `sweep.json` (what is run), `member-00000.nc` ... (finished members, in the order of the grid) and
    `batch-00000-1` ... (checkpoints of so many members that advance together, from this one on)."""

    def __init__(self, folder: str | os.PathLike[str], every: Any, keep: Any, identity: Mapping[str, Any]) -> None:
        """
        Args:
            folder: made if it does not exist.
            every, keep: of checkpoints.
            identity: of the sweep.

        Raises:
            ValueError: it holds another sweep; says what differs.
        """
        self.path, self.how, self.identity = check_folder("folder", folder), (every, keep), dict(identity)
        interval_of(every)
        if any(self.path.glob("*/_CHECKPOINT_METADATA")):
            raise UserError(f"{self.path} holds checkpoints of a run; name another folder")
        about, self.changed = self.path / "sweep.json", ""
        if about.is_file():
            known = json.loads(about.read_text())
            changed = check_identity(self.path, known["identity"], self.identity)
            self.changed = "; ".join(filter(None, (known["changed"], changed)))
        part = about.with_suffix(".part")
        part.write_text(json.dumps({"identity": self.identity, "changed": self.changed}, indent=1))
        part.replace(about)
        for left in self.path.glob(".member-*.part"):  # by a process that was killed
            left.unlink(missing_ok=True)
        if done := len(list(self.path.glob("member-*.nc"))):
            say(f"{done} members in {self.path} are finished")

    def finished(self, places: Sequence[int]) -> list[xr.Dataset] | None:
        """The results of members, if all are there and whole."""
        files = [self._file(place) for place in places]
        if not all(file.is_file() for file in files):
            return None
        try:
            found = [results.load(file) for file in files]
        except ValueError as error:
            warnings.warn(f"{error}: the member runs again", stacklevel=2)
            return None
        for dataset in found:  # numbers are NumPy's in a file
            numbers = {name: value.item() for name, value in dataset.attrs.items() if isinstance(value, np.generic)}
            dataset.attrs |= numbers
        shutil.rmtree(self._batch(places), ignore_errors=True)
        return found

    def checkpoint(self, places: Sequence[int], server_steps: int) -> Checkpoint:
        """The checkpoints of a batch."""
        made = Checkpoint(self._batch(places), *self.how)
        made.accept(self.identity, server_steps)
        return made

    def keep(self, places: Sequence[int], found: Sequence[xr.Dataset]) -> None:
        """Keeps the results of a batch, whose checkpoints are no longer needed."""
        for place, dataset in zip(places, found, strict=True):
            results.save(dataset, self._file(place))
        shutil.rmtree(self._batch(places), ignore_errors=True)

    def _batch(self, places: Sequence[int]) -> Any:
        return self.path / f"batch-{places[0]:05}-{len(places)}"

    def _file(self, place: int) -> Any:
        return self.path / f"member-{place:05}.nc"
