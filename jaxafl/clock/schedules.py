"""The clock alone: a whole schedule computed ahead of the training, on the CPU, in float64 time."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.clock.contract import Clock, Fault, FaultCode, ServerStep, Workload, first_state
from jaxafl.clock.patience import called
from jaxafl.clock.rules import check_ends, check_next, check_steps
from jaxafl.device import as_arrays, compiled, cpu, host_bytes, on_device
from jaxafl.device.keys import Key, seed_key
from jaxafl.options import Summarised, UserError, check_options, check_whole

_ENTRY_BYTES = 49  # of an arrival: eight int32, two float64 and a bool


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Schedule(Summarised):
    """Who arrived at every server step, when, and how stale; T server steps of at most A arrivals each.

    Attributes:
        protocol: the clock's name.
        num_clients: N.
        in_flight: the most runs under way at once.
        ring_slots: versions of the global model that must be kept.
        time: float64 [T], simulated seconds at which server step t was taken.
        mask: bool [T, A], whether the entry is an arrival; the other arrays [T, A] mean nothing where it is false.
        client, run, run_id: int32 [T, A], who arrived; the index of the run among the client's; among all runs.
        version: int32 [T, A], the version that the run trained from.
        reference: int32 [T, A], the version that its update is measured against.
        local_steps: int32 [T, A].
        started, arrived: float64 [T, A], simulated seconds.
        multiplicity: int32 [T, A], how many times an update counts.
        kind: int32 [T, A], what the protocol says of the arrival: an index into `kinds`.
        runs_begun: int32 [T], runs started up to each server step.
        kinds: what the kinds mean, where there are several.
        held: versions that server steps after the last of these may still read, see `Clock.held`.
    """

    protocol: str
    num_clients: int
    in_flight: int
    ring_slots: int
    time: np.ndarray
    mask: np.ndarray
    client: np.ndarray
    run: np.ndarray
    run_id: np.ndarray
    version: np.ndarray
    reference: np.ndarray
    local_steps: np.ndarray
    started: np.ndarray
    arrived: np.ndarray
    multiplicity: np.ndarray
    kind: np.ndarray
    runs_begun: np.ndarray
    kinds: tuple[str, ...] = ()
    held: tuple[int, ...] = ()

    def summary(self) -> dict[str, Any]:
        """The protocol, numbers of clients, server steps and arrivals, and the simulated time."""
        return {
            "protocol": self.protocol,
            "clients": self.num_clients,
            "server_steps": self.server_steps,
            "arrivals": int(self.mask.sum()),
            "time": f"{self.time[-1] if self.server_steps else 0:,.6g} s",
        }

    @property
    def runs_started(self) -> int:
        """Runs started up to the last server step; those that no step consumed are never trained."""
        return int(self.runs_begun[-1]) if self.server_steps else 0

    @property
    def server_steps(self) -> int:
        """T."""
        return len(self.time)

    @functools.cached_property
    def staleness(self) -> np.ndarray:
        """int32 [T, A]: τ = t - s, the versions made between an update's reference and the step that applies it; -1 for
        no arrival."""
        steps = np.arange(self.server_steps, dtype=np.int32)[:, None]
        return np.where(self.mask, steps - self.reference, -1)

    def statistics(self) -> dict[str, float]:
        """Figures of the schedule: staleness over arrivals, τ_max over steps, simulated time, arrivals per client."""
        arrivals = self.staleness[self.mask]
        worst = self.staleness.max(axis=1)[self.mask.any(axis=1)]
        per_client = np.bincount(self.client[self.mask], minlength=self.num_clients)
        quantities = {
            "server_steps": self.server_steps,
            "arrivals": len(arrivals),
            "time": self.time[-1] if self.server_steps else 0.0,
            "staleness_mean": arrivals.mean() if len(arrivals) else np.nan,
            "staleness_median": np.median(arrivals) if len(arrivals) else np.nan,
            "staleness_max": arrivals.max() if len(arrivals) else np.nan,
            "max_staleness_per_step_mean": worst.mean() if len(worst) else np.nan,
            "max_staleness_per_step_median": np.median(worst) if len(worst) else np.nan,
            "clients_heard": np.count_nonzero(per_client),
            "arrivals_per_client_min": per_client.min(),
            "arrivals_per_client_max": per_client.max(),
        }
        return {name: float(value) for name, value in quantities.items()}


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
    check_whole("schedule", "server_steps", server_steps)
    check_options(clock, num_clients)
    clock.check(num_clients)
    _check_length(clock, num_clients, server_steps)
    with jax.enable_x64(True), jax.default_device(cpu()):
        workload = Workload(on_device(np.asarray(local_steps, np.int32)), num_clients)
        clock_arrays, key = as_arrays(clock, jnp.float64), seed_key(seed)
        begin, _ = compiled(_begin, (num_clients,), (clock_arrays, key))
        arguments = (clock_arrays, workload, begin(clock_arrays, key))
        program, _ = compiled(_scan, (int(server_steps),), arguments, donate=(2,), whole=clock.event_by_event)
        own = not type(clock).__module__.startswith("jaxafl.")
        made = _patiently(program, arguments, clock, num_clients, key, seed) if own else program(*arguments)
        steps, runs_begun, fault, held = jax.device_get(made[1:])
    if check:
        raise_fault(fault)
        check_ends(clock, steps)
    if check and own:  # tests hold the shipped ones to the same rules
        check_steps(clock, num_clients, steps, runs_begun)
    versions = np.unique(np.concatenate([np.zeros(0, np.int32), *map(np.ravel, held)])).tolist()
    return dataclasses.replace(schedule_of(clock, num_clients, steps, runs_begun), held=tuple(versions))


def schedule_of(clock: Clock, num_clients: int, steps: ServerStep, runs_begun: np.ndarray) -> Schedule:
    """The schedule of a clock's server steps [T, ...], and of the runs started up to each, [T], on the host.

    Where every server step takes time in which no client computes (`Clock.pause`), everything after it is that much
    later. A run may arrive before the step that consumes it (it waits in a client's buffer): it is late by the steps
    that were taken before it arrived.

    Args:
        clock: the clock.
        num_clients: N.
        steps: its server steps, every field there (`ServerStep.complete`) and [T, ...].
        runs_begun: int32 [T].
    """
    runs, pause, reference = steps.runs, clock.pause, np.asarray(steps.runs.reference)
    taken = np.arange(len(steps.time))
    before = np.clip(np.searchsorted(steps.time, runs.arrived), reference, taken[:, None])
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


def first_steps(schedule: Schedule, count: int) -> Schedule:
    """The first `count` server steps of a schedule."""
    values = {field.name: getattr(schedule, field.name) for field in dataclasses.fields(schedule)}
    arrays: dict[str, Any] = {name: value[:count] for name, value in values.items() if isinstance(value, np.ndarray)}
    return dataclasses.replace(schedule, **arrays)


def raise_fault(fault: Fault) -> None:
    """Raises `ValueError` when a schedule went wrong."""
    if int(fault.code):
        where = {name: np.asarray(value).item() for name, value in fault._asdict().items() if name != "code"}
        raise UserError(list(FaultCode)[int(fault.code)].message.format(**where))


def _check_length(clock: Clock, num_clients: int, server_steps: int) -> None:
    """Raises `MemoryError` for a schedule that is longer than the memory of the host."""
    needed = 2 * server_steps * (12 + _ENTRY_BYTES * clock.capacity(num_clients))  # in the program and out of it
    available = host_bytes()
    if available is not None and needed > available:
        raise MemoryError(
            f"a schedule of {server_steps:,} server steps needs {needed / 2**30:.0f} GiB, and there are "
            f"{available / 2**30:.0f} GiB"
        )


def _patiently(program: Any, arguments: Any, clock: Clock, num_clients: int, key: Key, seed: int) -> Any:
    """The program's result, of a clock of one's own, whose loops may have no end."""
    numbers, workload, _ = arguments

    def begin() -> Any:
        state = compiled(_begin, (num_clients,), (numbers, key))[0](numbers, key)
        one, _ = compiled(_scan, (1,), (numbers, workload, state))
        return state, functools.partial(one, numbers, workload)

    return called(lambda: program(*arguments), begin, clock, num_clients, seed)


def _begin(num_clients: int, clock: Clock, key: Key) -> Any:
    return first_state(clock, key, num_clients)


def _scan(
    server_steps: int, clock: Clock, workload: Workload, state: Any
) -> tuple[Any, ServerStep, jax.Array, Fault, list[jax.Array]]:

    def one(state: Any, _: None) -> tuple[Any, tuple[ServerStep, jax.Array]]:
        made = clock.next(state, workload)
        check_next(clock, workload.num_clients, made)
        state, step = made
        return state, (step.complete(), state.starts.count)

    state, (steps, runs_begun) = jax.lax.scan(one, state, length=server_steps)
    return state, steps, runs_begun, state.starts.fault, clock.held(state)  # the state, for XLA to write it in place
