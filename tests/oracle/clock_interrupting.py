"""The clock of servers that contact a few clients every period, whatever these have done: FAVANO and QuAFL."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .clock import Duration, ServerStep, arrival, checked_duration
from .runs import RunBook, check_sets


def interrupting(
    sets: Sequence[Sequence[int]], step_duration: Duration, *, num_clients: int, period: float, max_steps: int
) -> list[ServerStep]:
    """Contacts at period, 2 period, ...: the contacted clients hand over what they have done and restart.

    All clients start at time 0. A run is the time between two restarts of a client. Contacted g periods after its
    restart, a client has made E = min(K, floor(g period / seconds per step)) local steps: a step that ends exactly at
    the contact counts, one in progress is lost, and a client that has made K steps waits for its contact. The contacted
    clients restart at the contact, from version t + 1 (FAVANO; under QuAFL from their own model, and the versions here
    only tell since when); the others go on.

    g counts whole periods, so that no rounding of the times of the contacts enters E.

    Args:
        sets: The clients contacted each time, [contacts][s], without repeats.
        step_duration: Seconds per LOCAL STEP of a run.
        num_clients: N.
        period: Seconds between contacts, and before the first.
        max_steps: K.

    Returns:
        One step per contact, its arrivals in client order; `local_steps` is E, which may be 0.

    Raises:
        ValueError: If a set is empty, has repeats or names an unknown client, or a number is not positive.
    """
    check_sets(sets, num_clients, repeats=False)
    if not (period > 0 and math.isfinite(period)):
        raise ValueError(f"period must be positive and finite, got {period}")
    if max_steps < 1:
        raise ValueError(f"max_steps must be at least 1, got {max_steps}")
    book = RunBook(num_clients)
    current = [book.start(client, version=0, time=0.0) for client in range(num_clients)]
    steps = []
    for t, contacted in enumerate(sets):
        time = (t + 1) * period
        arrivals = []
        for client in sorted(contacted):
            run = current[client]
            gap = t + 1 - run.start_version  # a run from version s started at contact s - 1, at s periods
            seconds = checked_duration(step_duration, client, run.run)
            local_steps = min(max_steps, math.floor(gap * period / seconds))
            arrivals.append(arrival(run, t, arrival_time=time, local_steps=local_steps))
            current[client] = book.start(client, version=t + 1, time=time)
        steps.append(ServerStep(t, time, tuple(arrivals)))
    return steps
