"""Local runs as a timeline shows them: from a schedule, or from a result."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from jaxafl.clock import Schedule
from jaxafl.clock.schedule import FLYING

_COLUMNS = ("client_id", "run_index", "started_at", "arrived_at", "staleness")


class Discarded(NamedTuple):
    """Runs that no server step takes, [D]: client, start, and the end by an arrival or a stop, in simulated seconds."""

    client: np.ndarray
    started: np.ndarray
    ended: np.ndarray


_ROUNDING = 1e-9  # a smaller fraction of a run is no wait
NONE = Discarded(np.zeros(0, int), np.zeros(0), np.zeros(0))


class Runs(NamedTuple):
    """Consumed local runs, sorted by start, and the other contents of a timeline.

    Attributes:
        clients: N.
        client, started, arrived, staleness: [R].
        waited: float64 [R], end of the wait for the server step: its time, or the next start of the client.
        idle: float64 [R], seconds between start and arrival in which the client did not compute; 0 if unknown.
        steps: float64 [T], times of the server steps.
        flying: int [F], clients of the runs in flight at the end.
        since: float64 [F], starts of these runs.
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
    flying: np.ndarray
    since: np.ndarray
    discarded: Discarded = NONE
    missing: int = 0


def of_schedule(schedule: Schedule) -> Runs:
    """Returns the runs of a schedule, with those in flight at its end."""
    mask, flying = schedule.mask, schedule.under_way()
    lasted = schedule.arrived - schedule.started
    idle = np.where(lasted - schedule.work > _ROUNDING * lasted, lasted - schedule.work, 0.0)
    columns = [schedule.client, schedule.run, schedule.started, schedule.arrived, schedule.staleness]
    unused = schedule.unused.where(schedule.unused.reason != FLYING)
    wasted = Discarded(unused.client, unused.started, unused.ended)
    found = _sorted(schedule.num_clients, mask, columns, idle, schedule.time, flying, wasted)
    missing = schedule.runs_started - len(np.unique(schedule.run_id[mask])) - len(flying[0]) - len(wasted.client)
    return found._replace(missing=max(missing, 0))


def of_result(run: xr.Dataset) -> Runs:
    """Returns the runs of a result, which does not hold the runs in flight at its end."""
    time = run["time"].values
    columns = [run[name].values for name in _COLUMNS]
    clients = run.sizes.get("population", int(columns[0].max(initial=-1)) + 1)
    nothing = np.zeros(0, int), np.zeros(0)
    found = _sorted(clients, columns[0] >= 0, columns, np.zeros(columns[0].shape), time, nothing, NONE)
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
    flying = np.isin(runs.flying, clients) & (runs.since <= end)
    columns = ("client", "started", "arrived", "staleness", "waited", "idle")
    found = runs._replace(**{name: getattr(runs, name)[kept] for name in columns})
    wasted = np.isin(runs.discarded.client, clients) & (runs.discarded.started < end)
    found = found._replace(discarded=Discarded(*(column[wasted] for column in runs.discarded)))
    found = found._replace(steps=runs.steps[runs.steps <= end], flying=runs.flying[flying], since=runs.since[flying])
    return clients, found, end


def _sorted(
    clients: int, mask: np.ndarray, columns: Any, idle: np.ndarray, time: np.ndarray, flying: Any, wasted: Discarded
) -> Runs:
    """Returns the runs sorted by start; a run consumed by several server steps once, with its first staleness."""
    taken = np.broadcast_to(time[:, None], mask.shape)
    client, run, started, arrived, staleness, idle, taken = (values[mask] for values in [*columns, idle, taken])
    first = np.unique(np.stack([client, run]), axis=1, return_index=True)[1]
    order = first[np.argsort(started[first], kind="stable")]
    client = client[order].astype(int)
    flights, since = flying
    who = np.concatenate([client, flights, wasted.client])
    begun = np.concatenate([started[order], since, wasted.started])
    following = np.full(len(who), np.inf)  # the next start of the client
    sort = np.lexsort((begun, who))
    following[sort[:-1]] = np.where(np.diff(who[sort]) == 0, begun[sort][1:], np.inf)
    waited = np.minimum(taken[order], following[: len(order)])
    steps = time[np.isfinite(time)]
    found = (client, started[order], arrived[order], staleness[order], waited, idle[order])
    return Runs(clients, *found, steps, flights, since, wasted)
