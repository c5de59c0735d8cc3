"""Server steps when each of B buffers has an update: the clock of BASGD."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxafl.clock.checks import check_room
from jaxafl.clock.contract import Delivery
from jaxafl.clock.durations.duration import Duration
from jaxafl.clock.event_loop import Event, Verdict
from jaxafl.clock.events import Events
from jaxafl.device.keys import Key
from jaxafl.options import UserError, static

Array = jax.Array


class every_buffer(Events):
    """Clock with all N clients in training, and a server step once each of B buffers has an update.

    Client i fills buffer i mod B, and starts again at once from the newest model. A step takes all updates since the
    last one.

    Args:
        durations: duration of a run in simulated seconds.
        buffers: B, from 1 to N.
        max_arrivals: most arrivals of one server step; more are an error. `None` is 4N.

    References:
        Yang & Li, "BASGD: Buffered asynchronous SGD for Byzantine learning", ICML 2021, Algorithm 2.
    """

    durations: Duration = dataclasses.field(kw_only=True)
    buffers: int = static(default=2, kw_only=True)
    max_arrivals: int | None = static(default=None, kw_only=True)

    delivers: ClassVar[Delivery] = Events.delivers | Delivery.SEVERAL
    takes_all: ClassVar[bool] = True

    def check(self, num_clients: int) -> None:
        super().check(num_clients)
        if self.buffers > num_clients:
            raise UserError(
                f"every_buffer: buffers={self.buffers} exceeds the {num_clients} clients, so that some stay empty; "
                f"expected at most {num_clients}"
            )
        check_room(self, num_clients, self.buffers)

    def capacity(self, num_clients: int) -> int:
        return self.max_arrivals or 4 * num_clients

    def in_flight(self, num_clients: int) -> int:
        return num_clients

    def begin(self, key: Key, num_clients: int) -> Array:
        return jnp.zeros(self.buffers, bool)

    def arrives(self, rules: Any, event: Event) -> Verdict:
        filled = rules | (jnp.arange(self.buffers) == event.run.client % self.buffers)
        closes = jnp.all(filled)
        return Verdict(jnp.where(event.happens, filled & ~closes, rules), closes)
