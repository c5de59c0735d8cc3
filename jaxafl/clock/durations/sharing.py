"""Transfers that share the server's link: processor sharing, exact event by event.

Each of the n transfers under way gets B/n bytes per second. Let V be the bytes that a transfer would have got which is
under way all the time. It grows at B/n, and a transfer of b bytes that begins at V ends at V + b, whatever else begins
or ends meanwhile.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush

from jaxafl.clock.fleet import NEVER, LocalRun

_DOWN, _UP = 0, 1


class Sharing:
    """Downloads, work and uploads of the runs in flight."""

    def __init__(self, speed: float, up: float, down: float) -> None:
        """Takes the speed B in bytes per second, and the bytes of an upload and of a download."""
        self.speed, self.up, self.down = speed, up, down
        self.bytes, self.since = 0.0, 0.0  # V at the time of the last change of n
        self.transfers: list[tuple[float, int, int, int]] = []  # heap of V at the end, client, end, run_id
        self.works: list[tuple[float, int, int]] = []  # heap of time at the end, client, run_id
        self.runs: dict[int, tuple[LocalRun, float]] = {}  # in flight with the seconds of their work, by run_id
        self.under_way: set[int] = set()  # run_ids of the n transfers

    def begin(self, now: float, run: LocalRun, seconds: float) -> LocalRun:
        """Begins the download of a run that works for some seconds, and returns the run, whose end is not known."""
        self._serve(now)
        run = run._replace(arrived=NEVER if seconds == NEVER else math.nan)
        self.runs[run.run_id] = run, seconds
        self._transfer(run, self.down, _DOWN)
        return run

    def time(self, now: float) -> float:
        """Returns the time of the next end of a transfer or of work."""
        while self.transfers and self.transfers[0][-1] not in self.runs:
            heappop(self.transfers)
        while self.works and self.works[0][-1] not in self.runs:
            heappop(self.works)
        return min(self._transferred(now), self.works[0][0] if self.works else NEVER)

    def advance(self, now: float) -> LocalRun | None:
        """Ends the next transfer or work, and returns the run if it arrives by that."""
        end = self._transferred(now)
        if self.works and self.works[0][0] < end:
            time, _, run_id = heappop(self.works)
            self._serve(time)
            self._transfer(self.runs[run_id][0], self.up, _UP)
            return None
        due, client, which, run_id = heappop(self.transfers)
        self._serve(end)
        self.bytes = due  # without rounding
        self.under_way.discard(run_id)
        if which == _UP:
            return self.runs.pop(run_id)[0]._replace(arrived=end)
        if (seconds := self.runs[run_id][1]) < NEVER:
            heappush(self.works, (end + seconds, client, run_id))
        return None

    def stop(self, now: float, run: LocalRun) -> None:
        """Ends the transfer of a run that is stopped."""
        if run.run_id in self.under_way:
            self._serve(now)
            self.under_way.discard(run.run_id)
        del self.runs[run.run_id]

    def together(self, seconds: list[float]) -> list[float]:
        """Returns the seconds until the arrivals of runs that begin at one instant, while there are no others.

        All downloads are equally long, so that they end together. Uploads are equally long too, so that they end in the
        order in which they begin.

        Args:
            seconds: seconds of work of each.
        """
        begins = [len(seconds) * self.down / self.speed + one for one in seconds]
        order = sorted(range(len(begins)), key=begins.__getitem__)
        first = [*(begins[place] for place in order), NEVER]
        due: list[float] = []  # V at the ends of the uploads that have begun
        ends: list[float] = []
        served = now = 0.0
        while len(ends) < len(due) or first[len(due)] < NEVER:
            under_way = len(due) - len(ends)
            ending = now + (due[len(ends)] - served) * under_way / self.speed if under_way else NEVER
            if ending <= first[len(due)]:
                served, now = due[len(ends)], ending
                ends.append(now)
            else:
                time = first[len(due)]
                served, now = served + (time - now) * self.speed / max(under_way, 1), time
                due.append(served + self.up)
        found = dict(zip(order, ends, strict=False))
        return [found.get(place, NEVER) for place in range(len(seconds))]

    def _transferred(self, now: float) -> float:
        """Returns the time of the next end of a transfer."""
        if not self.under_way:
            return NEVER
        return max(self.since + (self.transfers[0][0] - self.bytes) * len(self.under_way) / self.speed, now)

    def _transfer(self, run: LocalRun, size: float, end: int) -> None:
        heappush(self.transfers, (self.bytes + size, run.client, end, run.run_id))
        self.under_way.add(run.run_id)

    def _serve(self, now: float) -> None:
        """Advances V to the time now."""
        if self.under_way:
            self.bytes += (now - self.since) * self.speed / len(self.under_way)
        self.since = now
