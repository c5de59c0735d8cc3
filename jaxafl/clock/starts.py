"""What clocks share when clients start: durations of runs, drawn or recorded clients, faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from jaxafl.clock import selection
from jaxafl.clock.contract import Fault, FaultCode, Recording, Runs, Starts, Workload
from jaxafl.clock.durations.duration import Duration
from jaxafl.clock.durations.runs import Draw, Run, draw_of, prepared_of, stream_keys
from jaxafl.device.keys import Key, Purpose, purpose_key, threefry, uniform

Array = jax.Array
S = TypeVar("S", bound=Any)  # a clock's state: a NamedTuple with a field `starts`


def no_starts(
    durations: Duration | None = None, key: Key | None = None, num_clients: int = 0, count: int = 0
) -> Starts:
    """Nothing has gone wrong, and `count` runs have started (of which no clock here knows a duration).

    Args:
        durations: of the clock, prepared for the runs to come; `None` without.
        key: of the schedule.
        num_clients: N.
        count: runs that have started.
    """
    none = jnp.int32(0)
    prepared: Any = ()
    if durations is not None and key is not None:
        prepared = prepared_of(durations, stream_keys(key, durations), num_clients)
    return Starts(jnp.int32(count), jnp.float64(0), Fault(none, none, none, none, none, jnp.float64(0)), prepared)


def first_fault(starts: Starts, code: Array | int, **where: Array) -> Starts:
    """Records a fault (`FaultCode.NONE`: none) unless there was one before.

    Args:
        starts: what is known so far.
        code: int32, a `FaultCode`.
        **where: fields of `Fault`.
    """
    none = starts.fault._replace(code=jnp.asarray(code, jnp.int32))
    now = none._replace(**{name: jnp.asarray(value, getattr(none, name).dtype) for name, value in where.items()})
    return starts._replace(
        fault=jax.tree.map(lambda old, new: jnp.where(starts.fault.code == 0, new, old), starts.fault, now)
    )


def valid(duration: Array) -> Array:
    """Returns True for a valid duration: neither negative nor NaN; infinite: the run never arrives."""
    return duration >= 0


def invalid_code(duration: Array) -> Array:
    """The fault of a duration that is none; NaN: the recording has run out."""
    return jnp.where(jnp.isnan(duration), FaultCode.DURATIONS_END, FaultCode.INVALID_DURATION).astype(jnp.int32)


def duration_fault(starts: Starts, runs: Runs, duration: Array, wrong: Array, round: Array) -> Starts:
    """Records the first of several runs [A] whose duration is marked wrong.

    Args:
        starts: what is known so far.
        runs: the runs.
        duration: float64 [A], theirs.
        wrong: bool [A], whether it is negative or NaN.
        round: int32, at which server step.
    """
    first = jnp.argmax(wrong)
    code = jnp.where(jnp.any(wrong), invalid_code(duration[first]), FaultCode.NONE)
    which = {"run_id": runs.run_id[first], "client": runs.client[first], "run": runs.run[first]}
    return first_fault(starts, code, round=round, **which)


def start_together(
    durations: Duration, state: S, who: Array, client: Array, run: Array, workload: Workload
) -> tuple[S, Runs]:
    """Starts several runs from the newest version at one instant, in this order.

    Args:
        durations: of a run.
        state: of the clock, with the instant `now` and the newest `version`, also the number of the server step.
        who: bool [A], which of the entries really start.
        client, run: int32 [A].
        workload: how many local steps they make.

    Returns:
        The state that knows of them (`starts`), and the runs [A]; a duration that is none counts as 1, so that time
        goes on.
    """
    starts, now, version = state.starts, state.now, state.version
    local_steps = jax.vmap(workload.local_steps)(client, run).astype(jnp.int32)

    def draw(client: Array, run: Array, local_steps: Array, longest: Array) -> Draw:
        return draw_of(durations, starts.prepared, Run(client, run, local_steps, longest, now))

    before = jnp.full(client.shape, starts.longest)
    work = jax.vmap(draw)(client, run, local_steps, before).work
    earlier = jnp.concatenate([before[:1], jax.lax.cummax(jnp.where(who & ~jnp.isinf(work), work, 0))[:-1]])
    drawn = jax.vmap(draw)(client, run, local_steps, jnp.maximum(before, earlier))
    duration = drawn.work + drawn.hang
    fine = valid(duration)
    run_id = starts.count + jnp.cumsum(who, dtype=jnp.int32) - 1
    runs = Runs(
        client, run, run_id, jnp.full(client.shape, version, jnp.int32), local_steps,
        jnp.full(client.shape, now), now + jnp.where(fine, duration, 1),
    )  # fmt: skip
    starts = duration_fault(starts, runs, duration, who & ~fine, version)
    starts = starts._replace(
        count=starts.count + jnp.sum(who, dtype=jnp.int32),
        longest=jnp.maximum(starts.longest, jnp.max(jnp.where(who & fine & ~jnp.isinf(work), work, 0))),
    )
    return state._replace(starts=starts), runs


def blank_runs(size: int) -> Runs:
    """A run of each of the clients 0..size - 1 of which nothing is known yet; it never arrives."""
    clients = jnp.arange(size, dtype=jnp.int32)
    zero, never = jnp.zeros_like(clients), jnp.full(size, jnp.inf, jnp.float64)
    return Runs(clients, zero, zero, zero, zero, jnp.zeros_like(never), never)


def recorded_or(recorded: Recording, index: Array, draw: Callable[[], Array]) -> tuple[Array, Array]:
    """Row `index` of a recording, or what is drawn where there is none; and whether the recording has run out."""
    if recorded is None:
        return draw(), jnp.bool_(False)
    table = jnp.asarray(recorded).astype(jax.eval_shape(draw).dtype)
    return table[jnp.minimum(index, table.shape[0] - 1)], index >= table.shape[0]


def replayed(
    state: S, recorded: Recording, round: Array, code: FaultCode, draw: Callable[[], Array]
) -> tuple[S, Array]:
    """As `recorded_or` for one round or tick; that the recording has run out is a fault of this code.

    Args:
        state: of the clock.
        recorded: the recording, or `None`.
        round: int32, which entry of it.
        code: the fault where it has ended.
        draw: what is drawn without a recording.
    """
    row, missing = recorded_or(recorded, round, draw)
    starts = first_fault(state.starts, jnp.where(missing, code, FaultCode.NONE), round=round)
    return state._replace(starts=starts), row


def drawn_clients(
    state: S, recorded: Recording, size: int, num_clients: int, *, replacement: bool = False
) -> tuple[S, Array]:
    """int32 [size], the clients of the next server step in the order in which they are drawn, or recorded ones.

    Drawn are independent uniform clients, or distinct ones, one after another from those not yet drawn.

    Args:
        state: of the clock, with the `key` of the schedule and `version`, the number of the server step.
        recorded: the recorded sets, or `None`.
        size: clients to draw.
        num_clients: N.
        replacement: whether a client may be drawn twice.
    """
    order = jnp.arange(size, dtype=jnp.int32)

    def draw() -> Array:
        key, draws = purpose_key(state.key, Purpose.START), state.version * size + order
        if replacement:
            return jnp.floor(uniform(threefry(key, draws, 0), jnp.float64) * num_clients).astype(jnp.int32)
        if size == num_clients:
            return order

        def pick(chosen: Array, indexed: tuple[Array, Array]) -> tuple[Array, Array]:
            position, draw = indexed
            client = selection.idle_client(key, draw, chosen, position, num_clients)
            return selection.insert(chosen, client), client

        return jax.lax.scan(pick, selection.no_busy(size), (order, draws))[1]

    return replayed(state, recorded, state.version, FaultCode.SETS_END, draw)


def distinct(drawn: Array) -> tuple[Array, Array, Array]:
    """The drawn clients in client order, whether an entry is the first of its client, how often it was drawn.

    All pairs are compared, since what is compiled as one function (`Clock.event_by_event`) may not sort.
    """
    order, others = jnp.arange(drawn.size), drawn[:, None]
    place = jnp.sum((drawn < others) | ((drawn == others) & (order < order[:, None])), axis=1)
    client = jnp.sum(jnp.where(place == order[:, None], drawn, 0), axis=1, dtype=jnp.int32)
    first = jnp.concatenate([jnp.ones(1, bool), client[1:] != client[:-1]])
    return client, first, jnp.sum(client == client[:, None], axis=1, dtype=jnp.int32)
