"""SAFA's clock: rounds that close at a quota of arrivals while stragglers go on training."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from .clock import Arrival, Duration, Run, ServerStep, arrival
from .runs import RunBook


def semi_async(*, num_clients: int, fraction: float, lag: int, duration: Duration, rounds: int) -> list[ServerStep]:
    """Lag-tolerant distribution, then compensatory first-come-first-merge collection, round after round.

    At the start of round t (time 0, then the close of the round before) every client is one of
    - up to date: its last run arrived in the round before, picked or not (in round 0: everybody);
    - deprecated: still training, on a version s with t - s > lag. That run is abandoned;
    - tolerable: still training, t - s <= lag.
    The first two receive x_t and start a run from it, in client order; tolerable clients go on.

    The quota is max(1, ceil(fraction N)). Runs arrive in order of time, ties in client order. Those
    of clients that were NOT picked in the round before have priority: the first `quota` of them are picked. The round
    closes at the instant at which they reach the quota, or when nobody trains any more; in that case the earliest of
    the other arrivals are picked too, up to the quota. Every arrival that is not picked is undrafted, also whoever
    arrives at the very instant of the close; those that finish later arrive in a later round. A client that has
    arrived waits for the next round.

    Wu et al. 2020 (SAFA), eq. (3), Algorithms 1 and 2; without their deadline T_lim and their crashes.

    Args:
        num_clients: N.
        fraction: C in (0, 1], the share of the clients to pick.
        lag: L, how many versions a straggler may lag behind at the start of a round.
        duration: Seconds of a run.
        rounds: Number of rounds to record.

    Returns:
        One step per round; `arrivals` are first the abandoned runs (kind "deprecated", in client order, `arrival_time`
        the start of the round, when they were abandoned), then the finished ones (kind "picked" or "undrafted", in
        order of arrival). The time of the step is that of the last arrival.

    Raises:
        ValueError: If the fraction or the lag is out of range or a duration is not positive and finite.
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must be in (0, 1], got {fraction}")
    if lag < 0:
        raise ValueError(f"lag must be at least 0, got {lag}")
    quota = max(1, math.ceil(fraction * num_clients * (1 - 1e-12)))  # 0.1 * 30 is above 3, and means 3
    book = RunBook(num_clients)
    training: dict[int, Run] = {}
    picked_before: set[int] = set()
    steps: list[ServerStep] = []
    time = 0.0
    for t in range(rounds):
        deprecated = [training[client] for client in sorted(training) if t - training[client].start_version > lag]
        for run in deprecated:
            del training[run.client]
        for client in range(num_clients):
            if client not in training:
                training[client] = book.start(client, version=t, time=time, duration=duration)
        finished = _collect(list(training.values()), picked_before, quota)
        for run in finished:
            del training[run.client]
        picked_before = _pick(finished, picked_before, quota)
        abandoned = [arrival(run, t, kind="deprecated", arrival_time=time) for run in deprecated]
        time = finished[-1].arrival_time
        steps.append(ServerStep(t, time, (*abandoned, *_sorted_out(finished, picked_before, t))))
    return steps


def _collect(training: list[Run], picked_before: Collection[int], quota: int) -> list[Run]:
    """The runs that arrive in this round, in order: up to the instant at which the quota is reached, or all."""
    in_order = sorted(training, key=lambda run: (run.arrival_time, run.client))
    prioritised = [run for run in in_order if run.client not in picked_before]
    if len(prioritised) < quota:
        return in_order
    close = prioritised[quota - 1].arrival_time
    return [run for run in in_order if run.arrival_time <= close]


def _pick(finished: Sequence[Run], picked_before: Collection[int], quota: int) -> set[int]:
    """The first arrivals up to the quota, those of clients not picked in the round before first."""
    prioritised = [run.client for run in finished if run.client not in picked_before]
    others = [run.client for run in finished if run.client in picked_before]
    return set((prioritised + others)[:quota])


def _sorted_out(finished: Sequence[Run], picked: Collection[int], t: int) -> list[Arrival]:
    return [arrival(run, t, kind="picked" if run.client in picked else "undrafted") for run in finished]
