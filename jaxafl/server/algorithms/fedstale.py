"""FedStale, a mixture of fresh updates and remembered ones."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxafl.client import Client
from jaxafl.clock.contract import ByOptions, Clock, Delivery
from jaxafl.clock.synchronous import synchronous
from jaxafl.device import Rows
from jaxafl.options import Number, number, recording, static
from jaxafl.server.algorithms.last_updates import enter
from jaxafl.server.contract import TICKS, Array, Arrivals, Needs, Outcome, Server, Tree, stepped
from jaxafl.server.scheduled import Rate


class FedStaleState(NamedTuple):
    """Remembered updates, their weighted sum, the weights of the clients, and their numbers of server steps."""

    table: Rows  # h_i, the last update of client i, 0 before the first
    mean: Tree  # Σ_i α_i h_i, shaped like the parameters
    weights: Array  # float [N], α_i
    counts: Array  # int32 [N], server steps in which client i took part
    steps: Array  # int32, all server steps, those of an earlier phase too


class fedstale(Server):
    """FedStale: x ← x + η (Σ_{i in S} (α_i/p_i) (Δ_i - β h_i) + β Σ_{i=1..N} α_i h_i), then h_i ← Δ_i for i in S.

    S are the participants of a round, p_i their probability to participate, and h_i the last update of client i. With
    β = 0 it is FedAvg with weights 1/p_i, with β = 1 FedVARP. Participants train from the newest model
    (`synchronous`); uploads that fail at random (`bernoulli`), whose updates may be stale, are our extension. A round
    without participants steps along the remembered updates. Keeps one row of parameters per client. Checked against
    the authors' code.

    Args:
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps.
        memory: weight β of the remembered updates, in [0, 1].
        participation: probabilities p_i, in (0, 1], a number or one per client. `None` uses n/N on `synchronous` with n
            clients drawn uniformly without replacement, also if their draws are recorded. Other clocks need a value or
            `estimate`.
        weights: weights α_i of the clients. `"samples"`: n_i / Σ n over all clients. `"uniform"`: 1/N.
        estimate: if True, p_i is the share of the server steps, this one included, in which client i has taken part.

    References:
        Rodio and Neglia, "FedStale: leveraging stale client updates in federated learning", ECAI 2024.
    """

    learning_rate: Rate = number(default=1.0, least=0)
    memory: Number = number(default=0.5, least=0, most=1)
    participation: Number | None = number(default=None, above=0, most=1, per_client=True)
    weights: Literal["samples", "uniform"] = static(default="samples")
    estimate: bool = static(default=False)
    table: Any = recording(default=None)  # float [N], p_i

    accepts = Delivery.STALE | Delivery.MULTIPLE | TICKS
    references = ByOptions(
        ("rodio2024",), lambda one: ("rodio2024", *(("jhunjhunwala2022",) if np.all(np.equal(one.memory, 1)) else ()))
    )
    needs = Needs(client_rows=1, empty_steps=True)

    def check(self, clock: Any, client: Client, num_clients: int) -> None:
        whole = isinstance(clock, synchronous) and clock.order_free  # rounds with all of their runs
        drawn = whole and not clock.replacement and clock.weights is None and clock.select == "uniform"
        if self.estimate and self.participation is not None:
            raise ValueError("fedstale: estimate=True and participation are both given; expected one of them")
        if self.participation is None and not drawn and not self.estimate:
            way = "participation=..., the probability with which a client takes part in a step, or estimate=True"
            raise ValueError(f"fedstale: it is not known how often clients take part on {clock.name}; give {way}")

    def prepare(self, clock: Clock, client: Client, counts: np.ndarray, seed: int) -> tuple[fedstale, Client]:
        clients = len(counts)
        drawn = (clock.arrivals(clients) or clients) / clients
        given = drawn if self.participation is None else self.participation
        return dataclasses.replace(self, table=np.full(clients, given, np.float64)), client

    def init(self, params: Tree, samples: Array) -> FedStaleState:
        nothing = optax.tree.zeros_like(params)
        size = samples if self.weights == "samples" else jnp.ones_like(samples)
        counts = jnp.zeros(len(samples), jnp.int32)
        return FedStaleState(Rows.filled(nothing, len(samples)), nothing, size / jnp.sum(size), counts, jnp.int32(0))

    def update(self, params: Tree, state: FedStaleState, arrivals: Arrivals) -> Outcome:
        entered = enter(state.table, arrivals, arrivals.delta)
        weight = jnp.where(arrivals.mask, state.weights[arrivals.client], 0)
        takes_part = jnp.zeros_like(state.counts).at[arrivals.client].max(arrivals.mask.astype(jnp.int32))
        counts, steps = state.counts + takes_part, state.steps + 1
        known = counts.astype(weight.dtype) / steps if self.estimate else jnp.asarray(self.table, weight.dtype)
        probability = jnp.where(arrivals.mask, known[arrivals.client], 1)
        fresh = entered.change(weight / probability, self.memory)
        step = stepped(fresh, self.memory, state.mean)
        mean = jax.tree.map(jnp.add, state.mean, entered.change(weight))
        after = FedStaleState(entered.table, mean, state.weights, counts, steps)
        return Outcome(stepped(params, self.learning_rate, step), after, weights=weight)
