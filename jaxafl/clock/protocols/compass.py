"""Groups of clients that are given so much work that they arrive together: the clock of FedCompass."""

from __future__ import annotations

import dataclasses
import math

from jaxafl.clock.contract import STARTS, Clock, Delivery
from jaxafl.clock.durations.duration import Duration
from jaxafl.clock.fleet import NEVER, Fleet, LocalRun, Steps
from jaxafl.options import Number, number, static

_ROUNDING = 1 + 1e-9  # 60 s at 2.4 s per step are 25 steps, and an arrival at T_max counts


@dataclasses.dataclass(eq=False)
class _Group:
    """Clients that are to arrive together.

    Attributes:
        arrival: T_a in simulated seconds.
        latest: T_max in simulated seconds.
        members: its clients.
        waiting: runs of those that have arrived.
    """

    arrival: float
    latest: float
    members: set[int] = dataclasses.field(default_factory=set)
    waiting: list[LocalRun] = dataclasses.field(default_factory=list)


class compass(Clock):
    """Clock with all N clients in training, whose local steps are chosen so that a group of them arrives together.

    At first all clients make Q_max local steps, and each arrival is a server step. From then on a client is in a group
    with an expected arrival time T_a and a latest one T_max. It joins the group in which it can make most local steps,
    Q_min to Q_max, before T_a, by its measured speed. If there is none, it founds one, whose T_a fits later groups. A
    client that has arrived waits for its group. The server steps when all members have arrived, or at T_max. Later
    members go into a general buffer, which the next step of a group takes, and are assigned anew at once. A step takes
    first the members in the order in which they arrived, then the late ones. The local steps of `Client` have no
    effect. An arrival costs a comparison with all groups.

    Args:
        durations: duration of a run in simulated seconds, usually with a term per step.
        min_steps: fewest local steps Q_min, at least 1.
        max_steps: most local steps Q_max, at least Q_min.
        tolerance: λ >= 1; T_max is λ times as far ahead as T_a.
        momentum: weight m of the last run in a client's measured speed, in [0, 1].

    References:
        Li et al., "FedCompass: Efficient cross-silo federated learning on heterogeneous client devices using a
        computing power aware scheduler", ICLR 2024. The rule was checked against the authors' code.
    """

    durations: Duration = dataclasses.field(kw_only=True)
    min_steps: int = static(default=20, kw_only=True)
    max_steps: int = static(default=100, kw_only=True)
    tolerance: Number = number(default=1.5, least=1, kw_only=True)
    momentum: Number = number(default=0.9, least=0, most=1, kw_only=True)

    references = ("li2024",)
    delivers = STARTS | Delivery.SEVERAL
    chooses_steps = True

    def check(self, num_clients: int) -> None:
        if self.min_steps > self.max_steps:
            raise ValueError(
                f"{self.name}: min_steps={self.min_steps} is more than max_steps={self.max_steps}; expected at most as "
                "many. Give a smaller min_steps"
            )

    def steps(self, fleet: Fleet) -> Steps:
        groups = _Groups(self, fleet)
        for runs in fleet.instants():
            for run in runs:
                groups.measure(run)
                group = groups.of[run.client]
                if group is None:
                    yield fleet.step([run])
                    groups.assign([run])
                elif fleet.now > group.latest:
                    groups.buffer(run)
                    groups.assign([run])
                else:
                    group.waiting.append(run)
                    if len(group.waiting) == len(group.members):
                        yield fleet.step(groups.close(group))
                        groups.assign(group.waiting)
            if not runs:
                group = groups.first()
                yield fleet.step(groups.close(group))
                groups.assign(group.waiting)
            fleet.due.sort(key=lambda run: run.client)  # type: ignore[union-attr]
            fleet.start_due()
            fleet.alarm = groups.first().latest


class _Groups:
    """The groups of one schedule, the clients' speeds, and the general buffer."""

    def __init__(self, clock: compass, fleet: Fleet) -> None:
        self.clock, self.fleet = clock, fleet
        self.speed = [0.0] * fleet.num_clients  # seconds per local step; 0 if unknown
        self.of: list[_Group | None] = [None] * fleet.num_clients  # by client
        self.groups: list[_Group] = []
        self.late: dict[int, LocalRun] = {}  # general buffer, by client
        fleet.refills = False
        fleet.reply(dict.fromkeys(range(fleet.num_clients), clock.max_steps))

    def first(self) -> _Group:
        """Returns the group in which a client waits whose T_max comes first; one that never comes if there is none."""
        waiting = (group for group in self.groups if group.waiting)
        return min(waiting, key=lambda group: group.latest, default=_Group(NEVER, NEVER))

    def measure(self, run: LocalRun) -> None:
        """Updates the measured speed of a client that arrives."""
        now, before = self.fleet.now, self.speed[run.client]
        speed = (now - run.started) / run.local_steps
        self.speed[run.client] = before + float(self.clock.momentum) * (speed - before) if before else speed

    def buffer(self, run: LocalRun) -> None:
        """Enters the update of a late client in the general buffer, where it may replace one."""
        if run.client in self.late:
            self.fleet.discard(self.late[run.client], "refused")
        self.late[run.client] = run

    def close(self, group: _Group) -> list[LocalRun]:
        """Returns the arrivals of a group's server step: those of its members, then the general buffer."""
        members = {run.client for run in group.waiting}
        for client in members & {*self.late}:
            self.fleet.discard(self.late.pop(client), "refused")
        taken = [*group.waiting, *self.late.values()]
        self.late.clear()
        self.groups.remove(group)
        group.latest = -NEVER
        return taken

    def assign(self, runs: list[LocalRun]) -> None:
        """Assigns groups and local steps to the clients of ended runs, the fastest first, and lets them start."""
        for run in sorted(runs, key=lambda run: (self.speed[run.client], run.client)):
            self.groups = [group for group in self.groups if group.latest >= self.fleet.now]
            group, steps = self._joined(run.client) or self._founded(run.client)
            group.members.add(run.client)
            self.of[run.client] = group
            self.fleet.reply({run.client: steps})
        self.fleet.due += runs

    def _steps_until(self, time: float, client: int) -> int:
        """Returns the local steps that a client makes from now on until some time."""
        return math.floor((time - self.fleet.now) / self.speed[client] * _ROUNDING)

    def _joined(self, client: int) -> tuple[_Group, int] | None:
        """Returns the group in which a client can make most local steps, and their number, if there is one."""
        fits = [(self._steps_until(group.arrival, client), place) for place, group in enumerate(self.groups)]
        allowed = (one for one in fits if self.clock.min_steps <= one[0] <= self.clock.max_steps)
        steps, place = max(allowed, default=(0, 0))
        return (self.groups[place], steps) if steps else None

    def _founded(self, client: int) -> tuple[_Group, int]:
        """Returns a new group, and the local steps with which its T_a fits the groups that come later."""
        clock, now, speed = self.clock, self.fleet.now, self.speed[client]
        later = [group for group in self.groups if now < group.latest]
        ends = [one.latest + clock.max_steps * min(self.speed[member] for member in one.members) for one in later]
        fits = [steps for end in ends if (steps := self._steps_until(end, client)) <= clock.max_steps]
        steps = max(*fits, clock.min_steps) if fits else clock.max_steps
        latest = now + float(clock.tolerance) * steps * speed * _ROUNDING
        self.groups.append(_Group(now + steps * speed, latest))
        return self.groups[-1], steps
