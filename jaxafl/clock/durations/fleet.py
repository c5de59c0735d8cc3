"""Differences between devices: some are stragglers, and devices have hours."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxafl.clock.durations.duration import Draw, Duration, Run, stream_keys, worked
from jaxafl.device import float64_on_cpu
from jaxafl.device.keys import Purpose, below, per_client, purpose_key, seed_key, uniform
from jaxafl.options import Number, UserError, as_numbers, number, static


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
            listed = np.ravel(as_numbers("stragglers", "clients", self.clients))
            object.__setattr__(self, "clients", tuple(map(int, listed)))
        super().__post_init__()

    def check(self, num_clients: int) -> None:
        wrong = [one for one in self.clients or () if not 0 <= one < num_clients]
        if wrong:
            raise UserError(f"stragglers: client {wrong[0]} does not exist; expected 0 .. {num_clients - 1}")

    def prepare(self, keys: Sequence[Array], num_clients: int) -> Array:
        if self.clients is not None:
            listed = np.isin(np.arange(num_clients), self.clients)
            return jnp.where(listed, jnp.asarray(self.factor, jnp.float64), 1.0)
        order = jnp.argsort(uniform(per_client(keys[0], jnp.arange(num_clients)), jnp.float64))
        count = jnp.round(jnp.asarray(self.share, jnp.float64) * num_clients)
        slow = jnp.zeros(num_clients, bool).at[order].set(jnp.arange(num_clients) < count)
        return jnp.where(slow, jnp.asarray(self.factor, jnp.float64), 1.0)

    def draw(self, prepared: Array, run: Run) -> Draw:
        return worked(prepared[run.client])


class available(Duration):
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

    waits = True

    def prepare(self, keys: Sequence[Array], num_clients: int) -> tuple[Array, Array, Array]:
        drawn = below(per_client(keys[0], jnp.arange(num_clients, dtype=jnp.int32))[0], jnp.uint32(self.zones))
        begin, end = (jnp.broadcast_to(jnp.float64(hour), num_clients) for hour in (self.begin, self.end))
        length = (end - begin) % 24
        length = jnp.where(length == 0, 24.0, length)  # 0 to 24 is the day, too
        return begin, length, drawn * (24 / self.zones) + self.start

    def hours_of(self, seed: int, num_clients: int) -> Callable[[float], np.ndarray]:
        """Returns a function now -> seconds until each client's hours begin, float64 [N], for hours of a clock."""
        with float64_on_cpu():
            keys = stream_keys(purpose_key(seed_key(seed), Purpose.HOURS), self)
            begin, length, zone = (np.asarray(each) for each in self.prepare(keys, num_clients))
        hour = float(self.day) / 24

        def waiting(now: float) -> np.ndarray:
            since = (now / hour + zone - begin) % 24
            return np.where(since < length, 0.0, 24 - since) * hour

        return waiting

    def draw(self, prepared: tuple[Array, Array, Array], run: Run) -> Draw:
        begin, length, zone = (values[run.client] for values in prepared)
        hour = jnp.asarray(self.day, jnp.float64) / 24
        since = (run.now / hour + zone - begin) % 24  # hours since the client's last begin
        wait = jnp.where(since < length, 0.0, 24 - since) * hour
        return Draw(jnp.zeros_like(wait), wait)
