"""The folder of a sweep: results of finished members, and checkpoints of the others."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxafl import results
from jaxafl.callbacks.checkpoint import Checkpoint
from jaxafl.callbacks.identity import check_identity
from jaxafl.callbacks.store import check_folder, interval_of, log_info, numbers_in
from jaxafl.options import UserError, as_path, warn
from jaxafl.readers.replacing import replacing
from jaxafl.sweep.assemble import Dimensions, assembled, shape_of

if TYPE_CHECKING:  # xarray takes a third of a second to import, so it is when a result is made
    import xarray as xr

_ABOUT = "sweep.json"


def is_sweep(folder: str | os.PathLike[str]) -> bool:
    """Returns True if this is the folder of a sweep."""
    return (as_path(folder) / _ABOUT).is_file()


class SweepFolder:
    """The folder of a sweep.

    It holds `sweep.json` (the sweep), `member-00000.nc` ... (results of finished members, in the order of the grid) and
    `batch-<first member>-<number of members>` (checkpoints of a batch).
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """
        Args:
            folder: folder of a started sweep.

        Raises:
            ValueError: the folder holds no sweep.
        """
        self.path = as_path(folder).absolute()
        if not is_sweep(self.path):
            way = "A run saves its result by save=, or --output: give that file"
            raise UserError(f"{self.path} is not the folder of a sweep: there is no {_ABOUT} in it. {way}")
        self.about: dict[str, Any] = json.loads((self.path / _ABOUT).read_text())
        self.changed = self.about["changed"]

    @classmethod
    def begun(cls, folder: Any, identity: Mapping[str, Any], every: Any, dims: Dimensions, steps: int) -> SweepFolder:
        """Returns the folder of a sweep that starts or resumes.

        Args:
            folder: the folder; created if it does not exist.
            identity: fingerprint of the sweep.
            every: interval of checkpoints.
            dims: dimensions of the result.
            steps: T.

        Raises:
            ValueError: the folder holds another sweep; the message lists the differences.
        """
        path = check_folder(folder)
        changed = ""
        interval_of(every)
        if numbers_in(path):
            raise UserError(f"{path} holds checkpoints of a run; name another folder")
        if not is_sweep(path) and any(path.glob("member-*.nc")):
            raise UserError(f"{path} holds results of a sweep, but no {_ABOUT} that says of which; name another folder")
        if is_sweep(path):
            changed = check_identity(path, cls(path).about, identity)
        about = {"identity": identity, "changed": changed, "every": every, "dims": dims, "steps": steps}
        with replacing(path / _ABOUT) as unfinished:
            unfinished.write_text(json.dumps(about, indent=1, default=str))
        if done := len(list(path.glob("member-*.nc"))):
            log_info(f"{done} members in {path} are finished")
        return cls(path)

    def are_finished(self, places: Sequence[int]) -> bool:
        """Returns True if all these members have results."""
        return all(self.file(place).is_file() for place in places)

    def finished(self, places: Sequence[int]) -> list[xr.Dataset] | None:
        """Returns the results of members; `None` if one is missing or damaged."""
        if not self.are_finished(places):
            return None
        try:
            found = [results.load(self.file(place)) for place in places]
        except ValueError as error:
            warn(f"{error}: the member runs again")
            return None
        shutil.rmtree(self.batch(places), ignore_errors=True)
        return found

    def checkpoint(self, places: Sequence[int]) -> Checkpoint:
        """Returns the checkpoint of a batch."""
        about = self.about
        return Checkpoint(self.batch(places), about["every"], about["identity"], about["steps"], in_sweep=True)

    def keep(self, places: Sequence[int], found: Sequence[xr.Dataset]) -> None:
        """Writes the results of a batch and deletes its checkpoints."""
        for place, dataset in zip(places, found, strict=True):
            results.save(dataset, self.file(place))
        shutil.rmtree(self.batch(places), ignore_errors=True)

    def failed(self, places: Sequence[int], why: str) -> None:
        """Records the error of members. An empty text removes it, so that they may run again."""
        for place in places:
            file = self.file(place).with_suffix(".error")
            file.write_text(why) if why else file.unlink(missing_ok=True)

    def error(self, place: int) -> str:
        """Returns the error of a member; empty if there is none."""
        file = self.file(place).with_suffix(".error")
        return file.read_text() if file.is_file() else ""

    def batch(self, places: Sequence[int]) -> Any:
        """Returns the folder of the checkpoints of a batch."""
        return self.path / f"batch-{places[0]:05}-{len(places)}"

    def file(self, place: int) -> Any:
        """Returns the path of the result of a member."""
        return self.path / f"member-{place:05}.nc"


def gather(folder: str | os.PathLike[str]) -> xr.Dataset:
    """Returns the result of a finished or unfinished sweep from its folder, in any process.

    Members that are not finished have missing values. `server_steps_made` holds the server steps of finished members,
    0 of others, and `final_step` those of the last evaluation. `member_error` is the error of a failed one.

    Args:
        folder: the folder of `sweep(folder=...)`.

    Raises:
        ValueError: the folder holds no sweep, no member is finished, or a file is damaged.
    """
    kept = SweepFolder(folder)
    dims = kept.about["dims"]
    steps = kept.about["steps"]
    axes, sizes = zip(*shape_of(dims).items(), strict=True)
    places = range(math.prod(sizes))
    found = {place: results.load(kept.file(place)) for place in places if kept.are_finished([place])}
    errors = [kept.error(place) for place in places]
    far = [found[place].sizes["step"] if place in found else 0 for place in places]
    if not found:
        error = next(filter(None, errors), "")
        raise UserError(f"no member of the sweep in {kept.path} is finished yet{error}")
    dataset = assembled(dims, found)
    meaning = {"units": "1", "long_name": f"server steps made, at most {steps}", "server_steps": steps}
    dataset["server_steps_made"] = axes, np.reshape(far, sizes), meaning
    if any(errors):
        dataset["member_error"] = axes, np.reshape(errors, sizes)
    if kept.changed:
        dataset.attrs["resumed"] = kept.changed
    return dataset
