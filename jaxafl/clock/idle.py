"""Idle clients, in client order, from which a clock draws the next one to start."""

from __future__ import annotations

from bisect import bisect_left
from functools import reduce
from itertools import accumulate
from operator import add
from typing import Any

import numpy as np

_FEW = 4096  # busy clients, up to which a sorted list of them is faster than a tree
_WIDTH = 8  # of a tree of weights
_ROUNDING = 1e-9  # of a day and of the time: without it a client that time has advanced to might still be a bit early


def idle_of(num_clients: int, most_busy: int) -> FewBusy | ManyBusy:
    """Returns N idle clients, of which at most `most_busy` will be busy at once."""
    return FewBusy() if most_busy <= _FEW else ManyBusy(num_clients)


class FewBusy:
    """Idle clients as the complement of a sorted list of busy ones."""

    def __init__(self) -> None:
        self.busy: list[int] = []

    def take(self, rank: int) -> int:
        """Returns the idle client of a rank, from 0 on, which is then busy."""
        busy = self.busy
        low, high = 0, len(busy)
        while low < high:  # the k-th busy client has busy[k] - k idle ones before it
            middle = (low + high) >> 1
            if busy[middle] - middle <= rank:
                low = middle + 1
            else:
                high = middle
        busy.insert(low, rank + low)
        return rank + low

    def remove(self, client: int) -> None:
        """Makes a client busy."""
        place = bisect_left(self.busy, client)
        if self.busy[place : place + 1] == [client]:
            raise KeyError(client)
        self.busy.insert(place, client)

    def add(self, client: int) -> None:
        """Makes a client idle."""
        del self.busy[bisect_left(self.busy, client)]


class ManyBusy:
    """Idle clients as a Fenwick tree of their numbers."""

    def __init__(self, num_clients: int) -> None:
        self.size = 1 << (num_clients - 1).bit_length()
        places = np.arange(self.size + 1)
        first = places - (places & -places)  # clients before the range of a place
        self.counts = (np.minimum(places, num_clients) - np.minimum(first, num_clients)).tolist()
        self.is_idle = [True] * num_clients

    def take(self, rank: int) -> int:
        """Returns the idle client of a rank, from 0 on, which is then busy."""
        counts, place, step = self.counts, 0, self.size
        while step:
            inside = counts[place + step]
            if inside <= rank:
                rank -= inside
                place += step
            else:
                counts[place + step] = inside - 1
            step >>= 1
        self.is_idle[place] = False
        return place

    def remove(self, client: int) -> None:
        """Makes a client busy."""
        if not self.is_idle[client]:
            raise KeyError(client)
        self._change(client, -1)

    def add(self, client: int) -> None:
        """Makes a client idle."""
        self._change(client, 1)

    def _change(self, client: int, by: int) -> None:
        self.is_idle[client] = by > 0
        place = client + 1
        while place <= self.size:
            self.counts[place] += by
            place += place & -place


class Mask:
    """Idle clients as a mask, bool [N]."""

    def __init__(self, num_clients: int) -> None:
        self.mask = np.ones(num_clients, bool)

    def remove(self, client: int) -> None:
        """Makes a client busy."""
        if not self.mask[client]:
            raise KeyError(client)
        self.mask[client] = False

    def add(self, client: int) -> None:
        """Makes a client idle."""
        self.mask[client] = True


class Awake(Mask):
    """Idle clients, of whom only those within their hours can start."""

    def __init__(self, hours: Any, num_clients: int, seed: int) -> None:
        """Takes the hours, such as `available(22, 6)`, and the seed of the schedule."""
        super().__init__(num_clients)
        self.day = float(hours.day)
        self.waits = hours.hours_of(seed, num_clients)

    def awake(self, now: float) -> tuple[np.ndarray, float]:
        """Returns the idle clients within their hours, and the first time from now on at which there is one."""
        waits = np.where(self.mask, self.waits(now), np.inf)
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

    def take(self, share: float) -> int:
        """Returns `draw(share)`, which is then busy."""
        client = self.draw(share)
        self._weigh(client, 0.0)
        return client

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
