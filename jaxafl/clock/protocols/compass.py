"""Groups of clients that are given so much work that they arrive together: the clock of FedCompass."""

from __future__ import annotations

import dataclasses
import math

from jaxafl.clock.contract import STARTS, Clock, Delivery
from jaxafl.clock.durations.duration import Duration
from jaxafl.clock.fleet import NEVER, Fleet, LocalRun, Steps
from jaxafl.options import Number, UserError, check_whole, number, static

_ROUNDING = 1 + 1e-9  # 60 s at 2.4 s per step are 25 steps, and an arrival at T_max counts


@dataclasses.dataclass(eq=False)
class _Group:
    """Clients that are to arrive together.

    Attributes:
        arrival: T_a in simulated seconds.
        latest: T_max in simulated seconds; it has passed once the server has stepped.
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
    client that has arrived waits for its group. The server steps when all members have arrived, or at T_max if some
    have. Later members go into a general buffer, which the next step of a group takes, and are assigned anew at once.
    A late update that waits there is refused when a newer one of its client arrives; if that is late too, it takes the
    place of the older one. A step takes first the members in the order in which they arrived, then the buffer in its
    order. The local steps of `Client` have no effect. An arrival costs a comparison with all groups.

    Args:
        durations: duration of a run in simulated seconds, usually with a term per step.
        min_steps: fewest local steps Q_min, at least 1.
        max_steps: most local steps Q_max, at least Q_min.
        tolerance: λ >= 1; T_max is λ times as far ahead as T_a.
        momentum: weight m of the last run in a client's measured speed, in [0, 1].

    Raises:
        UserError: while a schedule is computed, if a run took no time.

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
        check_whole(self.name, "min_steps", self.min_steps, most=self.max_steps)

    def steps(self, fleet: Fleet) -> Steps:
        speed = [0.0] * fleet.num_clients  # measured seconds per local step of each client; 0 if unknown
        group_of: list[_Group | None] = [None] * fleet.num_clients
        groups: list[_Group] = []
        late: dict[int, LocalRun] = {}  # general buffer, by client
        fleet.refills = False
        fleet.reply(dict.fromkeys(range(fleet.num_clients), self.max_steps))

        def first() -> _Group:  # of those in which a client waits; one that never comes if there is none
            waiting = (group for group in groups if group.waiting)
            return min(waiting, key=lambda group: group.latest, default=_Group(NEVER, NEVER))

        def close(group: _Group) -> list[LocalRun]:  # returns the arrivals of its server step
            for client in {run.client for run in group.waiting} & {*late}:
                fleet.discard(late.pop(client), "refused")
            taken = [*group.waiting, *late.values()]
            late.clear()
            groups.remove(group)
            group.latest = -NEVER
            return taken

        def assign(runs: list[LocalRun]) -> None:  # the fastest first
            for run in sorted(runs, key=lambda run: (speed[run.client], run.client)):
                groups[:] = [group for group in groups if group.latest >= fleet.now]
                group, steps = self._group(fleet.now, groups, speed, run.client)
                group.members.add(run.client)
                group_of[run.client] = group
                fleet.reply({run.client: steps})
            fleet.due += runs

        for runs in fleet.instants():
            for run in runs:
                before, measured = speed[run.client], (fleet.now - run.started) / run.local_steps
                if not measured:
                    where = f"run {run.run} of client {run.client}"
                    raise UserError(f"compass: {where} took 0 s, which gives no speed; durations must be above 0")
                speed[run.client] = before + float(self.momentum) * (measured - before) if before else measured
                group = group_of[run.client]
                if group is None:
                    yield fleet.step([run])
                    assign([run])
                elif fleet.now > group.latest:
                    if run.client in late:
                        fleet.discard(late[run.client], "refused")
                    late[run.client] = run
                    assign([run])
                else:
                    group.waiting.append(run)
                    if len(group.waiting) == len(group.members):
                        yield fleet.step(close(group))
                        assign(group.waiting)
            if not runs:
                group = first()
                yield fleet.step(close(group))
                assign(group.waiting)
            fleet.due.sort(key=lambda run: run.client)  # type: ignore[union-attr]
            fleet.start_due()
            fleet.alarm = first().latest

    def _group(self, now: float, groups: list[_Group], speed: list[float], client: int) -> tuple[_Group, int]:
        """Returns the group that a client joins or founds, and its local steps.

        It joins the group in which it can make most. Otherwise T_a of the new one fits the groups that come later.
        """

        def until(time: float) -> int:  # local steps that the client makes by then
            return math.floor((time - now) / speed[client] * _ROUNDING)

        fits = [(until(group.arrival), place) for place, group in enumerate(groups)]
        if allowed := [one for one in fits if self.min_steps <= one[0] <= self.max_steps]:
            steps, place = max(allowed)
            return groups[place], steps
        later = [group for group in groups if now < group.latest]
        ends = [one.latest + self.max_steps * min(speed[member] for member in one.members) for one in later]
        room = [until(end) for end in ends if until(end) <= self.max_steps]
        steps = max(*room, self.min_steps) if room else self.max_steps
        latest = now + float(self.tolerance) * steps * speed[client] * _ROUNDING
        groups.append(_Group(now + steps * speed[client], latest))
        return groups[-1], steps
