"""Differences between devices: some are stragglers, and devices have hours, by the clock or recorded."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxafl.clock.durations.duration import Draw, Duration, Hours, Run, share_of, worked
from jaxafl.device.keys import below, per_client
from jaxafl.options import Number, UserError, number, recording, static

Intervals = tuple[Any, Any, Any]  # begin [..., K], end [..., K] and period [...] in seconds


class stragglers(Duration):
    """Factor of slow clients, and 1 for the others: `uniform(1, 5) * stragglers(0.1, factor=10)`.

    The clients are drawn once per seed, or listed. Every run of a slow client is slow, for the complete simulation.

    Args:
        share: share of slow clients in [0, 1]; round(share · N) clients are drawn without replacement.
        factor: factor of their durations, at least 0, without unit.
        clients: indices of the slow clients, instead of a draw; `share` has no effect.
    """

    share: Number = number(default=0.1, least=0, most=1)
    factor: Number = number(default=10.0, least=0)
    clients: Sequence[int] | None = static(default=None)

    def __post_init__(self) -> None:
        if self.clients is not None:
            object.__setattr__(self, "clients", tuple(np.ravel(self.clients).tolist()))
        super().__post_init__()

    def check(self, num_clients: int) -> None:
        listed = self.clients or ()
        if len({*range(num_clients)}.intersection(listed)) < len(listed):
            raise UserError(f"stragglers: clients={listed}; expected different clients, 0 .. {num_clients - 1}")

    def prepare(self, keys: Sequence[Array], num_clients: int) -> Array:
        order = jnp.argsort(share_of(keys[0], jnp.arange(num_clients)))
        count = jnp.round(jnp.float64(self.share) * num_clients)
        slow = jnp.zeros(num_clients, bool).at[order].set(jnp.arange(num_clients) < count)
        if self.clients is not None:
            slow = jnp.asarray(np.isin(np.arange(num_clients), self.clients))
        return jnp.where(slow, jnp.float64(self.factor), 1.0)

    def draw(self, prepared: Array, run: Run) -> Draw:
        return worked(prepared[run.client])


class available(Hours):
    """Wait at the start of a run until the client's hours begin: `uniform(60, 300) + available(22, 6, zones=4)`.

    The client keeps its place in flight while it waits, and trains from the model that it downloaded before. As
    `hours=available(22, 6)` of `free_running` or `synchronous`, it is not drawn outside its hours instead. A run that
    has begun goes on beyond the hours. Waiting counts as hanging, not as work. Simulated time 0 is the hour `start`, by
    default midnight, in zone 0.

    Args:
        begin: hour of the day at which the client becomes available, in [0, 24]; a number or an array [N].
        end: hour of the day until which it is available, in [0, 24]; a number or an array [N]. An end before the begin
            means the next day. Equal hours, and 0 to 24, mean always.
        zones: number of time zones. In zone k it is k · 24/zones hours later; a client's zone is drawn once per seed.
        day: simulated seconds of a day, above 0.
        start: hour of the day in zone 0 at simulated time 0, in [0, 24).
    """

    begin: Number = number(least=0, most=24, per_client=True)
    end: Number = number(least=0, most=24, per_client=True)
    zones: int = static(default=1)
    day: Number = number(default=86400.0, above=0)
    start: Number = number(default=0.0, least=0, below=24)

    def prepare(self, keys: Sequence[Array], num_clients: int) -> tuple[Array, Array, Array]:
        drawn = below(per_client(keys[0], jnp.arange(num_clients, dtype=jnp.int32))[0], jnp.uint32(self.zones))
        begin, end = (jnp.broadcast_to(jnp.float64(hour), num_clients) for hour in (self.begin, self.end))
        length = (end - begin) % 24
        length = jnp.where(length == 0, 24.0, length)  # 0 to 24 is the day, too
        return begin, length, drawn * (24 / self.zones) + self.start

    def until(self, numpy: Any, prepared: Any, now: Any) -> Any:
        begin, length, zone = prepared
        hour = numpy.asarray(self.day, numpy.float64) / 24
        since = (now / hour + zone - begin) % 24  # hours since the client's last begin
        return numpy.where(since < length, 0.0, 24 - since) * hour


class activity(Hours):
    """Hours of recorded devices: `free_running(10, hours=activity("devices.json"), durations=...)`.

    Client i is device i mod D of the file. It is active at time t if begin_k <= t mod P <= end_k for one of its
    intervals k. A client is drawn only while it is active. As a term of durations, a run waits for the next interval
    instead, and nothing is lost.

    Args:
        file: JSON of FedScale's form, `{id: {"active": [begins], "inactive": [ends], "finish_time": P}}`, in seconds.
            A pickle of FedScale becomes JSON by `json.dump(pickle.load(open("client_behave_trace", "rb")), file)`.
        loses: as hours, an update is lost if its client is not active when its run ends, as in FedScale.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file has another form.

    References:
        Lai et al., "FedScale: Benchmarking model and system performance of federated learning at scale", ICML 2022.
    """

    file: str | os.PathLike[str] = static()
    loses: bool = static(default=True)
    _source: Any = static(default=None, kw_only=True)  # the file whose content the copies of this part have
    _devices: Any = recording(default=None, compare=False)  # that content, so that another one is another option

    def __post_init__(self) -> None:
        if self._source != self.file:
            object.__setattr__(self, "_source", self.file)
            object.__setattr__(self, "_devices", _read(self.file))
        super().__post_init__()

    @property
    def day(self) -> float:
        """Longest period of a device in seconds."""
        return float(self._devices[:, -1].max())

    def prepare(self, keys: Sequence[Array], num_clients: int) -> Intervals:
        rows = self._devices[np.arange(num_clients) % len(self._devices)]
        half = rows.shape[1] // 2
        return rows[:, :half], rows[:, half:-1], rows[:, -1]

    def until(self, numpy: Any, prepared: Any, now: Any) -> Any:
        begin, end, period = prepared
        phase = (now % period)[..., None]
        inside = ((begin <= phase) & (phase <= end)).any(-1)
        return numpy.where(inside, 0.0, ((begin - phase) % period[..., None]).min(-1))


def _read(file: str | os.PathLike[str]) -> np.ndarray:
    """Reads begins, ends and period of all devices, [D, 2K + 1]; shorter lists repeat their last interval."""
    try:
        devices = list(json.loads(pathlib.Path(file).read_text()).values())
        rows = [[np.asarray(one[name], np.float64) for name in ("active", "inactive")] for one in devices]
        period = np.array([one["finish_time"] for one in devices], np.float64)
        longest = max(len(begin) for begin, _ in rows)
        padded = [[np.pad(side, (0, longest - len(side)), "edge") for side in row] for row in rows]
        begin, end = np.swapaxes(padded, 0, 1)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"activity: {file} has another form ({error!r}); expected JSON of FedScale's form, see afl.clock.activity"
        ) from error
    if not (period > 0).all() or not ((begin >= 0) & (begin <= end) & (end <= period[:, None])).all():
        raise UserError(
            f"activity: {file}: expected 0 <= active <= inactive <= finish_time for every interval, above 0"
        )
    return np.column_stack([begin, end, period])
