"""A clock: clients upload one after another, in turns."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from jaxafl.clock import Clock, Delivery, Runs, ServerStep, Starts, no_starts
from jaxafl.options import Number, number


class State(NamedTuple):
    version: jnp.ndarray
    last: jnp.ndarray  # [N], the version that each client trains from: that made by its own last upload
    starts: Starts


class in_turns(Clock):
    """Every server step takes the update of the next client in turn, which trained since its own last upload.

    Args:
        seconds: between two uploads, > 0.
    """

    seconds: Number = number(default=1.0, above=0)

    delivers = Delivery.STALE

    def capacity(self, num_clients: int) -> int:
        return 1

    def in_flight(self, num_clients: int) -> int:
        return num_clients

    def init(self, key, num_clients: int) -> State:
        return State(jnp.int32(0), jnp.zeros(num_clients, jnp.int32), no_starts(count=num_clients))

    def next(self, state: State, workload) -> tuple[State, ServerStep]:
        version, clients = state.version, workload.num_clients
        client, run = version % clients, version // clients
        since = state.last[client]
        begun, time = self.seconds * since.astype(jnp.float64), self.seconds * (version + 1.0)
        columns = (client, run, version, since, workload.local_steps(client, run), begun, time)
        runs = Runs(*(jnp.asarray(column)[None] for column in columns))
        starts = state.starts._replace(count=state.starts.count + 1)
        last = state.last.at[client].set(version + 1)
        return State(version + 1, last, starts), ServerStep(time, jnp.array([True]), runs)

    def held(self, state: State) -> list:
        return [state.last]
