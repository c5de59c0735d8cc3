"""A server that interrupts its clients at fixed intervals: the clock of FAVANO and QuAFL."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from jaxafl.clock.checks import check_at_most, check_durations, check_sets
from jaxafl.clock.contract import Clock, Delivery, Recording, Runs, ServerStep, Starts, Workload
from jaxafl.clock.durations.duration import Duration, waits
from jaxafl.clock.durations.runs import Run, draw_of
from jaxafl.clock.starts import drawn_clients, duration_fault, no_starts, valid
from jaxafl.device.keys import Key
from jaxafl.options import Number, number, recording, static

Array = jax.Array
_ROUNDING = 1e-9  # relative; a step that ends exactly at a contact counts


class State(NamedTuple):
    """State of the clock between two contacts; arrays [N] describe the clients' current runs."""

    version: Array
    started: Array
    base: Array
    run: Array
    run_id: Array
    starts: Starts
    key: Key


class interrupting(Clock):
    """Contacts of s clients, drawn uniformly without replacement, in fixed periods.

    A contacted client hands in the local steps that it has completed since its last restart, at most K (its number of
    local steps, `Client(steps=K)`), and restarts. A step in progress is lost; a step that ends exactly at the contact
    counts. The other clients continue up to K steps, then wait. The first contact is at one period.

    Args:
        period: simulated seconds between contacts.
        contacted: clients per contact s.
        durations: duration of a run in simulated seconds, as a function of its local steps. Terms with `per="step"` are
            the time of one local step, drawn for every run; other terms are a latency before the first step.

    References:
        Leconte et al., "FAVAS: Federated averaging with asynchronous clients", 2023; Zakerinia et al.,
        "Communication-efficient federated learning with data and client heterogeneity" (QuAFL), 2022.
    """

    period: Number = number(above=0, kw_only=True)
    contacted: int = static(kw_only=True)
    durations: Duration = dataclasses.field(kw_only=True)
    sets: Recording = recording(default=None)

    delivers: ClassVar[Delivery] = Delivery.STALE | Delivery.PULLED | Delivery.PARTIAL
    takes_all: ClassVar[bool] = True

    def check(self, num_clients: int) -> None:
        check_at_most(self.name, "contacted", self.contacted, num_clients)
        check_sets(self.name, self.sets, self.contacted, num_clients, repeats=False)
        check_durations(self.name, self.durations, num_clients)
        if waits(self.durations, num_clients):
            raise ValueError(
                f"{self.name} needs durations that are a latency plus a time per local step, and those of "
                f"{self.durations!r:.100} wait until the device is available: give device_trace(availability=False)"
            )

    def capacity(self, num_clients: int) -> int:
        return self.contacted

    def in_flight(self, num_clients: int) -> int:
        return num_clients

    def init(self, key: Key, num_clients: int) -> State:
        clients = jnp.arange(num_clients, dtype=jnp.int32)
        zero = jnp.zeros_like(clients)
        return State(
            version=jnp.int32(0),
            started=jnp.zeros(num_clients, jnp.float64),
            base=zero,
            run=zero,
            run_id=clients,
            starts=no_starts(self.durations, key, num_clients, count=num_clients),
            key=key,
        )

    def held(self, state: State) -> list[Array]:
        return [state.base]

    def next(self, state: State, workload: Workload) -> tuple[State, ServerStep]:
        """Computes one contact: the contacted clients hand in their completed local steps, and restart."""
        size = self.contacted
        now = (state.version + 1) * jnp.asarray(self.period, jnp.float64)
        state, drawn = drawn_clients(state, self.sets, size, workload.num_clients)
        client = jnp.sort(drawn)
        run = state.run[client]
        started = state.started[client]
        most = jax.vmap(workload.local_steps)(client, run).astype(jnp.int32)
        none, one = (self._durations(state.starts, client, run, started, steps) for steps in (0, 1))
        gone = jnp.isinf(one)  # the run completes no step
        latency = jnp.where(gone, 0, none)
        per_step = jnp.where(gone, one, one - none)
        working = now - started - latency
        fit = jnp.floor(working / jnp.where(per_step > 0, per_step, 1) * (1 + _ROUNDING))
        fit = jnp.where(per_step > 0, fit, jnp.where(working >= 0, jnp.inf, 0))
        made = jnp.clip(fit, 0, most).astype(jnp.int32)
        runs = Runs(client, run, state.run_id[client], state.base[client], made, started, jnp.full(size, now))
        wrong = ~(valid(per_step) & valid(latency))
        starts = duration_fault(state.starts, runs, per_step + latency, wrong, state.version)
        longest = jnp.max(jnp.where(valid(per_step) & ~gone, latency + per_step * most, 0))
        return state._replace(
            version=state.version + 1,
            started=state.started.at[client].set(now),
            base=state.base.at[client].set(state.version + 1),
            run=state.run.at[client].add(1),
            run_id=state.run_id.at[client].set(starts.count + jnp.arange(size, dtype=jnp.int32)),
            starts=starts._replace(count=starts.count + size, longest=jnp.maximum(starts.longest, longest)),
        ), ServerStep(now, jnp.ones(size, bool), runs)

    def _durations(self, starts: Starts, client: Array, run: Array, started: Array, steps: int) -> Array:
        """Returns the durations of the runs in seconds, float64 [A], with `steps` local steps each."""

        def one(client: Array, run: Array, started: Array) -> Array:
            drawn = draw_of(
                self.durations, starts.prepared, Run(client, run, jnp.int32(steps), starts.longest, started)
            )
            return drawn.work + drawn.hang

        return jax.vmap(one)(client, run, started)
