"""A clock: clients upload one after another, in turns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jaxafl.clock import Clock, Delivery, Fleet
from jaxafl.options import Number, number


class in_turns(Clock):
    """Every server step takes the update of the next client in turn, which trained since its own last upload.

    Args:
        seconds: between two uploads, > 0.
    """

    seconds: Number = number(default=1.0, above=0)

    delivers = Delivery.STALE

    def arrivals(self, num_clients: int) -> int:
        return 1

    def steps(self, fleet: Fleet) -> Iterator[Any]:
        runs = [fleet.start(client) for client in range(fleet.num_clients)]
        while True:
            client = fleet.version % fleet.num_clients
            yield fleet.step([runs[client]], time=self.seconds * (fleet.version + 1))
            runs[client] = fleet.start(client)
