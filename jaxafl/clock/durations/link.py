"""Transfers over links with a speed, of one's own or shared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import ndtri

from jaxafl.clock.durations.duration import Draw, Duration, Run, of_client, share_of, worked
from jaxafl.clock.fleet import NEVER, LocalRun
from jaxafl.clock.options import fail_if
from jaxafl.options import Number, number, recording

_DOWN, _UP = 0, 1


class link(Duration):
    """Download before a run and upload after it: `uniform(60, 300) + link(up=1e6, down=5e6)`.

    A transfer of b bytes at v bytes per second takes b/v · e^(σZ - σ²/2) seconds, with Z ~ N(0, 1) drawn for every
    transfer, so that b/v is the mean. The bytes are those that the run sends: trained parameters and non-trainable
    state in their precision, without frozen parameters; up, as few as `Client(upload=...)` leaves.

    With `shared`, all transfers share the link of the server: each of the n transfers under way, up or down, gets B/n
    bytes per second, and n changes whenever one begins or ends. The other terms of the sum are the run's time between
    its download and its upload. The transfers of a stopped run end with it.

    Args:
        up: speed of uploads in bytes per second, above 0; a number or an array [N].
        down: speed of downloads in bytes per second, above 0; a number or an array [N]. `None` is `up`.
        sigma: standard deviation σ of the logarithm of a transfer's time, at least 0.
        shared: speed B of the server's link in bytes per second, above 0, instead of `up`, `down` and `sigma`.
        bytes: bytes of a transfer instead of those of the model, at least 0.
    """

    up: Number | None = number(default=None, above=0, per_client=True)
    down: Number | None = number(default=None, above=0, per_client=True)
    sigma: Number = number(default=0.0, least=0)
    shared: Number | None = number(default=None, above=0, kw_only=True)
    bytes: Number | None = number(default=None, least=0, kw_only=True)
    _sent: Any = recording(default=None)  # (up, down) of a simulation, instead of `bytes`

    terms = 2

    def check(self, num_clients: int) -> None:
        several = self.up is not None or self.down is not None or np.any(self.sigma)
        fail_if("link", [
            (self.shared is None and self.up is None, "no speed is given; expected up=... in bytes per second, or "
             "shared=..., the speed of the link of the server. Give one of them"),
            (self.shared is not None and bool(several), "with shared=B all transfers have equal shares of B; expected "
             "neither up, down nor sigma. Leave them out, or give shared=None"),
            (self.bytes is None and self._sent is None, "the bytes of a transfer are unknown without a model; expected "
             "a clock of a Simulation. Give bytes=..., or run it in one"),
        ])  # fmt: skip

    @property
    def sent(self) -> Any:
        """Bytes of an upload and of a download."""
        return (self.bytes, self.bytes) if self._sent is None else self._sent

    def transport(self) -> Any:
        if self.shared is None:
            return None
        up, down = (float(one) for one in self.sent)
        return Sharing(float(np.asarray(self.shared)), up, down)

    def prepare_size(self, size: Callable[[], tuple[int, int]]) -> link:
        return self if self.bytes is not None else dataclasses.replace(self, _sent=np.asarray(size(), float))

    def draw(self, prepared: Sequence[Array], run: Run) -> Draw:
        if self.up is None:  # `transport` times the transfers over a shared link
            return worked(jnp.zeros(jnp.shape(run.client)))
        sigma = jnp.float64(self.sigma)

        def transfer(key: Array, speed: Number, sent: Any) -> Array:
            normal = ndtri(share_of(key, run.client, run.run) + 2.0**-54)
            seconds = jnp.float64(sent) / of_client(speed, run.client)
            return seconds * jnp.exp(sigma * (normal - sigma / 2))

        down = self.up if self.down is None else self.down
        return worked(transfer(prepared[0], down, self.sent[1]) + transfer(prepared[1], self.up, self.sent[0]))


class Sharing:
    """Downloads, work and uploads of the runs in flight, by processor sharing, exact event by event.

    Each of the n transfers under way gets B/n bytes per second. Let V be the bytes that a transfer would have got which
    is under way all the time. It grows at B/n, and a transfer of b bytes that begins at V ends at V + b, whatever else
    begins or ends meanwhile.
    """

    def __init__(self, speed: float, up: float, down: float) -> None:
        """Takes the speed B in bytes per second, and the bytes of an upload and of a download."""
        self.speed, self.up, self.down = speed, up, down
        self.bytes, self.since = 0.0, 0.0  # V at the time of the last change of n
        self.transfers: list[tuple[Any, ...]] = []  # heap of V at the end, client, end, run_id
        self.works: list[tuple[Any, ...]] = []  # heap of time at the end, client, run_id
        self.runs: dict[int, tuple[LocalRun, float]] = {}  # in flight with the seconds of their work, by run_id
        self.under_way: set[int] = set()  # run_ids of the n transfers

    def begin(self, now: float, run: LocalRun, seconds: float) -> LocalRun:
        """Begins the download of a run that works for some seconds, and returns the run, whose end is not known."""
        self._serve(now)
        run = run._replace(arrived=NEVER if seconds == NEVER else np.nan)
        self.runs[run.run_id] = run, seconds
        self._transfer(run, self.down, _DOWN)
        return run

    def time(self, now: float) -> float:
        """Returns the time of the next end of a transfer or of work."""
        for heap in (self.transfers, self.works):
            while heap and heap[0][-1] not in self.runs:
                heappop(heap)
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
            run, seconds = self.runs.pop(run_id)
            return run._replace(arrived=end, work=end - run.started - (seconds - run.work))
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
        began = len(seconds) * self.down / self.speed
        begins = sorted((began + one, place) for place, one in enumerate(seconds) if one < NEVER)
        ends = [NEVER] * len(seconds)
        uploads: list[tuple[float, int]] = []  # under way: V at the end, place
        served = now = 0.0
        for time, place in [*begins, (NEVER, 0)]:
            while uploads:
                due, first = uploads[0]
                ending = now + (due - served) * len(uploads) / self.speed
                if ending > time:
                    break
                served, now, ends[first] = due, ending, ending
                del uploads[0]
            served, now = served + (time - now) * self.speed / max(len(uploads), 1), time
            uploads.append((served + self.up, place))
        return ends

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
