"""Rounds of one server step per client, from whom nothing is discarded: the clock of Ringleader ASGD."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp

from jaxafl.clock.checks import check_room
from jaxafl.clock.contract import Delivery, InFlight
from jaxafl.clock.durations.duration import Duration
from jaxafl.clock.event_loop import Event, State, Verdict
from jaxafl.clock.events import Events
from jaxafl.clock.trees import put
from jaxafl.device.keys import Key
from jaxafl.options import static

Array = jax.Array


class Rules(NamedTuple):
    """State of the protocol."""

    round: Array
    entered: Array  # int32 [N], newest round with an update of the client in its table
    updated: Array  # int32 [N], newest round in which the client has got a new model
    heard: Array  # number of clients in the table of this round
    ahead: Array  # number of clients in the table of the next round
    steps: Array  # number of server steps in this round


class ringleader(Events):
    """Clock of Ringleader ASGD: all N clients train, and a round has N server steps, one for each client.

    First the server collects updates until it has one of every client; the clients go on from the versions that they
    hold. The update that completes this table makes the first step of the round. Then every update of a client without
    a step in this round makes a step, and the client restarts from the newest version. Updates of the others are stored
    for the next round, and their clients go on from the versions that they hold. A version is made at steps only: a
    server step takes all updates that have arrived since the last one, in order. Kinds of arrivals: `"collected"`,
    `"step"` and `"stored"`. Staleness is at most 2N - 2.

    Args:
        durations: duration of a run in simulated seconds.
        restart: version from which a client goes on without a step. `"held"`: the version that it holds, as in the
            paper. `"newest"`: the newest one, as in the authors' released simulator.
        max_arrivals: most arrivals of one server step; more are an error. `None` is 4N.

    References:
        Maranjyan & Richtárik, "Ringleader ASGD: the first asynchronous SGD with optimal time complexity under data
        heterogeneity", ICLR 2026. The rule follows the authors' poster.
    """

    durations: Duration = dataclasses.field(kw_only=True)
    restart: Literal["held", "newest"] = static(default="held", kw_only=True)
    max_arrivals: int | None = static(default=None, kw_only=True)

    references: ClassVar[tuple[str, ...]] = ("maranjyan2026",)
    delivers: ClassVar[Delivery] = Events.delivers | Delivery.SEVERAL | Delivery.KINDS | Delivery.HELD
    kinds: ClassVar[tuple[str, ...]] = ("collected", "step", "stored")
    takes_all: ClassVar[bool] = True

    def check(self, num_clients: int) -> None:
        super().check(num_clients)
        check_room(self, num_clients, num_clients)  # the first step of a round has an update of every client

    def capacity(self, num_clients: int) -> int:
        return self.max_arrivals or 4 * num_clients

    def in_flight(self, num_clients: int) -> int:
        return num_clients

    def begin(self, key: Key, num_clients: int) -> Rules:
        never, zero = jnp.full(num_clients, -1, jnp.int32), jnp.int32(0)
        return Rules(zero, never, never, zero, zero, zero)

    def arrives(self, rules: Rules, event: Event) -> Verdict:
        client, clients = event.run.client, len(rules.entered)
        stores = (rules.heard == clients) & (rules.updated[client] == rules.round)
        table = rules.round + stores
        new = rules.entered[client] < table
        heard, ahead = rules.heard + (new & ~stores), rules.ahead + (new & stores)
        steps = ~stores & (heard == clients)
        ends = rules.steps + steps == clients
        happens = event.happens
        after = Rules(
            rules.round + ends,
            put(rules.entered, client, table, happens),
            put(rules.updated, client, rules.round, happens & steps),
            jnp.where(ends, ahead, heard),
            jnp.where(ends, 0, ahead),
            jnp.where(ends, 0, rules.steps + steps),
        )
        return Verdict(after, steps, kind=jnp.where(stores, 2, steps))

    def start_version(self, state: State) -> tuple[Array, None]:
        return self._next_versions(state, state.row), None

    def in_flight_runs(self, state: State) -> InFlight:
        flight = super().in_flight_runs(state)
        version = jnp.where(flight.mask, flight.runs.version, self._next_versions(state, jnp.arange(len(state.freed))))
        return InFlight(flight.mask, flight.runs._replace(version=version), jnp.ones_like(flight.mask))

    def _next_versions(self, state: State, row: Array) -> Array:
        """Returns the versions that the clients of rows start from when their runs have ended."""
        rules, client = state.rules, state.flight.client[row]
        stepped = rules.entered[client] == rules.updated[client]  # by its last update; true before the first one
        newest = stepped | (self.restart == "newest")
        return jnp.where(newest, state.version, state.flight.version[row])
