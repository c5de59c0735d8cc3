"""Counting the runs of clients as they start, for the clocks that have no queue of their own kind of start."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .clock import Duration, Run, checked_duration


class RunBook:
    """Numbers the runs: per client and over all clients, both in the order of their starts, abandoned ones included."""

    def __init__(self, num_clients: int) -> None:
        self._runs = [0] * num_clients
        self._dispatched = 0

    def start(self, client: int, *, version: int, time: float, duration: Duration | None = None) -> Run:
        """Starts the client's next run from `version`; without a duration its end is not known yet (infinity)."""
        run, dispatch = self._runs[client], self._dispatched
        self._runs[client] += 1
        self._dispatched += 1
        seconds = math.inf if duration is None else checked_duration(duration, client, run)
        return Run(
            client=client,
            run=run,
            dispatch=dispatch,
            start_version=version,
            trained_from=version,
            start_time=time,
            arrival_time=time + seconds,
            local_steps=None,
        )


def check_sets(sets: Sequence[Sequence[int]], num_clients: int, *, repeats: bool) -> None:
    """Raises if a recorded set is empty, names an unknown client, or (unless `repeats`) a client more than once."""
    for t, members in enumerate(sets):
        if not len(members):
            raise ValueError(f"set {t} has no clients: every set needs at least one")
        unknown = [client for client in members if not 0 <= client < num_clients]
        if unknown:
            raise ValueError(f"set {t} names client {unknown[0]}; there are {num_clients} clients")
        if not repeats and len(set(members)) < len(members):
            raise ValueError(f"set {t} names a client twice: {list(members)}; it must be drawn without replacement")
