"""Idle clients, in client order, from which a clock draws the next one to start."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from functools import reduce
from itertools import accumulate
from operator import add
from typing import Any

import numpy as np

_FEW = 65536  # busy clients, up to which a sorted list of them is faster than a tree
_WIDTH = 8  # of a tree of weights
_ROUNDING = 1e-9  # of a day, and of the time: rounding may put a client just before its hours


def idle_of(num_clients: int, most_busy: int, weights: Any = None) -> FewBusy | Weights:
    """Returns N idle clients, of which at most `most_busy` will be busy at once, with weights or without."""
    if weights is None and most_busy <= _FEW:
        return FewBusy(num_clients)
    return Weights(1.0 if weights is None else weights, num_clients)


def take(idle: FewBusy | Weights, share: float) -> int:
    """Returns the idle client that a share in [0, 1) draws, and makes it busy."""
    client = idle.draw(share)
    idle.remove(client)
    return client


class FewBusy:
    """Idle clients as the complement of a sorted list of busy ones."""

    def __init__(self, num_clients: int) -> None:
        self.num_clients = num_clients
        self.busy: list[int] = []

    def draw(self, share: float) -> int:
        """Returns the idle client before which a `share` of the idle ones lies."""
        busy = self.busy
        rank = int(share * (self.num_clients - len(busy)))
        # the k-th busy client has busy[k] - k idle ones before it
        return rank + bisect_right(range(len(busy)), rank, key=lambda place: busy[place] - place)

    def remove(self, client: int) -> None:
        """Makes a client busy."""
        insort(self.busy, client)

    def add(self, client: int) -> None:
        """Makes a client idle."""
        del self.busy[bisect_left(self.busy, client)]


class Awake:
    """Idle clients, of whom only those within their hours can start."""

    def __init__(self, hours: Any, num_clients: int, seed: int) -> None:
        """Takes the hours, such as `available(22, 6)`, and the seed of the schedule."""
        self.idle = np.ones(num_clients, bool)
        self.day = float(getattr(hours, "day", 1.0))
        self.waits = hours.hours_of(seed, num_clients)

    def remove(self, client: int) -> None:
        """Makes a client busy."""
        self.idle[client] = False

    def add(self, client: int) -> None:
        """Makes a client idle."""
        self.idle[client] = True

    def awake(self, now: float) -> tuple[np.ndarray, float]:
        """Returns the idle clients within their hours, and the first time from now on at which there is one."""
        waits = np.where(self.idle, self.waits(now), np.inf)
        found = np.flatnonzero(waits <= _ROUNDING * (now + self.day))
        return found, now if len(found) else now + float(waits.min())


class Weights:
    """Weights of the idle clients, in a tree of sums of eight."""

    def __init__(self, weights: Any, num_clients: int) -> None:
        """Takes one weight per client, or one number for all."""
        self.weights = np.broadcast_to(np.asarray(weights, np.float64), num_clients).tolist()
        level: list[float] = self.weights
        self.levels: list[list[float]] = []
        while not self.levels or len(self.levels[-1]) > _WIDTH:
            padded = [*level, *[0.0] * (-len(level) % _WIDTH)]
            self.levels.append(padded)
            level = [_total(padded[begin : begin + _WIDTH]) for begin in range(0, len(padded), _WIDTH)]

    def draw(self, share: float) -> int:
        """Returns the first idle client at which the sum of the weights exceeds `share` of all."""
        row, target = 0, share * _total(self.levels[-1])
        for level in reversed(self.levels):
            entries = level[row * _WIDTH : (row + 1) * _WIDTH]
            until = list(accumulate(entries))
            some = [place for place in range(len(entries)) if entries[place] > 0]
            place = next((one for one in some if until[one] > target), some[-1])  # rounding may exceed the last
            target -= until[place] - entries[place]
            row = row * _WIDTH + place
        return row

    def remove(self, client: int) -> None:
        """Makes a client busy."""
        self._weigh(client, 0.0)

    def add(self, client: int) -> None:
        """Makes a client idle."""
        self._weigh(client, self.weights[client])

    def _weigh(self, client: int, weight: float) -> None:
        place = client
        for level in self.levels:
            level[place] = weight
            place //= _WIDTH
            weight = _total(level[place * _WIDTH : (place + 1) * _WIDTH])


def _total(entries: list[float]) -> float:
    return reduce(add, entries)  # `sum` rounds otherwise from Python 3.12 on
