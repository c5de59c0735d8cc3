"""Server steps when every client has sent enough: the clock of Malenia SGD."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.clock.checks import check_room
from jaxafl.clock.contract import Delivery
from jaxafl.clock.durations.duration import Duration
from jaxafl.clock.event_loop import Event, Verdict
from jaxafl.clock.events import Events
from jaxafl.clock.trees import put
from jaxafl.device.keys import Key
from jaxafl.options import Number, number, static

Array = jax.Array
_ROUNDING = 1e-9  # relative; equality does not close a step


class Rules(NamedTuple):
    """State of the protocol since the last server step."""

    received: Array  # int32 [N], B_i of the version in `counted`
    counted: Array  # int32 [N], version of the client's last update
    heard: Array  # number of clients with B_i > 0
    inverse: Array  # float64, Σ 1 / B_i over them


class harmonic(Events):
    """Clock with all N clients in training at the newest version, and a server step once enough updates are there.

    The server steps as soon as the harmonic mean (1/N Σ 1/B_i)^(-1) > S/N, strictly, where B_i counts the updates of
    client i from x_t, and 1/0 = ∞. Then all clients start anew from x_{t+1}. An S below N waits for one update of each.

    Args:
        durations: duration of a run in simulated seconds.
        batch: S >= 0.
        max_arrivals: most arrivals of one server step; more are an error. `None` is 4N.
        stop: stop the runs from x_t at the server step. Otherwise they go on, and are refused when they end.

    References:
        Tyurin & Richtárik, "Optimal time complexities of parallel stochastic optimization methods under a fixed
        computation model", NeurIPS 2023, Method 6. The rule follows a later text of the first author.
    """

    durations: Duration = dataclasses.field(kw_only=True)
    batch: Number = number(default=0.0, least=0, kw_only=True)
    max_arrivals: int | None = static(default=None, kw_only=True)
    stop: bool = static(default=True, kw_only=True)

    delivers: ClassVar[Delivery] = Events.delivers | Delivery.SEVERAL

    def check(self, num_clients: int) -> None:
        super().check(num_clients)
        check_room(self, num_clients, max(num_clients, int(np.floor(self.batch)) + 1))  # Σ B_i > S

    def capacity(self, num_clients: int) -> int:
        return self.max_arrivals or 4 * num_clients

    def in_flight(self, num_clients: int) -> int:
        return num_clients

    @property
    def tracks_oldest(self) -> bool:
        return self.stop

    def begin(self, key: Key, num_clients: int) -> Rules:
        none = jnp.zeros(num_clients, jnp.int32)
        return Rules(none, none - 1, jnp.int32(0), jnp.float64(0))

    def arrives(self, rules: Rules, event: Event) -> Verdict:
        client, clients = event.run.client, len(rules.received)
        refused = event.run.version < event.version
        before = jnp.where(rules.counted[client] == event.version, rules.received[client], 0)
        heard = rules.heard + (before == 0)
        inverse = rules.inverse + 1 / (before + 1) - jnp.where(before > 0, 1 / jnp.maximum(before, 1), 0)
        closes = ~refused & (heard == clients) & (inverse * self.batch * (1 + _ROUNDING) < clients * clients)
        counts = event.happens & ~refused
        rules = Rules(
            put(rules.received, client, before + 1, counts),
            put(rules.counted, client, event.version, counts),
            jnp.where(refused, rules.heard, jnp.where(closes, 0, heard)),
            jnp.where(refused, rules.inverse, jnp.where(closes, 0.0, inverse)),
        )
        return Verdict(rules, closes, refused)

    def last_stopped(self, rules: Rules, version: Array) -> Array | None:
        return version - 1 if self.stop else None
