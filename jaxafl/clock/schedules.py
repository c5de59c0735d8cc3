"""Computation of schedules ahead of training, on the CPU, in float64 time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.clock.checks import check_clock
from jaxafl.clock.contract import Clock, Delivery, Fault, FaultCode, RunCounts, Runs, ServerStep, Workload
from jaxafl.clock.patience import call_interruptibly
from jaxafl.clock.ragged import Ragged, columns_of, per_step, without_step
from jaxafl.clock.rules import Earlier, check_ends, check_steps, held_by
from jaxafl.clock.starts import first_state
from jaxafl.clock.tables import Schedule, Source, replaced
from jaxafl.clock.transfers import with_arrivals
from jaxafl.clock.versions import next_version, rows_of_versions
from jaxafl.device import as_arrays, compiled, float64_on_cpu, host_bytes, on_device
from jaxafl.device.buffers import allocate, shared_size, write
from jaxafl.device.keys import Key, seed_key
from jaxafl.options import UserError, check_whole

UNBOUNDED = 2**24
"""Server steps of a run that a limit of `until` is to end; no memory is reserved for them."""
_ROWS = 4096  # of arrivals, per call of the program
_ENTRY_BYTES = 49  # bytes per arrival: eight int32, two float64 and a bool


def schedule(
    clock: Clock, num_clients: int, local_steps: Any, server_steps: int, seed: int = 0, *, check: bool = True
) -> Schedule:
    """Runs a clock for `server_steps` steps, without training.

    Args:
        clock: the clock; its options are checked first.
        num_clients: N.
        local_steps: local steps per run: a number, [N] per client or [N, R] per client and run.
        server_steps: T.
        seed: seed of the schedule.
        check: raise for an exhausted recording and for invalid server steps.

    Raises:
        ValueError: options are invalid; a recording is exhausted or names a busy client; or a user-defined clock
            returns an invalid server step (time runs backwards, a version does not exist yet ...).
        MemoryError: the schedule does not fit into the memory of the host.
    """
    return Clockwork(clock, num_clients, local_steps, server_steps, seed, check).complete(int(server_steps))


class Clockwork:
    """A clock that is advanced ahead of training, any number of server steps at a time."""

    def __init__(
        self, clock: Clock, num_clients: int, local_steps: Any, server_steps: int, seed: int, check: bool = True
    ) -> None:
        """Checks the options and computes the first state; see `schedule` for the arguments and the errors."""
        check_whole("schedule", "server_steps", server_steps)
        check_clock(clock, num_clients)
        if server_steps != UNBOUNDED:
            check_length(clock, num_clients, server_steps)
        self.clock = clock
        self.num_clients = num_clients
        self.seed = seed
        self.check = check
        # schedules of shipped clocks are not checked at run time, but by the tests
        self.user_defined = not type(clock).__module__.startswith("jaxafl.")
        self.times = np.zeros(0)
        self.earlier = Earlier()
        with float64_on_cpu():
            self.workload = Workload(on_device(np.asarray(local_steps, np.int32)), num_clients)
            self.numbers = as_arrays(clock, jnp.float64)
            self.state = self._begun()

    def advance(self, count: int) -> Schedule:
        """Computes the schedule of the next `count` server steps."""
        several = self.clock.entries(self.num_clients) < self.clock.capacity(self.num_clients)
        if several and not self.user_defined:
            return self._advance_in_rows(count)
        with float64_on_cpu():
            arguments = (self.numbers, self.workload, self.state, on_device(np.int32(count)))
            whole = self.clock.event_by_event and not several  # what gathers rows of one step is not small
            program, _ = compiled(_scan, (shared_size(count),), arguments, donate=(2,), whole=whole)
            if self.user_defined:
                self.state, *outputs = self._interruptible(program, arguments, count)
            else:
                self.state, *outputs = program(*arguments)
            steps, counts, fault, held = jax.device_get(outputs)
            steps, counts = jax.tree.map(lambda column: column[:count], (steps, counts))
        before = self.times
        start = len(before)
        self.fault = fault
        if self.check:
            raise_fault(fault)
            check_ends(self.clock, steps, start + np.arange(count))
        if self.check and self.user_defined:
            check_steps(self.clock, self.num_clients, steps, counts.started, start, self.earlier)
        self.times = np.concatenate([before, steps.time])
        found = schedule_of(self.clock, self.num_clients, steps, counts, before)
        return replaced(found, held=_listed(held), start=start)

    def _advance_in_rows(self, count: int) -> Schedule:
        """Computes the schedule of the next `count` server steps; its memory does not grow with the capacity."""
        before, start, found, done = self.times, len(self.times), [], 0
        with float64_on_cpu():
            while done < count:
                arguments = (self.numbers, self.workload, self.state, on_device(np.int32(count - done)))
                program, _ = compiled(
                    rows_of_versions, (_ROWS,), arguments, donate=(2,), whole=self.clock.event_by_event
                )
                self.state, *outputs, held = program(*arguments)
                steps, counts, number, fault = jax.device_get(outputs)
                self.fault = fault
                if self.check or fault.code:
                    raise_fault(fault)
                found.append(jax.tree.map(lambda column, end=number: column[:end], (steps, counts)))
                done += int(steps.advances[:number].sum())
        steps, counts = jax.tree.map(lambda *parts: np.concatenate(parts), *found)
        ends, mask = steps.advances, steps.mask
        times, version = steps.time[ends], np.cumsum(ends) - ends
        if self.check:
            check_ends(self.clock, steps, start + version)
        taken = np.bincount(version, mask.sum(axis=1), count).astype(np.int64)
        flat = jax.tree.map(lambda column: column[mask], without_step(steps))
        flat = flat._replace(**{name: value[ends] for name, value in per_step(steps).items()})
        self.times = np.concatenate([before, times])
        counts = jax.tree.map(lambda column: column[ends], counts)
        schedule = schedule_of(self.clock, self.num_clients, flat, counts, before, taken)
        return replaced(schedule, held=_listed(held), start=start)

    def complete(self, count: int) -> Schedule:
        """Computes a schedule of `count` server steps with the runs in flight after the last."""
        found = self.advance(count)
        nodes = jax.tree.leaves(with_arrivals(self.state), is_leaf=lambda node: isinstance(node, Runs))
        runs = tuple(map(self._delayed, jax.device_get([node for node in nodes if isinstance(node, Runs)])))
        return replaced(found, source=Source(self.clock, self.seed, runs, self.workload.steps))

    def _delayed(self, runs: Runs) -> Runs:
        """Adds the pauses of the server steps so far to the times of runs; those in flight arrive after all of them."""
        pause, steps = self.clock.pause, len(self.times)
        begun = np.searchsorted(self.times, runs.started, "right")
        return runs._replace(started=runs.started + pause * begun, arrived=runs.arrived + pause * steps)

    def _begun(self) -> Any:
        """Computes the state before the first server step."""
        arguments = (self.numbers, seed_key(self.seed))
        return compiled(_begin, (self.num_clients,), arguments)[0](*arguments)

    def _interruptible(self, program: Any, arguments: tuple[Any, ...], count: int) -> Any:
        """Executes the program of a user-defined clock, whose loops may never end."""
        numbers, workload, *_ = arguments
        compute = float64_on_cpu()(lambda: program(*arguments))

        def begin() -> Any:
            state = self._begun()
            return state, one_step(numbers, workload, state)

        steps = range(len(self.times) + count)
        return call_interruptibly(compute, begin, self.clock, self.num_clients, self.seed, steps)


def one_step(clock: Clock, workload: Workload, state: Any) -> Callable[[Any], Any]:
    """Returns a function that computes one server step: state -> (state, server steps [1, ...], ...).

    The numbers of `clock` must be float64.
    """
    with float64_on_cpu():
        one = on_device(np.int32(1))
        program, _ = compiled(_scan, (1,), (clock, workload, state, one))
    return float64_on_cpu()(lambda state: program(clock, workload, state, one))


def schedule_of(
    clock: Clock,
    num_clients: int,
    steps: ServerStep,
    counts: RunCounts,
    times: np.ndarray | None = None,
    taken: np.ndarray | None = None,
) -> Schedule:
    """Builds a schedule from server steps on the host.

    Every server step delays all later times by `Clock.pause`, in which no client computes. A run that waits in a
    client's buffer may arrive before the step that consumes it. It is delayed only by the steps before its arrival.

    Args:
        clock: the clock.
        num_clients: N.
        steps: complete server steps [T, ...] (`ServerStep.complete`).
        counts: int32 [T], numbers of runs up to each server step.
        times: float64, times of all earlier server steps, without pauses.
        taken: int [T], arrivals of each server step, if the arrays of `steps` are [E] instead of [T, A].
    """
    runs = steps.runs
    pause = clock.pause
    reference = np.asarray(runs.reference)
    times = np.concatenate([() if times is None else times, steps.time])
    number = np.arange(len(times) - len(steps.time), len(times))
    step = number[:, None] if taken is None else np.repeat(number, taken)
    # a model may be older than the newest one at the start; else the reference is exact, in ties of time too
    side: Any = "right" if clock.delivers & (Delivery.AGED | Delivery.HELD) else "left"
    begun = np.clip(np.searchsorted(times, runs.started, side), reference, step)
    before = np.clip(np.searchsorted(times, runs.arrived), begun, step)
    runs = runs._replace(started=runs.started + pause * begun, arrived=runs.arrived + pause * before)
    columns = jax.tree.map(np.asarray, columns_of(steps._replace(runs=runs)))
    if taken is not None:
        width = clock.capacity(num_clients)
        columns = {name: Ragged(column, taken, width) for name, column in columns.items()}
    return Schedule(
        protocol=clock.name,
        num_clients=num_clients,
        in_flight=clock.in_flight(num_clients),
        ring_slots=clock.ring_slots(num_clients),
        time=np.asarray(steps.time + pause * (number + 1)),
        runs_begun=counts.started,
        runs_refused=counts.refused,
        runs_stopped=counts.stopped,
        runs_lost=counts.lost,
        starts_skipped=counts.skipped,
        kinds=clock.kinds,
        **columns,
    )


def recharged(original: Schedule, clock: Clock, planned: np.ndarray, executed: np.ndarray, seed: int) -> Schedule:
    """Computes the schedule again with the times of the executed local steps; the arrivals stay the same.

    Args:
        original: schedule of the planned local steps.
        clock: clock of the schedule.
        planned: int [] or [N], local steps of runs that did not arrive.
        executed: int [T, A], local steps of the arrivals.
        seed: seed of the schedule.
    """
    mask = original.mask
    most = int(original.run[mask].max(initial=0)) + 1
    table = np.array(np.broadcast_to(np.reshape(planned, (-1, 1)), (original.num_clients, most)))
    table[original.client[mask], original.run[mask]] = executed[mask]
    return schedule(clock, original.num_clients, table, original.server_steps, seed)


def raise_fault(fault: Fault) -> None:
    """Raises `ValueError` if a schedule has a fault."""
    if int(fault.code):
        where = {name: np.asarray(value).item() for name, value in fault._asdict().items() if name != "code"}
        raise UserError(list(FaultCode)[int(fault.code)].message.format(**where))


def check_length(clock: Clock, num_clients: int, server_steps: int, records: int = 0) -> None:
    """Raises `MemoryError` if the schedule and the records of a run do not fit into the memory of the host.

    Args:
        clock, num_clients, server_steps: clock, N and T of the run.
        records: bytes recorded per server step in addition to the schedule.
    """
    entries = clock.capacity(num_clients) if records else clock.entries(num_clients)
    entry = 12 + _ENTRY_BYTES * entries
    needed = 2 * server_steps * (entry + records)  # a program's output and its copy, or pieces and their concatenation
    available = host_bytes()
    if available is not None and needed > available:
        what = "a schedule" if not records else "what a run records"
        raise MemoryError(
            f"{what} of {server_steps:,} server steps needs {needed / 2**30:.0f} GiB, and there are "
            f"{available / 2**30:.0f} GiB; ask for fewer server steps, or end the run by until={{...}}"
        )


def _listed(held: list[Any]) -> tuple[int, ...]:
    """Returns the versions that a clock holds."""
    return tuple(np.unique(np.concatenate([np.zeros(0, np.int32), *map(np.ravel, held)])).tolist())


def _begin(num_clients: int, clock: Clock, key: Key) -> Any:
    return first_state(clock, key, num_clients)


def _scan(
    size: int, clock: Clock, workload: Workload, state: Any, server_steps: jax.Array
) -> tuple[Any, ServerStep, RunCounts, Fault, list[jax.Array]]:
    """Computes `server_steps` <= `size` server steps; other rows of the result are zeros."""

    def one(state: Any) -> tuple[Any, tuple[ServerStep, RunCounts]]:
        state, step = next_version(clock, state, workload)
        return state, (step, state.starts.counts)

    def advance(index: jax.Array, carry: Any) -> Any:
        state, row = one(carry[0])
        return state, write(carry[1], index, row)

    rows = allocate(jax.eval_shape(one, state)[1], size)
    state, (steps, counts) = jax.lax.fori_loop(0, server_steps, advance, (state, rows))
    held = held_by(clock, state)
    return state, steps, counts, state.starts.fault, held  # XLA updates the donated state in place
