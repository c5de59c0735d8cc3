"""Local runs as the bars of a timeline: from a schedule, or from a result."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from jaxafl.clock import Schedule
from jaxafl.clock.schedule import FLYING, WAITING
from jaxafl.results.clients import names_of
from jaxafl.results.curves import stated

_ROUNDING = 1e-9  # a smaller fraction of a run is no wait


class Runs(NamedTuple):
    """Contents of a timeline.

    Attributes:
        bars: `client`, `start` and `end` in simulated seconds, `staleness` and `kind` of each bar. The kind is `"run"`
            for a run that a server step takes, in the order of starts; `"paused"` for the seconds in which its client
            hangs, or in which its update waits for the server step, up to the client's next start; `"wasted"` for a run
            that no server step takes; and `"flying"` for one in flight at the end, whose end is infinite.
        labels: label of each client.
        steps: float64 [T], times of the server steps.
        missing: number of further runs that no server step took and that are not shown.
    """

    bars: pd.DataFrame
    labels: list[str]
    steps: np.ndarray
    missing: int


def of_schedule(schedule: Schedule) -> Runs:
    """Returns the runs of a schedule, with those in flight at its end."""
    mask, unused = schedule.mask, schedule.unused
    lasted = schedule.arrived - schedule.started
    idle = lasted - schedule.work
    idle = np.where(idle > _ROUNDING * lasted, idle, 0.0)
    columns = [schedule.client, schedule.run, schedule.started, schedule.arrived, schedule.staleness, idle]
    flying = unused.reason == FLYING
    others = pd.DataFrame({"client": unused.client, "start": unused.started, "staleness": 0})
    others["end"] = np.where(flying, np.inf, unused.ended)
    others["kind"] = np.where(flying | (unused.reason == WAITING), "flying", "wasted")
    bars = _bars(columns, schedule.time, mask, others)
    labels = [str(client) for client in range(schedule.num_clients)]
    if "region" in schedule.per_step:  # of its arrival, if there is one
        regions = np.repeat(schedule.region, schedule.taken).tolist()
        for client, region in zip(schedule.of_arrivals("client").tolist(), regions, strict=True):
            labels[client] = f"{client} (region {region})"
    missing = schedule.runs_started - len(np.unique(schedule.run_id[mask])) - len(others)
    return Runs(bars, labels, schedule.time, max(missing, 0))


def of_result(run: xr.Dataset) -> Runs:
    """Returns the runs of a result, which does not hold the runs in flight at its end."""
    time, client = run["time"].values, run["client_id"].values
    columns = [run[name].values for name in ("client_id", "run_index", "started_at", "arrived_at", "staleness")]
    bars = _bars([*columns, np.zeros(client.shape)], time, client >= 0)
    labels = names_of(run) or [str(one) for one in range(int(client.max(initial=-1)) + 1)]
    return Runs(bars, labels, time[np.isfinite(time)], int(stated(run, "runs_never_consumed", 0)))


def _bars(columns: list[np.ndarray], time: np.ndarray, mask: np.ndarray, *others: pd.DataFrame) -> pd.DataFrame:
    """Returns the bars; a run consumed by several server steps is shown once, with its first staleness.

    Args:
        columns: of arrivals, [T, A]: client, number of the run among the client's, start, end, staleness, and seconds
            between start and end in which the client does not compute.
        time: times of the server steps, [T].
        mask: True for arrivals, [T, A].
        *others: bars of runs that no server step takes.
    """
    names = ("client", "run", "start", "end", "staleness", "idle", "taken")
    columns = [*columns, np.broadcast_to(time[:, None], mask.shape)]
    arrived = {name: column[mask] for name, column in zip(names, columns, strict=True)}
    runs = pd.DataFrame(arrived).assign(kind="run")
    runs = runs.drop_duplicates(["client", "run"]).sort_values(["start", "client", "run"], ignore_index=True)
    every = pd.concat([runs, *others], ignore_index=True).sort_values(["client", "start"], kind="stable")
    following = every.groupby("client")["start"].shift(-1)[runs.index]  # the client's next start, NaN for none
    waited = np.fmin(runs.taken, following)
    paused = runs.assign(kind="paused")
    hangs = paused.assign(start=runs.end - runs.idle)[runs.idle > 0]
    waits = paused.assign(start=runs.end, end=waited)[waited > runs.end]
    return pd.concat([runs, hangs, waits, *others], ignore_index=True)
