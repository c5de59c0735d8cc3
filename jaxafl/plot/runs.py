"""Local runs as the bars of a timeline: from a schedule, or from a result."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import xarray as xr

from jaxafl.clock import Schedule
from jaxafl.clock.schedule import FLYING, WAITING
from jaxafl.results.clients import names_of
from jaxafl.results.curves import stated

_ROUNDING = 1e-9  # a smaller fraction of a run is no wait


class Bars(NamedTuple):
    """Bars of a timeline, [B]: client, start and end in simulated seconds, staleness and kind.

    The kind is `"run"` for a run that a server step takes, in the order of starts; `"paused"` for the seconds in which
    its client hangs, or in which its update waits for the server step, up to the client's next start; `"wasted"` for a
    run that no server step takes; and `"flying"` for one in flight at the end, whose end is infinite.
    """

    client: np.ndarray
    start: np.ndarray
    end: np.ndarray
    staleness: np.ndarray
    kind: np.ndarray

    def where(self, chosen: np.ndarray) -> Bars:
        """Returns the chosen bars; `chosen` is a mask or indices."""
        return Bars(*(column[chosen] for column in self))


class Runs(NamedTuple):
    """Contents of a timeline.

    Attributes:
        bars: the bars.
        labels: label of each client.
        steps: float64 [T], times of the server steps.
        missing: number of further runs that no server step took and that are not shown.
    """

    bars: Bars
    labels: list[str]
    steps: np.ndarray
    missing: int


def of_schedule(schedule: Schedule) -> Runs:
    """Returns the runs of a schedule, with those in flight at its end."""
    mask, unused = schedule.mask, schedule.unused
    lasted = schedule.arrived - schedule.started
    idle = lasted - schedule.work
    idle = np.where(idle > _ROUNDING * lasted, idle, 0.0)
    columns = [schedule.client, schedule.started, schedule.arrived, schedule.staleness]
    flying = unused.reason == FLYING
    ended = np.where(flying, np.inf, unused.ended)
    kinds = np.where(flying | (unused.reason == WAITING), "flying", "wasted")
    others = Bars(unused.client, unused.started, ended, np.zeros(len(kinds), int), kinds)
    bars = _bars(columns, schedule.run, idle, schedule.time, mask, others)
    labels = [str(client) for client in range(schedule.num_clients)]
    if "region" in schedule.per_step:  # of its arrival, if there is one
        regions = np.repeat(schedule.region, schedule.taken).tolist()
        for client, region in zip(schedule.of_arrivals("client").tolist(), regions, strict=True):
            labels[client] = f"{client} (region {region})"
    missing = schedule.runs_started - len(np.unique(schedule.run_id[mask])) - len(kinds)
    return Runs(bars, labels, schedule.time, max(missing, 0))


def of_result(run: xr.Dataset) -> Runs:
    """Returns the runs of a result, which does not hold the runs in flight at its end."""
    time, client = run["time"].values, run["client_id"].values
    columns = [run[name].values for name in ("client_id", "started_at", "arrived_at", "staleness")]
    bars = _bars(columns, run["run_index"].values, np.zeros(client.shape), time, client >= 0)
    labels = names_of(run) or [str(one) for one in range(int(client.max(initial=-1)) + 1)]
    return Runs(bars, labels, time[np.isfinite(time)], int(stated(run, "runs_never_consumed", 0)))


def _bars(
    columns: list[np.ndarray], run: np.ndarray, idle: np.ndarray, time: np.ndarray, mask: np.ndarray, *others: Bars
) -> Bars:
    """Returns the bars; a run consumed by several server steps is shown once, with its first staleness.

    Args:
        columns: client, start, end and staleness of arrivals, [T, A].
        run: numbers of the runs of each client, [T, A].
        idle: seconds between start and end in which the client does not compute, [T, A].
        time: times of the server steps, [T].
        mask: True for arrivals, [T, A].
        *others: bars of runs that no server step takes.
    """
    client, start, end, staleness = (column[mask] for column in columns)
    runs = Bars(client.astype(int), start, end, staleness, np.full(len(client), "run"))
    taken = np.broadcast_to(time[:, None], mask.shape)[mask]
    first = np.unique(np.stack([client, run[mask]]), axis=1, return_index=True)[1]
    order = first[np.argsort(start[first], kind="stable")]
    runs, idle, taken = runs.where(order), idle[mask][order], taken[order]
    every = _joined(runs, *others)
    order = np.lexsort((every.start, every.client))
    again = np.diff(every.client[order]) == 0
    following = np.full(len(order), np.inf)  # the next start of the client
    following[order[:-1][again]] = every.start[order[1:][again]]
    waited = np.minimum(taken, following[: len(taken)])
    paused = runs._replace(kind=np.full(len(taken), "paused"))
    hangs = paused._replace(start=runs.end - idle).where(idle > 0)
    waits = paused._replace(start=runs.end, end=waited).where(waited > runs.end)
    return _joined(runs, hangs, waits, *others)


def _joined(*several: Bars) -> Bars:
    return Bars(*map(np.concatenate, zip(*several, strict=True)))
