"""The clock alone: a whole schedule computed ahead of the training, on the CPU, in float64 time."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.checks import check_whole
from jaxafl.clock.contract import FAULTS, Clock, Fault, ServerStep, Workload
from jaxafl.compilation import compiled
from jaxafl.keys import seed_key
from jaxafl.memory import host_bytes
from jaxafl.pytrees import as_arrays

_ENTRY_BYTES = 49  # of an arrival: eight int32, two float64 and a bool


@dataclasses.dataclass(frozen=True, eq=False)
class Schedule:
    """Who arrived at every server step, when, and how stale; T server steps of at most A arrivals each.

    Attributes:
        protocol: the clock's name.
        num_clients: N.
        in_flight: the most runs under way at once.
        ring_slots: versions of the global model that must be kept.
        time: float64 [T], simulated seconds at which server step t was taken.
        mask: bool [T, A], whether the entry is an arrival; the other arrays [T, A] mean nothing where it is false.
        client, run, dispatch: int32 [T, A], who arrived; the index of the run among the client's; among all runs.
        version: int32 [T, A], the version that the run trained from.
        reference: int32 [T, A], the version that its update is measured against.
        local_steps: int32 [T, A].
        started, arrived: float64 [T, A], simulated seconds.
        multiplicity: int32 [T, A], how many times an update counts.
        kind: int32 [T, A], what the protocol says of the arrival.
        starts: int32 [T], runs started up to each server step.
    """

    protocol: str
    num_clients: int
    in_flight: int
    ring_slots: int
    time: np.ndarray
    mask: np.ndarray
    client: np.ndarray
    run: np.ndarray
    dispatch: np.ndarray
    version: np.ndarray
    reference: np.ndarray
    local_steps: np.ndarray
    started: np.ndarray
    arrived: np.ndarray
    multiplicity: np.ndarray
    kind: np.ndarray
    starts: np.ndarray

    @property
    def dispatched(self) -> int:
        """Runs started up to the last server step; those that no step consumed are never trained."""
        return int(self.starts[-1])

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
            "time": self.time[-1],
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


def compute_schedule(
    clock: Clock, num_clients: int, local_steps: Any, server_steps: int, seed: int, *, check: bool = True
) -> Schedule:
    """Runs a clock for `server_steps` steps.

    Args:
        clock: the clock; its options are checked first.
        num_clients: N.
        local_steps: local steps per run: a number, [N] per client or [N, R] per client and run.
        server_steps: T.
        seed: seed of the schedule.
        check: raise for a recorded trace that runs out.

    Raises:
        ValueError: the options cannot work, or a recorded trace runs out or names a busy client (at which dispatch is
            said).
    """
    check_whole("schedule", "server_steps", server_steps)
    clock.check(num_clients)
    _check_length(clock, num_clients, server_steps)
    with jax.enable_x64(True), jax.default_device(_cpu()):
        workload = Workload(jnp.asarray(np.asarray(local_steps), jnp.int32), num_clients)
        arguments = (as_arrays(clock, jnp.float64), workload, seed_key(seed))
        program, _ = compiled(_scan, (num_clients, int(server_steps)), arguments)
        steps, starts, fault = jax.device_get(program(*arguments))
    if check:
        raise_fault(fault)
    return schedule_of(clock, num_clients, steps, starts)


def schedule_of(clock: Clock, num_clients: int, steps: ServerStep, starts: np.ndarray) -> Schedule:
    """The schedule of a clock's server steps [T, ...], and of the runs started up to each, [T], on the host.

    Where every server step takes time in which no client computes (`durations.frozen`), everything after it is that
    much later. A run may arrive before the step that consumes it (it waits in a client's buffer): it is late by the
    steps that were taken before it arrived.
    """
    frozen = float(getattr(getattr(clock, "durations", None), "frozen", 0.0))
    taken = np.arange(len(steps.time))
    before = np.clip(np.searchsorted(steps.time, steps.arrived), steps.reference, taken[:, None])
    steps = steps._replace(
        time=steps.time + frozen * (taken + 1),
        started=steps.started + frozen * steps.reference,
        arrived=steps.arrived + frozen * before,
    )
    return Schedule(
        protocol=clock.name,
        num_clients=num_clients,
        in_flight=clock.in_flight(num_clients),
        ring_slots=clock.ring_slots(num_clients),
        starts=starts,
        **steps._asdict(),
    )


def first_steps(schedule: Schedule, count: int) -> Schedule:
    """The first `count` server steps of a schedule."""
    fields = (field.name for field in dataclasses.fields(schedule))
    arrays: dict[str, Any] = {
        name: getattr(schedule, name)[:count] for name in fields if isinstance(getattr(schedule, name), np.ndarray)
    }
    return dataclasses.replace(schedule, **arrays)


def raise_fault(fault: Fault) -> None:
    """Raises `ValueError` when a schedule went wrong."""
    if int(fault.code):
        where = {name: int(value) for name, value in fault._asdict().items() if name != "code"}
        raise ValueError(FAULTS[int(fault.code)].format(**where))


def _check_length(clock: Clock, num_clients: int, server_steps: int) -> None:
    """Raises `MemoryError` for a schedule that is longer than the memory of the host."""
    needed = 2 * server_steps * (12 + _ENTRY_BYTES * clock.capacity(num_clients))  # in the program and out of it
    available = host_bytes()
    if available is not None and needed > available:
        raise MemoryError(
            f"a schedule of {server_steps:,} server steps needs {needed / 2**30:.0f} GiB, and there are "
            f"{available / 2**30:.0f} GiB"
        )


def _scan(
    num_clients: int, server_steps: int, clock: Any, workload: Workload, key: Any
) -> tuple[ServerStep, jax.Array, Fault]:

    def one(state: Any, _: None) -> tuple[Any, tuple[ServerStep, jax.Array]]:
        state, step = clock.next(state, workload)
        return state, (step, state.dispatches)

    state, (steps, starts) = jax.lax.scan(one, clock.init(key, num_clients), length=server_steps)
    return steps, starts, clock.fault(state)


def _cpu() -> Any:
    """The CPU backend, or the default device where JAX runs without one."""
    try:
        return jax.devices("cpu")[0]
    except RuntimeError:
        return None
