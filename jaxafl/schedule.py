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
from jaxafl.pytrees import as_arrays


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
        dispatched: runs started up to the last server step; those that no step consumed are never trained.
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
    dispatched: int

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
    with jax.enable_x64(True), jax.default_device(_cpu()):
        workload = Workload(jnp.asarray(np.asarray(local_steps), jnp.int32), num_clients)
        arguments = (as_arrays(clock, jnp.float64), workload, seed_key(seed))
        program, _ = compiled(_scan, (num_clients, int(server_steps)), arguments)
        steps, fault, dispatched = jax.device_get(program(*arguments))
    if check:
        raise_fault(fault)
    return schedule_of(clock, num_clients, steps, int(dispatched))


def schedule_of(clock: Clock, num_clients: int, steps: ServerStep, dispatched: int) -> Schedule:
    """The schedule of a clock's server steps [T, ...], on the host.

    Where every server step takes time in which no client computes (`durations.frozen`), everything after it is that
    much later.
    """
    frozen = float(getattr(getattr(clock, "durations", None), "frozen", 0.0))
    taken = np.arange(len(steps.time))
    steps = steps._replace(
        time=steps.time + frozen * (taken + 1),
        started=steps.started + frozen * steps.reference,
        arrived=steps.arrived + frozen * taken[:, None],
    )
    return Schedule(
        protocol=clock.name,
        num_clients=num_clients,
        in_flight=clock.in_flight(num_clients),
        ring_slots=clock.ring_slots(num_clients),
        dispatched=dispatched,
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


def _scan(
    num_clients: int, server_steps: int, clock: Any, workload: Workload, key: Any
) -> tuple[ServerStep, Fault, jax.Array]:
    state = clock.init(key, num_clients)
    state, steps = jax.lax.scan(lambda state, _: clock.next(state, workload), state, length=server_steps)
    return steps, clock.fault(state), state.dispatches


def _cpu() -> Any:
    """The CPU backend, or the default device where JAX runs without one."""
    try:
        return jax.devices("cpu")[0]
    except RuntimeError:
        return None
