"""Rounds that end when every client has delivered: the clock of THROTTLE."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from jaxafl.clock.contract import Delivery
from jaxafl.clock.durations.duration import Duration
from jaxafl.clock.event_loop import Event, Verdict
from jaxafl.clock.events import Events
from jaxafl.clock.trees import put
from jaxafl.device.keys import Key

Array = jax.Array


class Rules(NamedTuple):
    """State of the protocol."""

    round: Array
    seen: Array  # int32 [N], round of the client's last arrival
    heard: Array  # number of clients that have arrived in this round
    last: Array  # newest version from which runs are stopped


class rounds_until_all(Events):
    """Clock with all N clients in training, a server step for every arrival, and rounds.

    A client that arrives restarts from the version that its update has made. The arrival by which every client has come
    once ends the round: all runs are stopped, and all clients start anew from the newest version. An arrival that is
    delivered after it at the same instant belongs to the next round. Kinds of arrivals: `"first"` of the client in the
    round, `"again"`, and `"last"` of the round.

    Args:
        durations: duration of a run in simulated seconds.

    References:
        Otsuka et al., THROTTLE, 2026, Algorithm 1.
    """

    durations: Duration = dataclasses.field(kw_only=True)

    delivers: ClassVar[Delivery] = Events.delivers | Delivery.KINDS
    kinds: ClassVar[tuple[str, ...]] = ("first", "again", "last")
    takes_all: ClassVar[bool] = True

    def capacity(self, num_clients: int) -> int:
        return 1

    def in_flight(self, num_clients: int) -> int:
        return num_clients

    @property
    def tracks_oldest(self) -> bool:
        return True

    def begin(self, key: Key, num_clients: int) -> Rules:
        return Rules(jnp.int32(1), jnp.zeros(num_clients, jnp.int32), jnp.int32(0), jnp.int32(-1))

    def arrives(self, rules: Rules, event: Event) -> Verdict:
        client = event.run.client
        again = rules.seen[client] == rules.round
        heard = rules.heard + ~again
        ends = heard == len(rules.seen)
        after = Rules(
            rules.round + ends,
            put(rules.seen, client, rules.round, event.happens),
            jnp.where(ends, 0, heard),
            jnp.where(ends, event.version, rules.last),
        )
        return Verdict(after, jnp.bool_(True), kind=jnp.where(ends, 2, again))

    def last_stopped(self, rules: Rules, version: Array) -> Array:
        return rules.last
