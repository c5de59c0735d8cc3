"""Servers of regions that train in rounds: FedAT and HierFAVG."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxafl.client import Client
from jaxafl.clock.contract import STARTS, Delivery
from jaxafl.clock.protocols.regions import STEPS, WITHIN
from jaxafl.device import Rows, weighted_sum
from jaxafl.options import recording
from jaxafl.server.contract import Array, Arrivals, Needs, Outcome, Server, Tree, counts, shares


class Sent(NamedTuple):
    """Server state."""

    models: Rows  # w_l, the last model that each region has sent, x_0 before the first; each leaf [R, ...]
    times: Array  # T_l, int32 [R], models that each region has sent


class fedat(Server):
    """FedAT: x ← Σ_m (T_{M+1-m} / T) w_m whenever a tier m has ended a round, T = Σ_m T_m.

    Tiers are regions of the clock, numbered from the fastest to the slowest. w_m is the mean of the models of the
    tier's last round, weighted by samples, and x_0 before the first one; T_m counts the rounds whose model was sent. So
    tiers that end few rounds, the slow ones, get the weights of those that end many. The next round of tier m starts
    from x. `Client(proximal=λ)` is the paper's constraint λ/2 ‖x_i - x‖² of the clients.

    All T_m begin at 0, so that a tier counts once tier M + 1 - m has ended a round, as in the formula and in codes of
    third parties (two on Plato and Flotilla); neither the paper's pseudocode nor the authors' code was at hand. Batch
    statistics are those of the last round. Keeps a model per tier.

    References:
        Chai et al., "FedAT: A high-performance and communication-efficient federated learning system with asynchronous
        tiers", SC 2021.
    """

    sizes: Any = recording(default=None)  # samples of each region, [R]

    requires = Delivery.REGIONAL | Delivery.SEVERAL
    accepts = STARTS
    references = ("chai2021",)
    needs = Needs(base=True)
    meanings = {
        "region": "region of the round",
        "event": "0 round within a region, 1 model that waits at the global server, 2 model that it steps with",
    }

    def weights(self, times: Array) -> Array:
        """Returns the weights of the regions' models in x, float [R]; `times`: T_l, int32 [R]."""
        return times[::-1] / jnp.maximum(jnp.sum(times), 1)

    def prepare(self, clock: Any, client: Client, counts: np.ndarray, seed: int) -> tuple[Any, Client]:
        return dataclasses.replace(self, sizes=np.bincount(clock.regions, counts)), client

    def init(self, params: Tree, samples: Array) -> Sent:
        return Sent(Rows.filled(params, len(self.sizes)), jnp.zeros(len(self.sizes), jnp.int32))

    def update(self, params: Tree, state: Sent, arrivals: Arrivals) -> Outcome:
        region, event = arrivals.columns["region"], arrivals.columns["event"]
        weights = shares(counts(arrivals) * arrivals.samples)
        step = weighted_sum(weights, arrivals.delta)
        model = jax.tree.map(lambda starts, mean: starts[0] + mean, arrivals.base, step)  # all start from one model
        models = state.models.write_many(region[None], event[None] != WITHIN, jax.tree.map(lambda y: y[None], model))
        times = state.times.at[region].add((event != WITHIN).astype(jnp.int32))
        mean = models.weighted_sum(self.weights(times))
        params, served = optax.tree.where(event == STEPS, (mean, mean), (params, model))
        return Outcome(params, Sent(models, times), dict(arrivals.columns), weights=weights, served=served)


class hierfavg(fedat):
    """HierFAVG: edge servers average their clients, and the cloud averages the edge servers, both weighted by samples.

    - A round of region l ends: y_l ← Σ_i (n_i / Σ n) x_i^K over its clients, and the next one starts from y_l.
    - After κ_2 rounds w_l = y_l goes to the cloud: x ← Σ_l (n_l / n) w_l, and all regions go on from x.

    n_l counts the samples of all clients of region l. The cloud waits for all regions on
    `regional_rounds(after=κ_2, waits=True)`. Otherwise, which is our extension, it averages the last models of all at
    every one that comes. x is evaluated; batch statistics are those of the last round. Keeps a model per region.
    Checked against the authors' code, which draws cohorts with probabilities ∝ n_i.

    References:
        Liu, Zhang, Song, Letaief, "Client-edge-cloud hierarchical federated learning", ICC 2020, Algorithm 1.
    """

    references = ("liu2020",)

    def weights(self, times: Array) -> Array:
        sizes = jnp.asarray(self.sizes)
        return sizes / jnp.sum(sizes)
