"""`result.privacy(delta=...)`: ε of every client, from the arrivals of a result."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from jaxafl.clock.accounts.contract import How, Mechanism
from jaxafl.options import UserError
from jaxafl.results.curves import note

if TYPE_CHECKING:  # importing xarray here would slow down `import jaxafl`
    import xarray as xr

_DATA_FREE = r"until (time|updates|bytes|epsilon) [\d.e+-]+(, all clients were gone .*)?"


class Privacy:
    """Differential privacy of the clients of a result, with which `of_run` and `load` extend `xarray.Dataset`."""

    def __init__(self, result: xr.Dataset) -> None:
        self.result = result

    def __call__(self, noise_multiplier: Any = None, *, delta: float, how: How = "participation") -> xr.Dataset:
        """Computes ε(δ) of every client, with the noise of the run; see `Schedule.privacy`.

        Raises:
            ValueError: the run had no noise of a known clipping norm, ended by something that may depend on data, or
                is not private for another reason; or this is not the result of one run.
        """
        from jaxafl.clock.accounts.privacy import Takings, privacy_of

        result = self.result
        if "arrival" not in result.dims or result["client_id"].ndim != 2:
            raise UserError("privacy: this is no result of one run; of a sweep choose one by result.isel(seed=0)")
        noise, stopped = note(result, "mechanism"), note(result, "stopped")
        if not noise:
            raise UserError(
                "privacy: the run had no noise, or its clipping norm is not known, so that its ε is infinite. For "
                "noise that is planned, use sim.schedule(server_steps).privacy(noise_multiplier=, delta=)"
            )
        if stopped and not re.fullmatch(_DATA_FREE, stopped):
            raise UserError(
                f"privacy: the run ended by {stopped!r}, which may depend on data. End it after server steps, or by "
                "limits of time, updates, bytes or epsilon"
            )
        names = ("client_id", "run_index", "multiplicity")
        client, run, multiplicity = (result[name].fillna(0).values.astype(int) for name in names)
        mask, clients = result["arrived"].values.astype(bool), int(result.attrs["num_clients"])
        takings = Takings(client, run, multiplicity, mask, result["time"].values, clients)
        return privacy_of(takings, Mechanism(**json.loads(noise)), noise_multiplier, delta, how)
