"""Servers with a row per client: AREA, CA²FL, and MIFA, IA²SGD, ACE and ACED, which step along the mean of all rows."""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxafl.clock.contract import STARTS, Delivery
from jaxafl.device import Rows
from jaxafl.options import Number, number, static
from jaxafl.server.algorithms.checks import check_everyone
from jaxafl.server.algorithms.last_updates import enter
from jaxafl.server.contract import TICKS, Array, Arrivals, Needs, Outcome, Server, Tree, counts, stepped
from jaxafl.server.scheduled import Rate


class TableState(NamedTuple):
    """Last update of every client, and their mean."""

    table: Rows  # last update of client i, 0 before the first
    mean: Tree  # (1/N) Σ_i table_i, shaped like the parameters
    stamp: Array  # int32 [N], server step of the last arrival; -1 before the first


class _Incremental(Server):
    """Base of servers with x ← x + η v, v = (1/N) Σ_i Δ_i over the last updates of all clients."""

    learning_rate: Rate = number(default=1.0, least=0)

    needs = Needs(client_rows=1)
    bounded = True  # a step has each client's last update once, so noise of its sensitivity covers it

    def steps(self, before: Array, after: Array) -> Array:
        """Returns True if a server step moves the model, from the stamps [N] before and after its arrivals."""
        return jnp.all(before >= 0) | (jnp.all(before < 0) & jnp.all(after >= 0))

    def stamps(self, arrivals: Arrivals) -> Array:
        """Returns the stamps of the arrivals, int32 [A]."""
        return jnp.broadcast_to(arrivals.step, arrivals.client.shape)

    def direction(self, state: TableState, arrivals: Arrivals) -> Tree:
        """Returns v, from the state after the arrivals."""
        return state.mean

    def weigh(self, state: TableState, arrivals: Arrivals) -> Array:
        """Returns the weights of the arrivals' batch statistics in a step that moves the model, float [A]."""
        return counts(arrivals)

    def init(self, params: Tree, samples: Array) -> TableState:
        nothing = optax.tree.zeros_like(params)
        return TableState(Rows.filled(nothing, len(samples)), nothing, jnp.full(len(samples), -1, jnp.int32))

    def begun(self, state: TableState) -> TableState:
        return state._replace(stamp=jnp.minimum(state.stamp, 0))  # as if all had arrived when the phase began

    def update(self, params: Tree, state: TableState, arrivals: Arrivals) -> Outcome:
        entered = enter(state.table, arrivals, arrivals.delta)
        mean = stepped(state.mean, 1 / state.table.count, entered.change())
        place = jnp.where(arrivals.mask, arrivals.client, state.table.count)  # padding is dropped
        stamp = state.stamp.at[place].max(self.stamps(arrivals), mode="drop")
        moves = self.steps(state.stamp, stamp)
        after = TableState(entered.table, mean, stamp)
        rate = jnp.where(moves, self.learning_rate, 0).astype(arrivals.loss.dtype)
        params = stepped(params, rate, self.direction(after, arrivals))
        return Outcome(params, after, {"server_rate": rate}, weights=jnp.where(moves, self.weigh(after, arrivals), 0))


class mifa(_Incremental):
    """MIFA: rounds with x ← x + η (1/N) Σ_{i=1..N} Δ_i over ALL clients, Δ_i the last update of client i.

    An inactive client counts by its last update, so its absence does not bias the model. In the paper the table holds
    Δ_i/η_l and the rate is η_t, so η = η_t/η_l here, for a constant local rate. Active clients come from `synchronous`
    or from the ticks of `bernoulli`; single arrivals (`free_running`) are our extension. A round without arrivals steps
    along the table. Keeps one row of parameters per client. Checked against the authors' code.

    Args:
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps.
        wait: keep the model at x_0 until all clients have been active once. The round that completes the table does not
            step, as in the authors' code, unless it is the first one. These rounds count as versions, except on
            `warm_up(synchronous(cohort=n), first="next")`. With `False` a client counts as 0 before its first update.

    References:
        Gu et al., "Fast federated learning in the presence of arbitrary device unavailability", NeurIPS 2021.
    """

    wait: bool = static(default=True)

    accepts = STARTS | Delivery.MULTIPLE | TICKS
    references = ("gu2021",)
    needs = Needs(client_rows=1, empty_steps=True)

    def steps(self, before: Array, after: Array) -> Array:
        return super().steps(before, after) | (not self.wait)


class _Always(_Incremental):
    """Base of servers for clients that train all the time."""

    learning_rate: Rate = number(default=0.1, least=0)

    requires = Delivery.CONTINUOUS
    accepts = Delivery.STALE

    check = check_everyone


class ia2sgd(_Always):
    """IA²SGD, also known as DuDe-ASGD: x ← x - η (1/N) Σ_{i=1..N} g_i at every arrival, g_i the last gradient of i.

    The model stays at x_0 until every client has arrived once, and in the step of the arrival that completes the
    table, unless it is the first one. On `warm_up(free_running(concurrency=N), first="next")` these arrivals make no
    version, as in the authors' code; on `free_running(concurrency=N)` each makes one. All clients are always in flight.
    One gradient per run is `Client(optax.sgd, learning_rate=1.0, steps=1)`, so that Δ_i = -g_i; several local steps are
    our extension. Keeps one row of parameters per client. Checked against the code of Ringleader's authors, in which it
    is a baseline.

    Args:
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps.

    References:
        Wang et al., "Dual-delayed asynchronous SGD for arbitrarily heterogeneous data", 2024.
    """

    references = ("wang2024dude",)


class ace(_Always):
    """ACE: x ← x - η (1/N) Σ_{i=1..N} g_i at every arrival, g_i the last gradient of i, as soon as all have arrived.

    In the paper all clients compute ∇f_i(x_0) first, x_1 = x_0 - η · mean, and all start again from x_1: this is
    `warm_up(free_running(concurrency=N), first="all")`. On `free_running(concurrency=N)` the model stays at x_0 until
    every client has arrived once. The arrival that completes the table steps with the full mean; clients in flight at
    that time still compute at x_0. All clients are always in flight. One gradient per run is `Client(optax.sgd,
    learning_rate=1.0, steps=1)`; several local steps are our extension. Keeps one row of parameters per client. Checked
    against the first author's code, in which we take the method called AC-AFL for ACE.

    Args:
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps.

    References:
        Chang et al., "Mitigating participation imbalance bias in asynchronous federated learning", 2025.
    """

    references = ("chang2025",)

    def steps(self, before: Array, after: Array) -> Array:
        return jnp.all(after >= 0)


class aced(ace):
    """ACED: x ← x - η (1/|A|) Σ_{i in A} g_i at every arrival, A = {i : t - s_i <= τ_max}, g_i the last gradient of i.

    It is `ace` without the gradients of clients that have been silent for long. An empty A changes nothing. The
    authors' loop steps after every N arrivals, as this server does on `free_running(buffer=N)`, where ages count these
    steps; their paper steps at every arrival. Checked against the first author's code, in which we take the method
    called BDA for ACED.

    Args:
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps.
        max_age: largest age τ_max of a gradient that counts, in server steps; at least 0. `None` uses N, as the
            authors' code does.
        age: start s_i of the age. `"dispatch"`: server step of the last arrival of client i, which then receives the
            model again, as in the authors' code. `"row"`: version at which g_i was computed.

    References:
        Chang et al., "Mitigating participation imbalance bias in asynchronous federated learning", 2025.
    """

    max_age: Number | None = number(default=None, least=0)
    age: Literal["dispatch", "row"] = static(default="dispatch")

    bounded = True

    def stamps(self, arrivals: Arrivals) -> Array:
        started = super().stamps(arrivals)
        return started if self.age == "dispatch" else started - arrivals.staleness

    def active(self, state: TableState, step: Array) -> Array:
        """Returns True for the clients in A, bool [N]."""
        return step - state.stamp <= (state.table.count if self.max_age is None else self.max_age)

    def weigh(self, state: TableState, arrivals: Arrivals) -> Array:
        return jnp.where(self.active(state, arrivals.step)[arrivals.client], counts(arrivals), 0)

    def direction(self, state: TableState, arrivals: Arrivals) -> Tree:
        active = self.active(state, arrivals.step)
        total = jnp.maximum(jnp.sum(active), 1)
        return state.table.weighted_sum((active / total).astype(arrivals.loss.dtype))


class area(Server):
    """AREA: x ← x + (1/N) Σ_{i arrived} (x_i - y_i), then y_i ← x_i, with y_i = x_0 at first.

    y_i is the last model that client i sent, so x is the mean of all y. A fast client replaces its share instead of
    adding to it, so unequal speeds do not bias the model. The paper's server steps at exponential times:
    `free_running(concurrency=N, period=P, windows="poisson")`. Other arrivals are our extension. Keeps one model per
    client. Checked against the code of APPFL.

    References:
        Iakovidou and Kim, "Asynchronous federated stochastic optimization for heterogeneous objectives under arbitrary
        delays", 2024.
    """

    accepts = STARTS | Delivery.MULTIPLE
    references = ("iakovidou2024",)
    needs = Needs(base=True, client_rows=1)

    def init(self, params: Tree, samples: Array) -> Rows:
        return Rows.filled(params, len(samples))

    def update(self, params: Tree, state: Rows, arrivals: Arrivals) -> Outcome:
        entered = enter(state, arrivals, arrivals.models)
        return Outcome(stepped(params, 1 / state.count, entered.change()), entered.table)


class CA2FLState(NamedTuple):
    """Cached updates and their mean."""

    cache: Rows  # h_i, the last update of client i, 0 before the first
    mean: Tree  # h̄ = (1/N) Σ h_i, shaped like the parameters


class ca2fl(Server):
    """CA²FL: cached update calibration, in which a cached update replaces that of each client that does not arrive.

    h_i = 0 at first. On arrival D ← D + Δ_i - h_i, then h_i ← Δ_i. At M arrivals v = h̄ + D/M with h̄ = (1/N) Σ h_i
    from BEFORE this buffer; x ← x + η v; then h̄ is refreshed and D = 0. Taken literally, a client that arrives twice
    in one buffer contributes only its last Δ. Keeps one row of parameters per client. Δ is measured against x_s.

    Args:
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps.

    References:
        Wang et al., "Tackling the data heterogeneity in asynchronous federated learning with cached update
        calibration", ICLR 2024.
    """

    learning_rate: Rate = number(default=1.0, least=0)

    accepts = STARTS | Delivery.MULTIPLE
    buffer = 10
    references = ("wang2024ca2fl",)
    needs = Needs(client_rows=1)

    def init(self, params: Tree, samples: Array) -> CA2FLState:
        nothing = optax.tree.zeros_like(params)
        return CA2FLState(Rows.filled(nothing, len(samples)), nothing)

    def update(self, params: Tree, state: CA2FLState, arrivals: Arrivals) -> Outcome:
        entered = enter(state.cache, arrivals, arrivals.delta)
        change = entered.change()
        size = jnp.maximum(jnp.sum(counts(arrivals)), 1)
        step = jax.tree.map(lambda h, d: h + d / size.astype(d.dtype), state.mean, change)
        mean = jax.tree.map(lambda h, d: h + d / state.cache.count, state.mean, change)
        return Outcome(stepped(params, self.learning_rate, step), CA2FLState(entered.table, mean))
