"""Clients that start and arrive at any time: the clock of FedAsync, AsyncFedED, FedBuff and FADAS."""

from __future__ import annotations

import functools
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from jaxafl.clock import trees
from jaxafl.clock.checks import check_at_most, check_durations, check_starts
from jaxafl.clock.contract import Delivery, FaultCode, InFlight, Recording, Runs
from jaxafl.clock.durations.duration import Duration
from jaxafl.clock.events import Event, Events, State, Verdict
from jaxafl.clock.starts import recorded_or
from jaxafl.options import recording, static

Array = jax.Array


class free_running(Events):
    """Clock with M_c clients in training at any time and a server step after every M arrivals.

    The earliest finisher arrives. All arrivals of one instant are delivered in client order, and the server steps that
    they complete are taken, before any client restarts. A client that has just arrived is idle and may be drawn at
    once. If all clients are in flight (M_c = N), the arrived client itself restarts.

    Args:
        concurrency: number of clients in flight M_c, at most N.
        durations: duration of a run in simulated seconds.
        buffer: arrivals per server step M.
        dispatch: time of restarts. `"arrival"`: each arrival starts one client, drawn uniformly from the idle ones,
            from the newest version. `"step"`: the M replacements start at the server step (the clock of FADAS's
            published numbers).
        before_step: hand out the version from just before the arrival's delivery, as FADAS's Algorithm 1 literally says
            (`"arrival"` only). The arrival that completes a buffer then hands out x_t instead of x_{t+1}.
        start_skew: imitate FADAS's released code (`"step"` only), for comparison. The first M - 1 of M new runs train
            from x_{t-1}, but are stamped t, and their updates are relative to x_t.

    References:
        FADAS (Wang et al., 2024), Algorithm 1; AsyncFedED (Wang et al., 2022); FedBuff (Nguyen et al., 2022).
    """

    concurrency: int = static(kw_only=True)
    buffer: int = static(default=1, kw_only=True)
    dispatch: Literal["arrival", "step"] = static(default="arrival", kw_only=True)
    before_step: bool = static(default=False, kw_only=True)
    start_skew: bool = static(default=False, kw_only=True)
    starts: Recording = recording(default=None)

    delivers: ClassVar[Delivery] = Events.delivers | Delivery.REPLIES
    event_by_event: ClassVar[bool] = True

    def check(self, num_clients: int) -> None:
        check_at_most(self.name, "concurrency", self.concurrency, num_clients)
        if self.dispatch == "step" and self.buffer > self.concurrency:
            raise ValueError(
                f"a buffer of {self.buffer} can never fill: with dispatch='step' at most concurrency="
                f"{self.concurrency} updates arrive before the next server step; use a buffer <= concurrency or "
                "dispatch='arrival'"
            )
        if self.before_step and self.dispatch != "arrival":
            raise ValueError(
                f"{self.name}: before_step=True needs dispatch='arrival', got {self.dispatch!r}: with 'step' no client "
                "starts before the server step"
            )
        if self.start_skew and self.dispatch != "step":
            raise ValueError(
                f"{self.name}: start_skew=True needs dispatch='step', got {self.dispatch!r}: it is how FADAS's "
                "released code starts M newcomers"
            )
        check_starts(self.name, self.starts, num_clients)
        check_durations(self.name, self.durations, num_clients)

    def capacity(self, num_clients: int) -> int:
        return self.buffer

    def in_flight(self, num_clients: int) -> int:
        return self.concurrency

    def ring_slots(self, num_clients: int) -> int:
        return self.concurrency + 1 + self.start_skew

    def arrives(self, rules: Any, event: Event) -> Verdict:
        return Verdict(rules, closes=event.taken + 1 == self.buffer)

    def replaced(self, takes: Array, closes: Array) -> Array:
        return closes * self.buffer if self.dispatch == "step" else super().replaced(takes, closes)

    def choose(self, state: State, num_clients: int) -> tuple[Array, Array]:
        drawn = functools.partial(super().choose, state, num_clients)
        if self.starts is None:
            return drawn()
        client, missing = recorded_or(self.starts, state.starts.count, lambda: drawn()[0])
        taken = jnp.where(trees.is_busy(state.busy, client), FaultCode.BUSY, FaultCode.NONE)
        return client, jnp.where(missing, FaultCode.STARTS_END, taken).astype(jnp.int32)

    def start_version(self, state: State) -> tuple[Array, Array | None]:
        if self.before_step:
            return state.handout[state.row], None
        if not self.start_skew:
            return super().start_version(state)
        # all but the last of M newcomers train from the model before this step
        last = (state.waiting - 1) % self.buffer == 0
        return jnp.where(last, state.version, jnp.maximum(state.version - 1, 0)), state.version

    def in_flight_runs(self, state: State) -> InFlight:
        flight = super().in_flight_runs(state)
        promised = self.before_step or self.start_skew  # the next run may train from an older version than the newest
        return flight._replace(pinned=flight.pinned | promised)

    def held(self, state: State) -> list[Array]:
        return super().held(state._replace(version=state.version - self.start_skew))  # oldest start of the next run

    def online_ring_slots(self, num_clients: int) -> int:
        # a skewed run needs two versions until it arrives
        return self.concurrency * (2 if self.start_skew else 1) + 1

    def _no_runs(self, size: int) -> Runs:
        runs = super()._no_runs(size)
        return runs._replace(reference=runs.version) if self.start_skew else runs
