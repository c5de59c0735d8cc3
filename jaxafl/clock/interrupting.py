"""A server that interrupts its clients at fixed intervals: the clock of FAVANO and QuAFL."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from jaxafl.checks import check_number
from jaxafl.clock import draws
from jaxafl.clock.checks import check_concurrency, check_durations, check_sets
from jaxafl.clock.contract import Fault, ServerStep, Workload, durations_fault, first_fault, no_fault, valid
from jaxafl.clock.durations import Duration, Run, stream_keys
from jaxafl.keys import Key, Purpose, purpose_key
from jaxafl.pytrees import pytree, static

Array = jax.Array
_ROUNDING = 1e-9  # relative; a step that ends exactly at a contact counts


class State(NamedTuple):
    """The clock between two contacts; what each client does, [N]."""

    version: Array
    dispatches: Array
    started: Array
    base: Array
    run: Array
    dispatch: Array
    longest: Array
    fault: Fault
    prepared: Any
    start_key: Key


@pytree
class Interrupting:
    """See `interrupting`."""

    period: Any
    durations: Any
    sets: Any = None
    contacted: int = static(default=1)

    name: ClassVar[str] = "interrupting"

    def check(self, num_clients: int) -> None:
        check_number("interrupting", "period", self.period, above=0)
        check_concurrency("interrupting", "contacted", self.contacted, num_clients)
        check_sets("interrupting", self.sets, self.contacted, num_clients, repeats=False)
        check_durations("interrupting", self.durations, num_clients)
        if getattr(self.durations, "depends_on_start", False):
            raise ValueError(
                "interrupting needs durations that are a latency plus a time per local step; runs that wait until "
                "their device is available have none: give device_trace(availability=False)"
            )

    def capacity(self, num_clients: int) -> int:
        return self.contacted

    def in_flight(self, num_clients: int) -> int:
        return num_clients

    def ring_slots(self, num_clients: int) -> int:
        return num_clients + 1

    def init(self, key: Key, num_clients: int) -> State:
        clients = jnp.arange(num_clients, dtype=jnp.int32)
        zero = jnp.zeros_like(clients)
        return State(
            version=jnp.int32(0),
            dispatches=jnp.int32(num_clients),
            started=jnp.zeros(num_clients, jnp.float64),
            base=zero,
            run=zero,
            dispatch=clients,
            longest=jnp.float64(0),
            fault=no_fault(),
            prepared=self.durations.prepare(stream_keys(key, self.durations), num_clients),
            start_key=purpose_key(key, Purpose.START),
        )

    def next(self, state: State, workload: Workload) -> tuple[State, ServerStep]:
        """One contact: the contacted clients hand in the whole local steps that they have made, and restart."""
        size = self.contacted
        now = (state.version + 1) * jnp.asarray(self.period, jnp.float64)
        client, missing = self._contacted(state, workload.num_clients)
        run, base, started = state.run[client], state.base[client], state.started[client]
        most = jax.vmap(workload.local_steps)(client, run).astype(jnp.int32)
        made, per_step, latency = jax.vmap(self._made, in_axes=(None, 0, 0, 0, 0))(
            state, client, run, most, now - started
        )
        fault = durations_fault(
            per_step + latency, ~(valid(per_step) & valid(latency)), state.dispatch[client], client, run, state.version
        )
        step = ServerStep(
            now, jnp.ones(size, bool), client, run, state.dispatch[client], base, base, made,
            started, jnp.full(size, now), jnp.ones(size, jnp.int32), jnp.zeros(size, jnp.int32),
        )  # fmt: skip
        return state._replace(
            version=state.version + 1,
            dispatches=state.dispatches + size,
            started=state.started.at[client].set(now),
            base=state.base.at[client].set(state.version + 1),
            run=state.run.at[client].add(1),
            dispatch=state.dispatch.at[client].set(state.dispatches + jnp.arange(size, dtype=jnp.int32)),
            longest=jnp.maximum(state.longest, jnp.max(jnp.where(valid(per_step), latency + per_step * most, 0))),
            fault=first_fault(state.fault, fault._replace(code=jnp.where(missing, 5, fault.code).astype(jnp.int32))),
        ), step

    def fault(self, state: State) -> Fault:
        return state.fault

    def _made(self, state: State, client: Array, run: Array, most: Array, elapsed: Array) -> tuple[Array, Array, Array]:
        """Whole local steps within the time elapsed, seconds per local step, and seconds that do not depend on them."""

        def lasting(steps: int) -> Array:
            whole = Run(client, run, jnp.int32(steps), state.longest, state.started[client])
            drawn = self.durations.draw(state.prepared, whole)
            return drawn.work + drawn.hang

        latency = lasting(0)
        per_step = lasting(1) - latency
        working = elapsed - latency
        fit = jnp.floor(working / jnp.where(per_step > 0, per_step, 1) * (1 + _ROUNDING))
        fit = jnp.where(per_step > 0, fit, jnp.where(working >= 0, jnp.inf, 0))
        return jnp.clip(fit, 0, most).astype(jnp.int32), per_step, latency

    def _contacted(self, state: State, num_clients: int) -> tuple[Array, Array]:
        """The contacted clients in client order, and whether the recording has run out."""
        if self.sets is not None:
            sets = jnp.asarray(self.sets, jnp.int32)
            return jnp.sort(sets[jnp.minimum(state.version, len(sets) - 1)]), state.version >= len(sets)
        drawn = draws.without_replacement(state.start_key, state.version, self.contacted, num_clients)
        return jnp.sort(drawn), jnp.bool_(False)


def interrupting(*, period: Any, contacted: int, durations: Duration) -> Interrupting:
    """Every period the server contacts s clients, drawn uniformly without replacement, whatever they have done.

    A contacted client hands in the whole local steps that it has made since its last restart, at most K (its number of
    local steps, `Client(steps=K)`), and restarts; a step in progress is lost, one that ends exactly at the contact
    counts. The others go on up to K steps, then wait. The first contact is at one period.

    Args:
        period: seconds between contacts.
        contacted: s.
        durations: of a run as a function of its local steps: terms with `per="step"` are the time of one local step,
            drawn for every run; other terms are a latency before the first step.

    References:
        Leconte et al., "FAVAS: Federated averaging with asynchronous clients", 2023; Zakerinia et al.,
        "Communication-efficient federated learning with data and client heterogeneity" (QuAFL), 2022.
    """
    return Interrupting(period, durations, None, contacted)
