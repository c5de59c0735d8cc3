"""Groups of clients that are given so much work that they arrive together: the clock of FedCompass."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.clock import trees
from jaxafl.clock.checks import check_durations
from jaxafl.clock.contract import Clock, Delivery, FaultCode, Runs, ServerStep, Starts, Workload
from jaxafl.clock.durations.duration import Duration
from jaxafl.clock.durations.runs import Run
from jaxafl.clock.groups import Alarm, Grouping, Queue, assign, choose, first_alarm, no_groups
from jaxafl.clock.starts import blank_runs, first_fault, no_starts, start_run
from jaxafl.clock.trees import put
from jaxafl.device.buffers import changed_if, read, write
from jaxafl.device.keys import Key
from jaxafl.options import Number, number, static

Array = jax.Array
_ROW = 16  # arrivals that `next` returns at most
_STARTS = float(np.finfo(np.float64).max)  # in the place of a speed: the client starts after this instant's arrivals


class State(NamedTuple):
    """State of the clock."""

    now: Array
    version: Array
    runs: Runs  # current run of each client, [N]
    next_run: Array  # int32 [N]
    grouping: Grouping
    general: Runs  # last late run of each client, [N]
    late: Array  # int32 [N], number of the last general buffer with an update of the client
    buffer: Array  # number of the general buffer
    closed: Array  # index of the last group with a server step
    buffered: Queue  # clients in the general buffer
    taken: tuple[Queue, Queue]  # members, and late clients, whose updates the server step under way still has to take
    behind: tuple[Array, Array]  # int32 [N], client behind it in the queue of its group, and in the general buffer
    arrivals: trees.Arrivals  # of the current runs
    idle: trees.Arrivals  # clients without a group, by their speed, then those that are to start
    starts: Starts


class compass(Clock):
    """Clock with all N clients in training, whose local steps are chosen so that a group of them arrives together.

    At first all clients make Q_max local steps, and each arrival is a server step. From then on a client is in a group
    with an expected arrival time T_a and a latest one T_max. It joins the group in which it can make most local steps,
    Q_min to Q_max, before T_a, by its measured speed. If there is none, it founds one, whose T_a fits later groups. A
    client that has arrived waits for its group. The server steps when all members have arrived, or at T_max. Later
    members go into a general buffer, which the next step of a group takes, and are assigned anew at once. A step takes
    first the members in the order in which they arrived, then the late ones. The local steps of `Client` have no
    effect. An arrival costs O(log N) and a comparison with all groups.

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
    event_by_event: ClassVar[bool] = True

    def check(self, num_clients: int) -> None:
        check_durations(self.name, self.durations, num_clients)
        if self.min_steps > self.max_steps:
            raise ValueError(
                f"{self.name}: min_steps={self.min_steps} is more than max_steps={self.max_steps}; expected at most as "
                "many. Give a smaller min_steps"
            )

    def capacity(self, num_clients: int) -> int:
        return num_clients

    def entries(self, num_clients: int) -> int:
        return min(num_clients, _ROW)

    def ring_slots(self, num_clients: int) -> int:
        return 2 * num_clients + 1  # per client the current run and the one in the general buffer

    def init(self, key: Key, num_clients: int) -> State:
        runs, none = blank_runs(num_clients), Queue(jnp.int32(-1), jnp.int32(-1))
        zero = runs.run
        return State(
            now=jnp.float64(0),
            version=jnp.int32(0),
            runs=runs,
            next_run=zero,
            grouping=no_groups(num_clients, self.max_steps),
            general=runs,
            late=zero - 2,
            buffer=jnp.int32(0),
            closed=jnp.int32(0),
            buffered=none,
            taken=(none, none),
            behind=(zero, zero),
            arrivals=trees.no_arrivals(num_clients),
            idle=trees.all_arrive(num_clients, _STARTS),
            starts=no_starts(self.durations, key, num_clients),
        )

    def held(self, state: State) -> list[Array]:
        needed = state.late >= state.buffer - 1  # the step under way may still have to take those before
        return [state.runs.version, jnp.where(needed, state.general.version, state.version)]

    def next(self, state: State, workload: Workload) -> tuple[State, ServerStep]:
        """Advances to the next server step, or until a row of arrivals of it is full."""
        size = self.entries(workload.num_clients)
        step = ServerStep(state.now, jnp.zeros(size, bool), blank_runs(size))

        def advance(carry: tuple[State, ServerStep, Array]) -> tuple[State, ServerStep, Array]:
            state, step, _ = carry
            settled = ~_stepping(state)
            state = jax.lax.while_loop(lambda s: settled & (s.idle.first[0] < _STARTS), self._assign, state)
            state = jax.lax.while_loop(
                lambda s: settled & (s.idle.first[0] == _STARTS) & (s.arrivals.first[0] > s.now), self._start, state
            )
            state = changed_if(settled, self._event, state)
            stepping = _stepping(state)
            state, step = _take(state, step)
            return state, step, stepping | (state.starts.fault.code > 0)

        state, step, _ = jax.lax.while_loop(lambda carry: ~carry[2], advance, (state, step, jnp.bool_(False)))
        ends = ~_stepping(state) & (state.starts.fault.code == 0)
        step = step._replace(time=state.now, advances=ends if size < workload.num_clients else None)
        return state._replace(version=state.version + ends), step

    def _start(self, state: State) -> State:
        """Starts the first client that is due, from the newest version."""
        size = len(state.late)
        client = state.idle.first[1]
        index, steps = read((state.next_run, state.grouping.steps), client)
        run = Run(client, index, steps, state.starts.longest, state.now)
        starts, begun, _ = start_run(self.durations, state.starts, run, state.version)
        endless = jnp.where(begun.arrived == state.now, FaultCode.NO_TIME, FaultCode.NONE)
        starts = first_fault(starts, endless, client=client, run=index, run_id=begun.run_id)
        return state._replace(
            runs=write(state.runs, client, begun),
            next_run=write(state.next_run, client, index + 1),
            arrivals=trees.expect(state.arrivals, size, client, begun.arrived, client, jnp.bool_(True)),
            idle=_rank(state.idle, size, client, jnp.inf),
            starts=starts,
        )

    def _assign(self, state: State) -> State:
        """Assigns a group to the fastest of the clients without one."""
        client, size = state.idle.first[1], len(state.late)
        return state._replace(
            grouping=assign(state.grouping, client, state.now, self.min_steps, self.max_steps, self.tolerance),
            idle=_rank(state.idle, size, client, _STARTS),
        )

    def _event(self, state: State) -> State:
        """Delivers the earliest arrival, or ends the wait of a group at its T_max."""
        size, grouping = len(state.late), state.grouping
        alarm = grouping.alarm
        time, client, _ = state.arrivals.first
        arrives, now, client = time <= alarm.time, jnp.minimum(time, alarm.time), jnp.minimum(client, size - 1)
        columns = (state.runs.started, grouping.steps, grouping.speed, grouping.place, grouping.number)
        started, steps, before, at, number = read(columns, client)
        speed = (now - started) / steps
        speed = jnp.where(before == 0, speed, before + self.momentum * (speed - before))
        gone = jnp.where(jnp.isinf(now), FaultCode.ALL_GONE, FaultCode.NONE)
        starts = first_fault(state.starts, gone, round=state.version, time=state.now)
        place = jnp.where(arrives, jnp.maximum(at, 0), alarm.place)
        group = read(grouping.groups, place)
        single = arrives & (at < 0)
        late = arrives & ~single & ((group.number != number) | (now > group.latest))
        waits = arrives & ~single & ~late
        missing = group.missing - waits
        closes = jnp.where(arrives, waits & (missing == 0), jnp.isfinite(now))
        waiting = group.waiting.then(client, waits)
        slows = (group.fastest == 0) | ((before == group.fastest) & (speed > before))
        fastest = jnp.where(slows, 0, jnp.minimum(group.fastest, speed))
        none, alone = Queue(jnp.int32(-1), jnp.int32(-1)), Queue(client, client)
        after = group._replace(
            arrival=jnp.where(closes, -jnp.inf, group.arrival),
            latest=jnp.where(closes, -jnp.inf, group.latest),
            fastest=jnp.where(waits, fastest, group.fastest),
            missing=missing,
            waiting=choose(closes, none, waiting),
        )
        behind = put(state.behind[0], jnp.where(group.waiting.first < 0, client, group.waiting.last), client, waits)
        groups = write(grouping.groups, place, after)
        alarm = choose(waits & ~closes, alarm.earliest(Alarm(group.latest, group.number, place)), alarm)
        grouping = grouping._replace(groups=groups, alarm=alarm, speed=put(grouping.speed, client, speed, arrives))
        rung = (closes & (place == alarm.place)).astype(jnp.int32)
        grouping = jax.lax.fori_loop(
            0, rung, lambda _, grouping: grouping._replace(alarm=first_alarm(grouping)), grouping
        )
        state = state._replace(
            now=jnp.where(jnp.isinf(now), state.now, now),
            grouping=grouping,
            buffer=state.buffer + closes,
            closed=jnp.where(closes, group.number, state.closed),
            buffered=choose(closes, none, state.buffered),
            taken=(choose(closes, waiting, choose(single, alone, none)), choose(closes, state.buffered, none)),
            behind=(behind, state.behind[1]),
            arrivals=trees.expect(state.arrivals, size, client, jnp.float64(jnp.inf), client, arrives),
            starts=starts,
        )
        return changed_if(late, lambda state: _buffer(state, client), state)


def _buffer(state: State, client: Array) -> State:
    """Enters the update of a late client in the general buffer; the client then has no group."""
    run, speed, buffer = read((state.runs, state.grouping.speed, state.late), client)
    enters = buffer != state.buffer  # else it replaces an update
    last = jnp.where(state.buffered.first < 0, client, state.buffered.last)
    return state._replace(
        general=write(state.general, client, run),
        late=put(state.late, client, state.buffer, enters),
        buffered=state.buffered.then(client, enters),
        behind=(state.behind[0], put(state.behind[1], last, client, enters)),
        idle=_rank(state.idle, len(state.late), client, speed),
        starts=state.starts._replace(refused=state.starts.refused + ~enters),
    )


def _stepping(state: State) -> Array:
    """Returns True if a server step has updates to take."""
    return (state.taken[0].first >= 0) | (state.taken[1].first >= 0)


def _rank(idle: trees.Arrivals, size: int, client: Array, speed: Array | float) -> trees.Arrivals:
    """Enters a client without a group by its speed, or removes it if that is infinite."""
    return trees.expect(idle, size, client, jnp.asarray(speed, jnp.float64), client, jnp.bool_(True))


def _take(state: State, step: ServerStep) -> tuple[State, ServerStep]:
    """Enters the updates that the server step takes in a row, until it is full; the members then have no group."""
    size = len(state.late)

    def enter(step: ServerStep, run: Runs, where: Array | bool) -> ServerStep:
        place = jnp.where(where, jnp.sum(step.mask), len(step.mask))
        columns = ((step.mask, step.runs), (True, run))
        mask, runs = jax.tree.map(lambda column, value: column.at[place].set(value, mode="drop"), *columns)
        return step._replace(mask=mask, runs=runs)

    def member(carry: tuple[State, ServerStep]) -> tuple[State, ServerStep]:
        state, step = carry
        queue, late = state.taken
        run, speed, buffer = read((state.runs, state.grouping.speed, state.late), queue.first)
        replaces = buffer == state.buffer - 1
        state = state._replace(
            taken=(queue.rest(state.behind[0]), late),
            idle=_rank(state.idle, size, queue.first, speed),
            starts=state.starts._replace(refused=state.starts.refused + replaces),
        )
        return state, enter(step, run, True)

    def replaced(state: State) -> Array:
        """Returns True if the first late client's update is replaced by its update as a member."""
        arrived, number = read((state.runs.arrived, state.grouping.number), jnp.maximum(state.taken[1].first, 0))
        return (number == state.closed) & (arrived <= state.now)

    def late(carry: tuple[State, ServerStep]) -> tuple[State, ServerStep]:
        state, step = carry
        members, queue = state.taken
        step = enter(step, read(state.general, queue.first), ~replaced(state))
        return state._replace(taken=(members, queue.rest(state.behind[1]))), step

    def some_late(carry: tuple[State, ServerStep]) -> Array:
        state, step = carry
        return (state.taken[1].first >= 0) & (~jnp.all(step.mask) | replaced(state))

    carry = jax.lax.while_loop(lambda c: (c[0].taken[0].first >= 0) & ~jnp.all(c[1].mask), member, (state, step))
    return jax.lax.while_loop(lambda c: (c[0].taken[0].first < 0) & some_late(c), late, carry)
