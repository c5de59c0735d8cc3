"""Ringleader ASGD, steps along the mean over clients of the mean of their newest gradients."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxafl.clock.contract import Delivery
from jaxafl.device import Rows, buffers
from jaxafl.options import number
from jaxafl.server.algorithms.last_updates import in_turn, replaced
from jaxafl.server.contract import Array, Arrivals, Needs, Outcome, Server, Tree, stepped
from jaxafl.server.scheduled import Rate

_STORED = 2  # kind of the updates that belong to the next round, see `jaxafl.clock.ringleader.kinds`


class RingleaderState(NamedTuple):
    """Tables of this round and of the next one; the rounds alternate between two sides."""

    table: Rows  # mean update of client i on side s in row 2i + s
    counts: Array  # int32 [2N], number b of updates in each row
    mean: Tree  # (1/N) Σ_i of the rows of each side, each leaf [2, ...]
    steps: Array  # int32, server steps, N in a round


class ringleader(Server):
    """Ringleader ASGD: x ← x + η (1/N) Σ_i (1/b_i) Σ_{j <= b_i} Δ_ij over a table of the last updates of all clients.

    The clock `ringleader` collects at least one update of every client. Then a round has one step for each client, with
    the client's update of this moment added to the table. Updates that a client sends after its step belong to the
    table of the next round. All updates of a row start from one version, each client has the same weight however fast
    it is, and no update is discarded. The paper takes one gradient per run: `Client(optax.sgd, learning_rate=1.0,
    steps=1)`, so that Δ = -∇f_i; several local steps are our extension. Keeps two rows of parameters per client.
    Checked against the authors' poster.

    Args:
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps. Theory: min(1/(8NL),
            εB/(10Lσ²)) with the smallest harmonic mean B of the b_i (quoted from a third party).

    References:
        Maranjyan & Richtárik, "Ringleader ASGD: the first asynchronous SGD with optimal time complexity under data
        heterogeneity", ICLR 2026.
    """

    learning_rate: Rate = number(default=0.1, least=0)

    requires = Delivery.KINDS | Delivery.CONTINUOUS | Delivery.HELD
    accepts = Delivery.STALE
    references = ("maranjyan2026",)
    needs = Needs(client_rows=2)

    def init(self, params: Tree, samples: Array) -> RingleaderState:
        nothing, rows = optax.tree.zeros_like(params), 2 * len(samples)
        sides = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), nothing)
        return RingleaderState(Rows.filled(nothing, rows), jnp.zeros(rows, jnp.int32), sides, jnp.int32(0))

    def begun(self, state: RingleaderState) -> RingleaderState:
        return RingleaderState(state.table, *optax.tree.zeros_like(state[1:]))  # the tables of a new round are empty

    def update(self, params: Tree, state: RingleaderState, arrivals: Arrivals) -> Outcome:
        clients = len(state.counts) // 2  # also the number of server steps in a round
        now = state.steps // clients % 2  # side of this round
        side = jnp.where(arrivals.kind == _STORED, 1 - now, now)
        row = 2 * arrivals.client + side
        before, last = in_turn(jnp.where(arrivals.mask, row, -1))
        counts = state.counts.at[jnp.where(arrivals.mask, row, 2 * clients)].add(1, mode="drop")
        some = state.counts[row] > 0
        held = state.table.read_many(row)
        held = jax.tree.map(lambda leaf: jnp.where(buffers.expand(some, leaf), leaf, 0), held)

        def enter(entry: Array, entered: tuple[Array, Tree]) -> tuple[Array, Tree]:
            first, delta = (state.counts[row[entry]], buffers.read(held, entry)), buffers.read(arrivals.delta, entry)
            earlier = buffers.read(entered, jnp.maximum(before[entry], 0))
            number, mean = optax.tree.where(before[entry] < 0, first, earlier)
            new = jax.tree.map(lambda m, d: m + (d - m) / (number + 1).astype(m.dtype), mean, delta)
            return buffers.write(entered, entry, (number + 1, new))

        _, means = jax.lax.fori_loop(0, len(row), enter, optax.tree.zeros_like((row, held)))
        entered = replaced(state.table, row, arrivals.mask, before, last, held, means)
        sides = [entered.change((side == one) / clients) for one in range(2)]
        mean = jax.tree.map(lambda old, *changes: old + jnp.stack(changes), state.mean, *sides)
        params = stepped(params, self.learning_rate, jax.tree.map(lambda leaf: leaf[now], mean))
        ends = (state.steps + 1) % clients == 0
        left = ends & (jnp.arange(2) == now)  # the table of a round that ends is emptied
        after = RingleaderState(
            entered.table,
            jnp.where(jnp.tile(left, clients), 0, counts),
            jax.tree.map(lambda leaf: jnp.where(buffers.expand(left, leaf), 0, leaf), mean),
            state.steps + 1,
        )
        return Outcome(params, after)
