"""The driver of a run whose clock runs beside the training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl import online
from jaxafl.clock.contract import OnlineClock
from jaxafl.compilation import compiled
from jaxafl.drive import (
    Recording,
    Speed,
    check_fit,
    check_lanes,
    chunk_of,
    evaluation,
    failures_of,
    initial_states,
    trimmed,
    until,
)
from jaxafl.history import slices_are_faster
from jaxafl.keys import seed_key
from jaxafl.pytrees import as_arrays
from jaxafl.schedule import Schedule, raise_fault, schedule_of
from jaxafl.state import Version

if TYPE_CHECKING:
    from jaxafl.simulation import Simulation


class Online:
    """One run with the clock beside the training."""

    def __init__(self, simulation: Simulation, every: int, seed: int, speed: Speed, recording: Recording) -> None:
        self.simulation = simulation
        clock, clients = cast(OnlineClock, simulation.clock), simulation.data.num_clients
        capacity, in_flight = clock.capacity(clients), clock.in_flight(clients)
        lanes = _online_lanes(speed.lanes, capacity, in_flight)
        self.program = simulation.program(
            lanes=lanes,
            chunk=chunk_of(lanes, speed.chunk),
            slots=clock.slots_beside(clients),
            rows=capacity if lanes == capacity else in_flight + capacity,
            uniform=False,
            full=True,
            sliced=slices_are_faster(),
            stop=True,
            **recording._asdict(),
        )
        key = seed_key(seed)
        self.config = simulation.config(seed)
        check_fit(simulation, self.program, self.config, key, 1)
        (state,) = initial_states(self.program, [self.config], simulation.dataset, [key])
        wide = jnp.result_type(float) == jnp.float64
        with jax.enable_x64(True):
            self.clock = as_arrays(clock, jnp.float64)
            client = simulation.client
            steps = jnp.asarray(client.steps if client.epochs is None else client.epochs, jnp.int32)
            first = (self.clock, state, key, steps)
            begin, _ = compiled(online.initial_online, (self.program, clients), first)
            self.state = begin(*first)
            number = jnp.int32(0)
            arguments = (self.clock, self.config, simulation.dataset, self.state, number, number)
            self.compiled, seconds = compiled(
                online.advance_online, (self.program, every, wide), arguments, donate=(3,)
            )
        self._evaluate, more = evaluation(simulation, self.program, state, alone=True)
        self.compile_seconds = seconds + more

    def advance(self, start: int, stop: int) -> Any:
        with jax.enable_x64(True):
            self.state, records = self.compiled(
                self.clock, self.config, self.simulation.dataset, self.state, jnp.int32(start), jnp.int32(stop)
            )
            fault, lost = jax.device_get((self.clock.fault(self.state.clock), self.state.lost))
            raise_fault(fault)
        if lost:
            raise RuntimeError(f"{lost} runs were trained from a version that the ring no longer held")
        return trimmed(records, stop - start, alone=True)

    def evaluate(self) -> dict[str, np.ndarray]:
        return self._evaluate(self.state.run)

    def failures(self) -> list[tuple[int, int] | None]:
        return failures_of(self.state.run.failure)

    def updates(self, done: int) -> int:
        return done * self.program.capacity

    def finish(self, records: Any) -> list[tuple[Schedule, dict[str, np.ndarray], Version]]:
        steps, dispatched, diagnostics = jax.tree.map(lambda values: values[0], records)
        schedule = schedule_of(self.simulation.clock, self.simulation.data.num_clients, steps, dispatched)
        return [(until(schedule, self.failures()[0]), diagnostics, self.state.run.model)]


def _online_lanes(lanes: int | None, capacity: int, in_flight: int) -> int:
    if lanes is None:
        return capacity if jax.default_backend() == "cpu" else max(capacity, min(in_flight, 32))
    check_lanes(lanes)
    return max(lanes, capacity)
