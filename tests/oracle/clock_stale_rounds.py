"""The clock of rounds whose clients start from drawn, older versions (AFL; FedAsync's own simulation)."""

from __future__ import annotations

from collections.abc import Sequence

from .clock import Duration, ServerStep, arrival
from .runs import RunBook, check_sets


def stale_rounds(
    sets: Sequence[Sequence[int]], stale: Sequence[Sequence[int]], duration: Duration, *, num_clients: int
) -> list[ServerStep]:
    """Rounds of J slots: slot j of round t trains from version max(0, t - stale[t][j]); the slowest ends the round.

    All slots start when the round does. A client drawn into several slots (drawing with replacement) makes one run per
    slot, each with its own version and duration, numbered in slot order.

    Args:
        sets: The client of each slot, [rounds][J].
        stale: How many versions back each slot starts, before clamping at version 0, [rounds][J].
        duration: Seconds of a run.
        num_clients: N.

    Returns:
        One step per round, its arrivals in order of arrival time, then client, then slot.

    Raises:
        ValueError: If a round is empty or names an unknown client, the shapes differ, a number of versions back is
            negative, or a duration is not positive and finite.
    """
    check_sets(sets, num_clients, repeats=True)
    if [len(row) for row in stale] != [len(row) for row in sets]:
        raise ValueError("stale must have one entry for every slot of sets")
    if any(back < 0 for row in stale for back in row):
        raise ValueError("stale counts versions back: its entries must not be negative")
    book = RunBook(num_clients)
    steps: list[ServerStep] = []
    time = 0.0
    for t, (members, backs) in enumerate(zip(sets, stale, strict=True)):
        runs = [
            book.start(client, version=max(0, t - back), time=time, duration=duration)
            for client, back in zip(members, backs, strict=True)
        ]
        runs.sort(key=lambda run: (run.arrival_time, run.client, run.dispatch))
        time = runs[-1].arrival_time
        steps.append(ServerStep(t, time, tuple(arrival(run, t) for run in runs)))
    return steps
