"""Local runs as a timeline shows them: from a schedule, or from a result."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from jaxafl.clock import Schedule
from jaxafl.clock.schedule import FLYING

_COLUMNS = ("client_id", "run_index", "started_at", "arrived_at", "staleness")


class Unused(NamedTuple):
    """Runs that no server step takes, [D]: client, start, and the end (inf in flight), in simulated seconds."""

    client: np.ndarray
    started: np.ndarray
    ended: np.ndarray

    def where(self, mask: np.ndarray) -> Unused:
        """Returns some of the runs."""
        return Unused(*(column[mask] for column in self))


_ROUNDING = 1e-9  # a smaller fraction of a run is no wait
NONE = Unused(np.zeros(0, int), np.zeros(0), np.zeros(0))


class Runs(NamedTuple):
    """Consumed local runs, sorted by start, and the other contents of a timeline.

    Attributes:
        clients: N.
        client, started, arrived, staleness: [R].
        waited: float64 [R], end of the wait for the server step: its time, or the next start of the client.
        idle: float64 [R], seconds between start and arrival in which the client did not compute; 0 if unknown.
        steps: float64 [T], times of the server steps.
        flying: runs in flight at the end.
        discarded: refused, stopped and lost runs.
        missing: number of further runs that no server step took and that are not shown.
    """

    clients: int
    client: np.ndarray
    started: np.ndarray
    arrived: np.ndarray
    staleness: np.ndarray
    waited: np.ndarray
    idle: np.ndarray
    steps: np.ndarray
    flying: Unused = NONE
    discarded: Unused = NONE
    missing: int = 0


def of_schedule(schedule: Schedule) -> Runs:
    """Returns the runs of a schedule, with those in flight at its end."""
    mask, (client, since) = schedule.mask, schedule.under_way()
    flying = Unused(client, since, np.full(len(client), np.inf))
    lasted = schedule.arrived - schedule.started
    idle = np.where(lasted - schedule.work > _ROUNDING * lasted, lasted - schedule.work, 0.0)
    columns = [schedule.client, schedule.run, schedule.started, schedule.arrived, schedule.staleness]
    unused = schedule.unused.where(schedule.unused.reason != FLYING)
    wasted = Unused(unused.client, unused.started, unused.ended)
    found = _sorted(schedule.num_clients, mask, columns, idle, schedule.time, flying, wasted)
    missing = schedule.runs_started - len(np.unique(schedule.run_id[mask])) - len(client) - len(wasted.client)
    return found._replace(missing=max(missing, 0))


def of_result(run: xr.Dataset) -> Runs:
    """Returns the runs of a result, which does not hold the runs in flight at its end."""
    time = run["time"].values
    columns = [run[name].values for name in _COLUMNS]
    clients = run.sizes.get("population", int(columns[0].max(initial=-1)) + 1)
    found = _sorted(clients, columns[0] >= 0, columns, np.zeros(columns[0].shape), time, NONE, NONE)
    known = run["runs_never_consumed"] if "runs_never_consumed" in run.variables else 0
    return found._replace(missing=int(run.attrs.get("runs_never_consumed", known)))


def shown(runs: Runs, rows: int, bars: int, until: float | None) -> tuple[np.ndarray, Runs, float]:
    """Returns the clients of at most `rows` rows, the runs of these clients, and the end of the shown time."""
    clients = np.linspace(0, runs.clients - 1, min(rows, runs.clients)).round().astype(int)
    kept = np.flatnonzero(np.isin(runs.client, clients))
    end = float(runs.steps[-1]) if until is None else until
    if len(kept) > bars:
        end = min(end, float(runs.started[kept[bars]]))
    kept = kept[runs.started[kept] < end] if end < runs.steps[-1] else kept
    columns = ("client", "started", "arrived", "staleness", "waited", "idle")
    found = runs._replace(**{name: getattr(runs, name)[kept] for name in columns})
    flying, wasted = (one.where(np.isin(one.client, clients)) for one in (runs.flying, runs.discarded))
    flying, wasted = flying.where(flying.started <= end), wasted.where(wasted.started < end)
    return clients, found._replace(steps=runs.steps[runs.steps <= end], flying=flying, discarded=wasted), end


def _sorted(
    clients: int, mask: np.ndarray, columns: Any, idle: np.ndarray, time: np.ndarray, flying: Unused, wasted: Unused
) -> Runs:
    """Returns the runs sorted by start; a run consumed by several server steps once, with its first staleness."""
    taken = np.broadcast_to(time[:, None], mask.shape)
    client, run, started, arrived, staleness, idle, taken = (values[mask] for values in [*columns, idle, taken])
    first = np.unique(np.stack([client, run]), axis=1, return_index=True)[1]
    order = first[np.argsort(started[first], kind="stable")]
    client = client[order].astype(int)
    who = np.concatenate([client, flying.client, wasted.client])
    begun = np.concatenate([started[order], flying.started, wasted.started])
    following = np.full(len(who), np.inf)  # the next start of the client
    sort = np.lexsort((begun, who))
    following[sort[:-1]] = np.where(np.diff(who[sort]) == 0, begun[sort][1:], np.inf)
    waited = np.minimum(taken[order], following[: len(order)])
    steps = time[np.isfinite(time)]
    found = (client, started[order], arrived[order], staleness[order], waited, idle[order])
    return Runs(clients, *found, steps, flying, wasted)
