"""Groups of clients that are given so much work that they arrive together: the clock of FedCompass."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from jaxafl.clock.checks import check_durations
from jaxafl.clock.contract import Clock, Delivery, FaultCode, Runs, ServerStep, Starts, Workload
from jaxafl.clock.durations.duration import Duration
from jaxafl.clock.starts import blank_runs, first_fault, no_starts, start_runs
from jaxafl.device.keys import Key
from jaxafl.options import Number, number, static

Array = jax.Array
_ROUNDING = 1e-9  # relative; 60 s at 2.4 s per step are 25 steps, and an arrival at T_max counts


class Groups(NamedTuple):
    """Groups, in N places; a place is free if no client is in its group."""

    arrival: Array  # float64 [N], T_a; 0 once the group is aggregated
    latest: Array  # float64 [N], T_max; 0 once the group is aggregated
    created: Array  # int32 [N], in order of creation


class State(NamedTuple):
    """State of the clock; arrays are per client, [N]."""

    now: Array
    version: Array
    due: Array  # bool, True if the client starts once all arrivals of this instant are delivered
    steps: Array  # int32, local steps of the client's next or current run
    speed: Array  # float64, seconds per local step; 0 if unknown
    runs: Runs  # current runs
    ends: Array  # float64, arrival of the current run; infinite after it
    waiting: Array  # bool, True if the update waits for the client's group
    late: Array  # bool, True if an update is in the general buffer
    general: Runs  # updates in the general buffer
    group: Array  # int32, place of the client's group, or -1
    groups: Groups
    next_run: Array
    starts: Starts


class compass(Clock):
    """Clock with all N clients in training, whose local steps are chosen so that a group of them arrives together.

    At first all clients make Q_max local steps, and each arrival is a server step. From then on a client is in a group
    with an expected arrival time T_a and a latest one T_max. It joins the group in which it can make most local steps,
    Q_min to Q_max, before T_a, by its measured speed. If there is none, it founds one, whose T_a fits later groups. A
    client that has arrived waits for its group. The server steps when all members have arrived, or at T_max. Later
    members go into a general buffer, which the next step of a group takes, and are assigned anew at once. The local
    steps of `Client` have no effect. An arrival costs O(N): the method is for silos, up to some thousands.

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

    references: ClassVar[tuple[str, ...]] = ("li2024",)
    delivers: ClassVar[Delivery] = Delivery.STALE | Delivery.CONTINUOUS | Delivery.SEVERAL
    chooses_steps: ClassVar[bool] = True

    def check(self, num_clients: int) -> None:
        check_durations(self.name, self.durations, num_clients)
        if self.min_steps > self.max_steps:
            raise ValueError(
                f"{self.name}: min_steps={self.min_steps} is more than max_steps={self.max_steps}; expected at most as "
                "many. Give a smaller min_steps"
            )

    def capacity(self, num_clients: int) -> int:
        return num_clients

    def ring_slots(self, num_clients: int) -> int:
        return 2 * num_clients + 1  # per client the current run and the one in the general buffer

    def init(self, key: Key, num_clients: int) -> State:
        runs, none = blank_runs(num_clients), jnp.zeros(num_clients, bool)
        zero = jnp.zeros(num_clients)
        return State(
            now=jnp.float64(0),
            version=jnp.int32(0),
            due=~none,
            steps=jnp.full(num_clients, self.max_steps, jnp.int32),
            speed=zero,
            runs=runs,
            ends=zero + jnp.inf,
            waiting=none,
            late=none,
            general=runs,
            group=runs.client * 0 - 1,
            groups=Groups(zero, zero, runs.client * 0),
            next_run=runs.client * 0,
            starts=no_starts(self.durations, key, num_clients),
        )

    def held(self, state: State) -> list[Array]:
        return [state.runs.version, jnp.where(state.late, state.general.version, state.version)]

    def next(self, state: State, workload: Workload) -> tuple[State, ServerStep]:
        """Advances to the next server step; clients that are due start before simulated time advances."""
        empty = ServerStep(state.now, jnp.zeros(workload.num_clients, bool), state.runs)

        def advance(carry: tuple[State, ServerStep, Array]) -> tuple[State, ServerStep, Array]:
            state, step, _ = carry
            starts = jnp.any(state.due) & (jnp.min(state.ends) > state.now)
            return jax.lax.cond(starts, lambda state: (self._start(state), step, jnp.bool_(False)), self._event, state)

        state, step, _ = jax.lax.while_loop(lambda carry: ~carry[2], advance, (state, empty, jnp.bool_(False)))
        return state, step

    def _start(self, state: State) -> State:
        """Starts the clients that are due from the newest version."""
        clients = jnp.arange(len(state.due), dtype=jnp.int32)
        workload = Workload(state.steps, len(clients))
        state, new = start_runs(self.durations, state, state.due, clients, state.next_run, workload)
        return state._replace(
            runs=jax.tree.map(
                lambda a, b: jnp.where(state.due, a, b), new, state.runs.complete()._replace(reference=None)
            ),
            ends=jnp.where(state.due, new.arrived, state.ends),
            next_run=state.next_run + state.due,
            due=jnp.zeros_like(state.due),
        )

    def _event(self, state: State) -> tuple[State, ServerStep, Array]:
        """Delivers the earliest arrival, or ends the wait of a group at its T_max."""
        places = jnp.arange(len(state.due), dtype=jnp.int32)
        waited = (
            jnp.zeros(len(places), bool).at[jnp.where(state.waiting, state.group, len(places))].set(True, mode="drop")
        )
        alarms = jnp.where(waited & (state.groups.latest > 0), state.groups.latest, jnp.inf)
        client = jnp.argmin(state.ends).astype(jnp.int32)
        arrives = state.ends[client] <= jnp.min(alarms)
        now = jnp.minimum(state.ends[client], jnp.min(alarms))
        one = (places == client) & arrives
        elapsed = now - state.runs.started
        measured = elapsed / state.steps
        speed = jnp.where(state.speed == 0, measured, state.speed + self.momentum * (measured - state.speed))
        gone = jnp.where(jnp.isinf(now), FaultCode.ALL_GONE, FaultCode.NONE)
        endless = jnp.where(arrives & (elapsed[client] == 0), FaultCode.NO_TIME, FaultCode.NONE)
        which = {"client": client, "run": state.runs.run[client], "run_id": state.runs.run_id[client]}
        starts = first_fault(state.starts, jnp.maximum(gone, endless), round=state.version, time=state.now, **which)
        place = state.group[client]
        first = arrives & (place < 0)
        late = arrives & ~first & (now > state.groups.latest[place])
        waiting = state.waiting | (one & ~first & ~late)
        state = state._replace(
            now=jnp.where(jnp.isinf(now), state.now, now),
            speed=jnp.where(one, speed, state.speed),
            ends=jnp.where(one, jnp.inf, state.ends),
            waiting=waiting,
            starts=starts._replace(refused=starts.refused + (late & state.late[client])),
            general=jax.tree.map(lambda a, b: jnp.where(one & late, a, b), state.runs, state.general),
            late=state.late | (one & late),
        )
        closing = jnp.where(arrives, place, jnp.argmin(alarms).astype(jnp.int32))
        mine = state.group == closing
        closes = ~arrives | (~first & ~late & jnp.all(~mine | waiting))
        arrived = mine & waiting & closes
        both = jnp.sum(arrived & state.late, dtype=jnp.int32)
        mask = jnp.where(closes, arrived | state.late, one & first)
        runs = jax.tree.map(lambda a, b: jnp.where(arrived | ~state.late | ~closes, a, b), state.runs, state.general)
        step = ServerStep(state.now, mask, runs)
        over = (places == closing) & closes
        groups = state.groups._replace(
            arrival=jnp.where(over, 0, state.groups.arrival), latest=jnp.where(over, 0, state.groups.latest)
        )
        again = jnp.where(closes, arrived, one & (first | late))
        stepped = closes | first
        state = state._replace(
            version=state.version + stepped,
            waiting=waiting & ~arrived,
            late=state.late & ~closes,
            group=jnp.where(again, -1, state.group),
            groups=groups,
            due=state.due | again,
            starts=state.starts._replace(refused=state.starts.refused + both),
        )
        state, _ = jax.lax.while_loop(lambda carry: jnp.any(carry[1]), self._assign, (state, again))
        return state, step, stepped | (starts.fault.code > 0)

    def _assign(self, carry: tuple[State, Array]) -> tuple[State, Array]:
        """Assigns a group and local steps to the fastest of the clients that need them, bool [N]."""
        state, need = carry
        client = jnp.argmin(jnp.where(need, state.speed, jnp.inf)).astype(jnp.int32)
        speed, groups, now = state.speed[client], state.groups, state.now
        size = len(need)

        def steps_in(seconds: Array) -> Array:
            return jnp.floor(seconds / jnp.where(speed > 0, speed, 1) * (1 + _ROUNDING))

        fits = steps_in(groups.arrival - now)
        fits = jnp.where((fits >= self.min_steps) & (fits <= self.max_steps), fits, -1)
        most = jnp.max(fits)
        joins = most >= 0
        joined = jnp.argmax(jnp.where(fits == most, groups.created, -1)).astype(jnp.int32)
        fastest = (
            jnp.full(size, jnp.inf).at[jnp.where(state.group < 0, size, state.group)].min(state.speed, mode="drop")
        )
        later = steps_in(groups.latest + self.max_steps * fastest - now)
        later = jnp.max(jnp.where((now < groups.latest) & (later <= self.max_steps), later, -1))
        founded = jnp.where(later < 0, self.max_steps, jnp.maximum(later, self.min_steps))
        used = jnp.zeros(size, bool).at[jnp.where(state.group < 0, size, state.group)].set(True, mode="drop")
        place = jnp.where(joins, joined, jnp.argmin(used).astype(jnp.int32))
        steps = jnp.where(joins, most, founded)
        new = (jnp.arange(size) == place) & ~joins
        groups = Groups(
            jnp.where(new, now + steps * speed, groups.arrival),
            jnp.where(new, now + self.tolerance * steps * speed * (1 + _ROUNDING), groups.latest),
            jnp.where(new, jnp.max(groups.created) + 1, groups.created),
        )
        chosen = jnp.arange(size) == client
        state = state._replace(
            groups=groups,
            group=jnp.where(chosen, place, state.group),
            steps=jnp.where(chosen, steps.astype(jnp.int32), state.steps),
        )
        return state, need & ~chosen
