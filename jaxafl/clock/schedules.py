"""The clock alone: a whole schedule computed ahead of the training, on the CPU, in float64 time."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.clock.contract import Clock, Fault, FaultCode, ServerStep, Workload, first_state
from jaxafl.clock.patience import called
from jaxafl.clock.rules import Earlier, check_ends, check_next, check_steps, held_by
from jaxafl.clock.tables import Schedule
from jaxafl.device import as_arrays, compiled, cpu, host_bytes, on_device
from jaxafl.device.keys import Key, seed_key
from jaxafl.device.switches import check_switches
from jaxafl.options import UserError, check_options, check_whole

UNBOUNDED = 2**24
"""Server steps after which a run ends that only a limit was to end; no memory is asked for them."""
_ENTRY_BYTES = 49  # of an arrival: eight int32, two float64 and a bool


def schedule(
    clock: Clock, num_clients: int, local_steps: Any, server_steps: int, seed: int = 0, *, check: bool = True
) -> Schedule:
    """Runs a clock for `server_steps` steps, without any training.

    Args:
        clock: the clock; its options are checked first.
        num_clients: N.
        local_steps: local steps per run: a number, [N] per client or [N, R] per client and run.
        server_steps: T.
        seed: seed of the schedule.
        check: raise for a recorded trace that runs out, and for what no schedule can hold.

    Raises:
        ValueError: the options cannot work, a recorded trace runs out or names a busy client (it is said at which
            start), or a clock of one's own makes a server step that cannot happen (time that runs backwards, a version
            that is not made yet ...).
        MemoryError: the schedule is longer than the memory of the host.
    """
    return Clockwork(clock, num_clients, local_steps, server_steps, seed, check).advance(int(server_steps))


class Clockwork:
    """A clock that is advanced ahead of the training, as many server steps at a time as are asked for."""

    def __init__(
        self, clock: Clock, num_clients: int, local_steps: Any, server_steps: int, seed: int, check: bool = True
    ) -> None:
        """
        Args:
            clock, num_clients, local_steps, server_steps, seed, check: as of `schedule`, with what it raises.
        """
        check_switches()
        check_whole("schedule", "server_steps", server_steps)
        check_options(clock, num_clients)
        clock.check(num_clients)
        if server_steps != UNBOUNDED:
            check_length(clock, num_clients, server_steps)
        self.clock, self.num_clients, self.seed, self.check = clock, num_clients, seed, check
        self.own = not type(clock).__module__.startswith("jaxafl.")  # tests hold the shipped ones to the same rules
        self.times, self.earlier = np.zeros(0), Earlier()
        with self._computing():
            self.workload = Workload(on_device(np.asarray(local_steps, np.int32)), num_clients)
            self.numbers = as_arrays(clock, jnp.float64)
            self.state = self._begun()

    def advance(self, count: int) -> Schedule:
        """The schedule of the next `count` server steps."""
        with self._computing():
            arguments = (self.numbers, self.workload, self.state)
            program, _ = compiled(_scan, (count,), arguments, donate=(2,), whole=self.clock.event_by_event)
            self.state, *made = self._patiently(program, arguments, count) if self.own else program(*arguments)
            steps, runs_begun, fault, held = jax.device_get(made)
        start, before, self.fault = len(self.times), self.times, fault
        if self.check:
            raise_fault(fault)
            check_ends(self.clock, steps, start)
        if self.check and self.own:
            check_steps(self.clock, self.num_clients, steps, runs_begun, start, self.earlier)
        self.times = np.concatenate([before, steps.time])
        versions = np.unique(np.concatenate([np.zeros(0, np.int32), *map(np.ravel, held)])).tolist()
        found = schedule_of(self.clock, self.num_clients, steps, runs_begun, before)
        return dataclasses.replace(found, held=tuple(versions), start=start)

    def _begun(self) -> Any:
        """The state before the first server step."""
        arguments = (self.numbers, seed_key(self.seed))
        return compiled(_begin, (self.num_clients,), arguments)[0](*arguments)

    def _patiently(self, program: Any, arguments: tuple[Any, ...], count: int) -> Any:
        """The program's result, of a clock of one's own, whose loops may have no end."""
        numbers, workload, _ = arguments
        whole = self._computing()(lambda: program(*arguments))

        def begin() -> Any:
            state = self._begun()
            return state, self._computing()(one_step(numbers, workload, state))

        return called(whole, begin, self.clock, self.num_clients, self.seed, range(len(self.times) + count))

    @contextlib.contextmanager
    def _computing(self) -> Iterator[None]:
        with jax.enable_x64(True), jax.default_device(cpu()):
            yield


def one_step(clock: Clock, workload: Workload, state: Any) -> Callable[[Any], Any]:
    """Returns a function that takes one server step: state -> (state, server steps [1, ...], ...); its numbers are
    float64, with 64-bit types enabled."""
    program, _ = compiled(_scan, (1,), (clock, workload, state))
    return functools.partial(program, clock, workload)


def schedule_of(
    clock: Clock, num_clients: int, steps: ServerStep, runs_begun: np.ndarray, times: np.ndarray | None = None
) -> Schedule:
    """The schedule of a clock's server steps [T, ...], and of the runs started up to each, [T], on the host.

    Where every server step takes time in which no client computes (`Clock.pause`), everything after it is that much
    later. A run may arrive before the step that consumes it (it waits in a client's buffer): it is late by the steps
    that were taken before it arrived.

    Args:
        clock: the clock.
        num_clients: N.
        steps: its server steps, every field there (`ServerStep.complete`) and [T, ...].
        runs_begun: int32 [T].
        times: float64, of the server steps before the first of them, without pauses.
    """
    runs, pause, reference = steps.runs, clock.pause, np.asarray(steps.runs.reference)
    times = np.concatenate([() if times is None else times, steps.time])
    taken = np.arange(len(times) - len(steps.time), len(times))
    before = np.clip(np.searchsorted(times, runs.arrived), reference, taken[:, None])
    columns = runs._replace(started=runs.started + pause * reference, arrived=runs.arrived + pause * before)
    return Schedule(
        protocol=clock.name,
        num_clients=num_clients,
        in_flight=clock.in_flight(num_clients),
        ring_slots=clock.ring_slots(num_clients),
        time=np.asarray(steps.time + pause * (taken + 1)),
        mask=np.asarray(steps.mask),
        multiplicity=np.asarray(steps.multiplicity),
        kind=np.asarray(steps.kind),
        runs_begun=runs_begun,
        kinds=clock.kinds,
        **columns._asdict(),
    )


def recharged(made: Schedule, clock: Clock, planned: np.ndarray, executed: np.ndarray, seed: int) -> Schedule:
    """The schedule with the time of the local steps that were executed; who arrives stays the same.

    Args:
        made: the schedule of the planned local steps.
        clock: its clock.
        planned: int [] or [N], local steps of the runs that did not arrive.
        executed: int [T, A], local steps of the arrivals.
        seed: seed of the schedule.
    """
    mask = made.mask
    most = int(made.run[mask].max(initial=0)) + 1
    table = np.array(np.broadcast_to(np.reshape(planned, (-1, 1)), (made.num_clients, most)))
    table[made.client[mask], made.run[mask]] = executed[mask]
    return schedule(clock, made.num_clients, table, made.server_steps, seed)


def raise_fault(fault: Fault) -> None:
    """Raises `ValueError` when a schedule went wrong."""
    if int(fault.code):
        where = {name: np.asarray(value).item() for name, value in fault._asdict().items() if name != "code"}
        raise UserError(list(FaultCode)[int(fault.code)].message.format(**where))


def check_length(clock: Clock, num_clients: int, server_steps: int, records: int = 0) -> None:
    """Raises `MemoryError` for a run whose schedule, and what it records, are longer than the memory of the host.

    Args:
        clock, num_clients, server_steps: of the run.
        records: bytes that a server step leaves besides.
    """
    entry = 12 + _ENTRY_BYTES * clock.capacity(num_clients)
    needed = 2 * server_steps * (entry + records)  # in a program and out of it, or in pieces and as one
    available = host_bytes()
    if available is not None and needed > available:
        what = "a schedule" if not records else "what a run records"
        raise MemoryError(
            f"{what} of {server_steps:,} server steps needs {needed / 2**30:.0f} GiB, and there are "
            f"{available / 2**30:.0f} GiB; ask for fewer server steps, or end the run by until={{...}}"
        )


def _begin(num_clients: int, clock: Clock, key: Key) -> Any:
    return first_state(clock, key, num_clients)


def _scan(
    server_steps: int, clock: Clock, workload: Workload, state: Any
) -> tuple[Any, ServerStep, jax.Array, Fault, list[jax.Array]]:

    def one(state: Any, _: None) -> tuple[Any, tuple[ServerStep, jax.Array]]:
        made = clock.next(state, workload)
        check_next(clock, workload.num_clients, state, made)
        state, step = made
        return state, (step.complete(), state.starts.count)

    state, (steps, runs_begun) = jax.lax.scan(one, state, length=server_steps)
    held = held_by(clock, state)
    return state, steps, runs_begun, state.starts.fault, held  # the state, for XLA to write it in place
