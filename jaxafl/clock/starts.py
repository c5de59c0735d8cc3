"""Shared functions of clocks for the start of runs: durations, drawn or recorded clients, faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp

from jaxafl.clock import selection, trees
from jaxafl.clock.contract import Clock, Fault, FaultCode, Recording, Runs, Starts, Workload
from jaxafl.clock.durations.duration import Duration
from jaxafl.clock.durations.link import shared_link
from jaxafl.clock.durations.runs import Draw, Run, draw_of, prepared_of, stream_keys
from jaxafl.clock.transfers import round_of_transfers
from jaxafl.device.keys import Key, Purpose, jax_key, per_run, purpose_key, threefry, uniform, words_of
from jaxafl.options import Number, UserError

Array = jax.Array
S = TypeVar("S", bound=Any)  # a clock's state: a NamedTuple with a field `starts`


def no_starts(
    durations: Duration | None = None, key: Key | None = None, num_clients: int = 0, count: int = 0
) -> Starts:
    """Returns the record of a clock without faults and with `count` started runs of unknown duration.

    Args:
        durations: durations of the clock, which are prepared; `None` if it has none.
        key: key of the schedule.
        num_clients: N.
        count: runs that have started.
    """
    none = jnp.int32(0)
    prepared: Any = ()
    if durations is not None and key is not None:
        prepared = prepared_of(durations, stream_keys(key, durations), num_clients)
    return Starts(
        jnp.int32(count),
        jnp.float64(0),
        Fault(none, none, none, none, none, jnp.float64(0)),
        prepared,
        *(none,) * 4,
    )


def first_state(clock: Clock, key: Key, num_clients: int) -> Any:
    """Returns the state before the first server step; a user's `init` gets a key for `jax.random`."""
    shipped = type(clock).init.__module__.startswith("jaxafl.")
    state = clock.init(key if shipped else cast(Any, jax_key(words_of(key))), num_clients)
    if not hasattr(state, "starts"):
        raise UserError(
            f"the clock {clock.name}: init(key, num_clients) must return a state with a field `starts` "
            f"(jaxafl.clock.Starts), {type(state).__name__} has none"
        )
    return state


def first_fault(starts: Starts, code: Array | int, **where: Array) -> Starts:
    """Records a fault unless there was an earlier one; `FaultCode.NONE` records nothing.

    Args:
        starts: record of the started runs.
        code: int32, a `FaultCode`.
        **where: fields of `Fault`.
    """
    none = starts.fault._replace(code=jnp.asarray(code, jnp.int32))
    now = none._replace(**{name: jnp.asarray(value, getattr(none, name).dtype) for name, value in where.items()})
    return starts._replace(
        fault=jax.tree.map(lambda old, new: jnp.where(starts.fault.code == 0, new, old), starts.fault, now)
    )


def valid(duration: Array) -> Array:
    """Returns True for a valid duration, neither negative nor NaN. If it is infinite, the run never arrives."""
    return duration >= 0


def invalid_code(duration: Array) -> Array:
    """Returns the fault of an invalid duration; NaN means that the recording is exhausted."""
    return jnp.where(jnp.isnan(duration), FaultCode.DURATIONS_END, FaultCode.INVALID_DURATION).astype(jnp.int32)


def duration_fault(starts: Starts, runs: Runs, duration: Array, wrong: Array, round: Array) -> Starts:
    """Records a fault for the first of several runs [A] with a duration that is marked wrong.

    Args:
        starts: record of the started runs.
        runs: the runs.
        duration: float64 [A], their durations in seconds.
        wrong: bool [A], True if the duration is negative or NaN.
        round: int32, index of the server step.
    """
    first = jax.lax.argmax(wrong, 0, jnp.int32)  # code traced without x64 cannot lower an index of 64 bits
    code = jnp.where(jnp.any(wrong), invalid_code(duration[first]), FaultCode.NONE)
    which = {"run_id": runs.run_id[first], "client": runs.client[first], "run": runs.run[first]}
    return first_fault(starts, code, round=round, **which)


def start_runs(
    durations: Duration,
    state: S,
    begins: Array,
    client: Array,
    run: Array,
    workload: Workload,
    *,
    exclusive: bool = False,
) -> tuple[S, Runs]:
    """Starts several runs from the newest version at one instant, in the order of the entries.

    Args:
        durations: duration of a run.
        state: state of the clock with the time `now`, and `version`, which is also the index of the server step.
        begins: bool [A], True for entries that start.
        client, run: int32 [A], clients, and indices of the runs among the client's runs.
        workload: local steps of the runs.
        exclusive: True if no other run is in flight until these have arrived. Only then may they share a link.

    Returns:
        State with the new record `starts`, and the runs [A]. An invalid duration counts as 1 s, so that time advances.
    """
    starts = state.starts
    now = state.now
    version = state.version
    shared = shared_link(durations) if exclusive else None
    durations = durations.without_shared() if exclusive else durations
    local_steps = jax.vmap(workload.local_steps)(client, run).astype(jnp.int32)

    def draw(client: Array, run: Array, local_steps: Array, longest: Array) -> Draw:
        return draw_of(durations, starts.prepared, Run(client, run, local_steps, longest, now))

    before = jnp.full(client.shape, starts.longest)
    work = jax.vmap(draw)(client, run, local_steps, before).work
    earlier = jnp.concatenate([before[:1], jax.lax.cummax(jnp.where(begins & ~jnp.isinf(work), work, 0))[:-1]])
    drawn = jax.vmap(draw)(client, run, local_steps, jnp.maximum(before, earlier))
    duration = drawn.work + drawn.hang
    fine = valid(duration)
    run_id = starts.count + jnp.cumsum(begins, dtype=jnp.int32) - 1
    lasting = jnp.where(fine, duration, 1)
    arrived = now + (lasting if shared is None else round_of_transfers(shared, begins, lasting))
    runs = Runs(
        client, run, run_id, jnp.full(client.shape, version, jnp.int32), local_steps,
        jnp.full(client.shape, now), arrived,
    )  # fmt: skip
    starts = duration_fault(starts, runs, duration, begins & ~fine, version)
    starts = starts._replace(
        count=starts.count + jnp.sum(begins, dtype=jnp.int32),
        longest=jnp.maximum(starts.longest, jnp.max(jnp.where(begins & fine & ~jnp.isinf(work), work, 0))),
    )
    return state._replace(starts=starts), runs


def start_run(
    durations: Duration,
    starts: Starts,
    run: Run,
    version: Array,
    *,
    begins: Array | bool = True,
    code: Array | int = FaultCode.NONE,
    round: Array | None = None,
    reference: Array | None = None,
) -> tuple[Starts, Runs, Array]:
    """Starts one run if `begins`.

    Args:
        durations: duration of a run.
        starts: record of the started runs.
        run: the run; `now` is its start.
        version, reference: versions that it starts from, and that its update is relative to.
        begins: False if the call is masked.
        code: a fault that is known already.
        round: index of the server step; `None` is `version`.

    Returns:
        The record, the run, and its duration. An invalid duration counts as 1 s, so that time advances.
    """
    drawn = draw_of(durations, starts.prepared, run)
    duration = drawn.work + drawn.hang
    fine = valid(duration)
    code = jnp.asarray(code, jnp.int32)
    code = jnp.where(begins, jnp.where((code > 0) | fine, code, invalid_code(duration)), FaultCode.NONE)
    round = version if round is None else round
    starts = first_fault(starts, code, run_id=starts.count, client=run.client, run=run.run, round=round)
    duration = jnp.where(fine, duration, 1)
    now = jnp.asarray(run.now)
    begun = Runs(run.client, run.run, starts.count, version, run.local_steps, now, now + duration, reference)
    works = begins & fine & ~jnp.isinf(drawn.work)
    longest = jnp.where(works, jnp.maximum(starts.longest, drawn.work), starts.longest)
    return starts._replace(count=starts.count + begins, longest=longest), begun, duration


def is_lost(odds: Number, key: Key, runs: Runs) -> Array:
    """Draws the failed uploads, bool with the shape of the runs.

    Args:
        odds: probability that an upload fails, or [N] per client.
        key: key of the schedule.
        runs: the runs, whose clients and indices determine the draws.
    """
    drawn = uniform(per_run(purpose_key(key, Purpose.LOST), runs.client, runs.run), jnp.float64)
    odds = jnp.asarray(odds)
    return drawn < (odds[runs.client] if odds.ndim else odds)


def blank_runs(size: int) -> Runs:
    """Returns placeholder runs of the clients 0..size - 1, which never arrive."""
    clients = jnp.arange(size, dtype=jnp.int32)
    zero = jnp.zeros_like(clients)
    never = jnp.full(size, jnp.inf, jnp.float64)
    return Runs(clients, zero, zero, zero, zero, jnp.zeros_like(never), never)


def recorded_or(recorded: Recording, index: Array, draw: Callable[[], Array]) -> tuple[Array, Array]:
    """Returns row `index` of a recording, or a draw if it is `None`, and True if the recording is exhausted."""
    if recorded is None:
        return draw(), jnp.bool_(False)
    table = jnp.asarray(recorded).astype(jax.eval_shape(draw).dtype)
    return table[jnp.minimum(index, table.shape[0] - 1)], index >= table.shape[0]


def replayed(
    state: S, recorded: Recording, round: Array, code: FaultCode, draw: Callable[[], Array]
) -> tuple[S, Array]:
    """Returns the entry of a recording for one round or tick, or a draw; records a fault if the recording is exhausted.

    Args:
        state: state of the clock.
        recorded: the recording, or `None`.
        round: int32, index of the entry.
        code: fault of an exhausted recording.
        draw: draws the entry if there is no recording.
    """
    row, missing = recorded_or(recorded, round, draw)
    starts = first_fault(state.starts, jnp.where(missing, code, FaultCode.NONE), round=round)
    return state._replace(starts=starts), row


def drawn_clients(
    state: S,
    recorded: Recording,
    size: int,
    num_clients: int,
    *,
    replacement: bool = False,
    weights: Array | None = None,
) -> tuple[S, Array]:
    """Draws the clients of the next server step, int32 [size] in draw order, or returns the recorded ones.

    Draws are uniform or weighted: from all clients with replacement, or from the clients not yet drawn without it.

    Args:
        state: state of the clock with the `key` of the schedule, and `version`, the index of the server step.
        recorded: recorded sets, or `None`.
        size: number of clients to draw.
        num_clients: N.
        replacement: draw with replacement.
        weights: float64 [N], weights of the clients; `None` for uniform draws.
    """
    order = jnp.arange(size, dtype=jnp.int32)

    def draw() -> Array:
        key = purpose_key(state.key, Purpose.START)
        draws = state.version * size + order
        if weights is not None:

            def weighted(tree: Array, draw: Array) -> tuple[Array, Array]:
                client = selection.weighted_client(key, draw, tree, num_clients)
                return trees.weigh(tree, num_clients, client, 0.0, jnp.bool_(not replacement)), client

            return jax.lax.scan(weighted, trees.weights_of(weights), draws)[1]
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
    """Returns drawn clients in client order, a mask of each client's first entry, and the clients' multiplicities.

    It compares all pairs, since a clock with `Clock.event_by_event` must not sort.
    """
    order = jnp.arange(drawn.size)
    others = drawn[:, None]
    place = jnp.sum((drawn < others) | ((drawn == others) & (order < order[:, None])), axis=1)
    client = jnp.sum(jnp.where(place == order[:, None], drawn, 0), axis=1, dtype=jnp.int32)
    first = jnp.concatenate([jnp.ones(1, bool), client[1:] != client[:-1]])
    return client, first, jnp.sum(client == client[:, None], axis=1, dtype=jnp.int32)
