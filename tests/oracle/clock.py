"""Schedules in the words of the references: what arrives at each server step, and where it started."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jaxafl.clock import Live, Schedule, schedule


@dataclass(frozen=True)
class Arrival:
    """One finished run, as the server step that consumes it sees it.

    Attributes:
        client: Client index.
        run: Index of the run among this client's runs, in the order in which they START.
        dispatch: Index of the run among all runs of all clients, in the order in which they start.
        start_version: Version s that the run is stamped with and that its update is measured against.
        trained_from: Version whose parameters local training began at; differs from `start_version` only under
            `start_skew`.
        staleness: t - s, where t is the server step (= the version it acts on).
        start_time: Simulated seconds.
        arrival_time: Simulated seconds.
        multiplicity: How many times the server counts the update.
        local_steps: Number of local steps K, or None where the clock does not decide it.
        kind: "arrival"; the clock of semi-asynchronous rounds tells "picked", "undrafted" and "deprecated" apart.
    """

    client: int
    run: int
    dispatch: int
    start_version: int
    trained_from: int
    staleness: int
    start_time: float
    arrival_time: float
    multiplicity: int
    local_steps: int | None = None
    kind: str = "arrival"


COLUMNS = ("client", "run", "run_id", "reference", "version", "staleness", "started", "arrived", "multiplicity")
"""Columns of a schedule, in the order of the fields of an arrival."""


@dataclass(frozen=True)
class ServerStep:
    """Server step t: acts on version t and makes version t + 1 at `time`, the time of its last arrival."""

    step: int
    time: float
    arrivals: tuple[Arrival, ...]


OnStep = Callable[[int, tuple[Arrival, ...]], Mapping[int, int]]
"""`on_step(t, arrivals)` returns the next number of local steps of each client that the server answers."""


def steps_of(protocol: Any, num_clients: int, server_steps: int, local_steps: Any = None) -> list[ServerStep]:
    """Returns the schedule of a clock; where `local_steps` are given, the arrivals know theirs.

    A client whose run SAFA's clock has abandoned has an arrival of the kind "deprecated".
    """
    decided = local_steps is not None
    return _listed(schedule(protocol, num_clients, local_steps if decided else 1, server_steps), decided)


def answered(
    protocol: Any, num_clients: int, server_steps: int, local_steps: int
) -> Callable[[OnStep], list[ServerStep]]:
    """Returns the schedule of a clock as a function of the server's answers, which are numbers of local steps."""

    def steps(on_step: OnStep) -> list[ServerStep]:
        live, replies, found = Live(protocol, num_clients, local_steps), None, list[ServerStep]()
        for t in range(server_steps):
            found += _listed(live.collect([live.next(replies)]), True)
            replies = on_step(t, found[-1].arrivals)
        return found

    return steps


def _listed(made: Schedule, decided: bool) -> list[ServerStep]:
    columns = [getattr(made, name).tolist() for name in COLUMNS]
    found = []
    for t in range(made.server_steps):
        arrivals = []
        for place, arrived in enumerate(made.mask[t]):
            kind = made.kinds[made.kind[t, place]] if made.kinds else "arrival"
            steps = int(made.local_steps[t, place]) if decided else None
            for word, present in (("deprecated", "resynchronised" in kind), (kind.partition(",")[0], arrived)):
                if present:
                    arrivals.append(Arrival(*(column[t][place] for column in columns), steps, word))
        found.append(ServerStep(made.start + t, made.time[t].item(), tuple(arrivals)))
    return found
