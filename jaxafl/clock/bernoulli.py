"""Ticks with uploads and downloads that may fail: the clock of AUDG and PSURDG."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from jaxafl.clock.checks import check_masks
from jaxafl.clock.contract import Clock, Delivery, FaultCode, Recording, Runs, ServerStep, Starts, Workload
from jaxafl.clock.starts import no_starts, replayed
from jaxafl.device.keys import Key, Purpose, purpose_key, threefry, uniform
from jaxafl.options import Number, number, recording

Array = jax.Array


class State(NamedTuple):
    """State of the clock between two ticks; arrays [N] describe the update that each client offers."""

    tick: Array
    version: Array
    run: Array
    run_id: Array
    since: Array  # tick of the client's last download
    starts: Starts
    upload_key: Key
    download_key: Key


class bernoulli(Clock):
    """Ticks at which client i's upload succeeds with probability p_i, and then its download with probability q_i.

    A client offers the same update at every tick until an upload succeeds; then it downloads x_{t+1} and trains again.
    If that download fails it keeps its version, offers the same update again, and the download is retried after its
    next successful upload. Tick t acts on x_t and its time is t + 1; a tick without arrivals is a server step. With q =
    1 the staleness is geometric with mean 1/p_i - 1; with failing downloads the mean is 1/(p_i q_i) - 1.

    Args:
        upload: probability p that an upload succeeds, in [0, 1]; a number or one per client [N].
        download: probability q that a download succeeds, in [0, 1]; a number or one per client [N].

    References:
        "The impact analysis of delays in asynchronous federated learning with data heterogeneity for edge
        intelligence", section II and eq. (1).
    """

    upload: Number = number(least=0, most=1, per_client=True)
    download: Number = number(default=1.0, least=0, most=1, per_client=True)
    uploads: Recording = recording(default=None)
    downloads: Recording = recording(default=None)

    references: ClassVar[tuple[str, ...]] = ("hao2025",)
    delivers: ClassVar[Delivery] = Delivery.STALE | Delivery.REPEATED | Delivery.EMPTY | Delivery.BY_CLIENT
    event_by_event: ClassVar[bool] = True
    takes_all: ClassVar[bool] = True

    def check(self, num_clients: int) -> None:
        check_masks(self.name, "uploads", self.uploads, num_clients)
        check_masks(self.name, "downloads", self.downloads, num_clients)

    def capacity(self, num_clients: int) -> int:
        return num_clients

    def init(self, key: Key, num_clients: int) -> State:
        clients = jnp.arange(num_clients, dtype=jnp.int32)
        zero = jnp.zeros_like(clients)
        return State(
            tick=jnp.int32(0),
            version=zero,
            run=zero,
            run_id=clients,
            since=zero,
            starts=no_starts(count=num_clients),
            upload_key=purpose_key(key, Purpose.UPLOAD),
            download_key=purpose_key(key, Purpose.DOWNLOAD),
        )

    def held(self, state: State) -> list[Array]:
        return [state.version]

    def next(self, state: State, workload: Workload) -> tuple[State, ServerStep]:
        """Computes one tick: uploads act on x_t, then clients whose upload succeeded try to download x_{t+1}."""
        clients = jnp.arange(workload.num_clients, dtype=jnp.int32)
        tick = jnp.broadcast_to(state.tick, clients.shape)

        def succeed(state: State, recorded: Recording, key: Key, probability: Number) -> tuple[State, Array]:
            def draw() -> Array:
                return uniform(threefry(key, clients, tick), jnp.float64) < probability

            return replayed(state, recorded, state.tick, FaultCode.MASKS_END, draw)

        state, uploads = succeed(state, self.uploads, state.upload_key, self.upload)
        state, downloads = succeed(state, self.downloads, state.download_key, self.download)
        time = (state.tick + 1).astype(jnp.float64)
        local_steps = jax.vmap(workload.local_steps)(clients, state.run).astype(jnp.int32)
        runs = Runs(
            clients, state.run, state.run_id, state.version, local_steps, state.since.astype(jnp.float64),
            jnp.full(clients.shape, time),
        )  # fmt: skip
        fresh = uploads & downloads
        rank = jnp.cumsum(fresh, dtype=jnp.int32)
        return state._replace(
            tick=state.tick + 1,
            version=jnp.where(fresh, state.tick + 1, state.version),
            run=state.run + fresh,
            run_id=jnp.where(fresh, state.starts.count + rank - 1, state.run_id),
            since=jnp.where(fresh, state.tick + 1, state.since),
            starts=state.starts._replace(count=state.starts.count + rank[-1]),
        ), ServerStep(time, uploads, runs)
