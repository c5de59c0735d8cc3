"""Ticks at which every upload and every download may fail: the clock of AUDG and PSURDG."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from jaxafl.clock.checks import check_masks, check_probability
from jaxafl.clock.contract import Fault, ServerStep, Workload, first_fault, no_fault
from jaxafl.keys import Key, Purpose, purpose_key, threefry, uniform
from jaxafl.pytrees import leaf, pytree

Array = jax.Array


class State(NamedTuple):
    """The clock between two ticks; what each client offers, [N]."""

    tick: Array
    dispatches: Array
    version: Array
    run: Array
    dispatch: Array
    since: Array  # the tick at which the client downloaded
    fault: Fault
    upload_key: Key
    download_key: Key


@pytree
class Bernoulli:
    """See `bernoulli`."""

    p: Any
    q: Any = 1.0
    uploads: Any = None
    downloads: Any = None

    name: ClassVar[str] = "bernoulli"
    references: ClassVar[tuple[str, ...]] = ("hao2025",)

    def check(self, num_clients: int) -> None:
        check_probability("bernoulli", "p", self.p, num_clients)
        check_probability("bernoulli", "q", self.q, num_clients)
        check_masks("bernoulli", "uploads", self.uploads, num_clients)
        check_masks("bernoulli", "downloads", self.downloads, num_clients)

    def capacity(self, num_clients: int) -> int:
        return num_clients

    def in_flight(self, num_clients: int) -> int:
        return num_clients

    def ring_slots(self, num_clients: int) -> int:
        return num_clients + 1

    def init(self, key: Key, num_clients: int) -> State:
        clients = jnp.arange(num_clients, dtype=jnp.int32)
        zero = jnp.zeros_like(clients)
        return State(
            tick=jnp.int32(0),
            dispatches=jnp.int32(num_clients),
            version=zero,
            run=zero,
            dispatch=clients,
            since=zero,
            fault=no_fault(),
            upload_key=purpose_key(key, Purpose.UPLOAD),
            download_key=purpose_key(key, Purpose.DOWNLOAD),
        )

    def next(self, state: State, workload: Workload) -> tuple[State, ServerStep]:
        """One tick: uploads act on x_t, then those who succeeded download x_{t+1}, or fail to."""
        clients = jnp.arange(workload.num_clients, dtype=jnp.int32)
        uploads, missing_uploads = _successes(self.uploads, self.p, state.upload_key, clients, state.tick)
        downloads, missing_downloads = _successes(self.downloads, self.q, state.download_key, clients, state.tick)
        time = (state.tick + 1).astype(jnp.float64)
        step = ServerStep(
            time, uploads, clients, state.run, state.dispatch, state.version, state.version,
            jax.vmap(workload.local_steps)(clients, state.run).astype(jnp.int32),
            state.since.astype(jnp.float64), jnp.full(clients.shape, time),
            jnp.ones_like(clients), jnp.zeros_like(clients),
        )  # fmt: skip
        fresh = uploads & downloads
        rank = jnp.cumsum(fresh, dtype=jnp.int32)
        code = jnp.where(missing_uploads | missing_downloads, 6, 0).astype(jnp.int32)
        return state._replace(
            tick=state.tick + 1,
            dispatches=state.dispatches + rank[-1],
            version=jnp.where(fresh, state.tick + 1, state.version),
            run=state.run + fresh,
            dispatch=jnp.where(fresh, state.dispatches + rank - 1, state.dispatch),
            since=jnp.where(fresh, state.tick + 1, state.since),
            fault=first_fault(state.fault, no_fault()._replace(code=code, round=state.tick)),
        ), step

    def fault(self, state: State) -> Fault:
        return state.fault


def bernoulli(p: Any, q: Any = 1.0) -> Bernoulli:
    """At every tick each client's upload succeeds with probability p_i; then it downloads, with success q_i.

    A client offers the same update at every tick until an upload succeeds; then it downloads x_{t+1} and trains again.
    If that download fails it keeps its version, offers the same update again, and the download is retried after its
    next successful upload. Tick t acts on x_t and its time is t + 1; a tick without arrivals is a server step. With q =
    1 the staleness is geometric with mean 1/p_i - 1; with failing downloads the mean is 1/(p_i q_i) - 1.

    Args:
        p: probability in [0, 1] that an upload succeeds, a number or one per client [N].
        q: the same of a download.

    References:
        "The impact analysis of delays in asynchronous federated learning with data heterogeneity for edge
        intelligence", section II and eq. (1).
    """
    return Bernoulli(leaf(p, "bernoulli", "p"), leaf(q, "bernoulli", "q"))


def _successes(recorded: Any, probability: Any, key: Key, clients: Array, tick: Array) -> tuple[Array, Array]:
    """bool [N], and whether the recording has run out."""
    if recorded is not None:
        table = jnp.asarray(recorded).astype(bool)
        return table[jnp.minimum(tick, table.shape[0] - 1)], tick >= table.shape[0]
    draw = uniform(threefry(key, clients, jnp.broadcast_to(tick, clients.shape)), jnp.float64)
    return draw < probability, jnp.bool_(False)
