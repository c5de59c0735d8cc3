"""Servers that are given by the weight of an update: FedNova, Malenia, FedCompass, routed and delay-adaptive SGD."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
import optax

from jaxafl.client import Client
from jaxafl.clock.contract import STARTS, ByOptions, Clock, Delivery
from jaxafl.options import Number, number, recording, static
from jaxafl.server.algorithms.averaging import fedavg
from jaxafl.server.contract import Array, Arrivals, counts, shares
from jaxafl.server.fedopt import Discounted, OptaxServer
from jaxafl.server.scheduled import Rate


class fednova(fedavg):
    """FedNova: x ← x + η τ_eff Σ_i p_i Δ_i / K_i with τ_eff = Σ_i p_i K_i, over the cohort.

    K_i is the number of local steps of a run. A run counts by its mean step, so a client with more steps does not pull
    the model towards its own optimum. With equal K_i it is `fedavg`. The formula is our reading of the paper for
    clients with plain SGD at a rate that is constant within a run.

    Args:
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps.
        weights: weights p_i of the updates. `"samples"`: p_i = n_i / Σ n over the cohort. `"uniform"`: all equal.

    References:
        Wang et al., "Tackling the objective inconsistency problem in heterogeneous federated optimization", NeurIPS
        2020.
    """

    accepts = Delivery.MULTIPLE
    references = ("wang2020fednova",)

    def check(self, clock: Clock, client: Client, num_clients: int) -> None:
        changes = [getattr(client, name) for name in ("proximal", "step_schedule", "rate_schedule")]
        plain = client.optimizer is optax.sgd and set(client.hyperparameters) == {"learning_rate"}
        if not plain or any(change is not None for change in changes):
            way = "Client(optax.sgd, learning_rate=...) without momentum, proximal term or schedule of a run's rate"
            raise ValueError(f"fednova: the clients' {client.optimizer_name} is not plain SGD; give {way}")

    def weigh(self, arrivals: Arrivals) -> Array:
        p = super().weigh(arrivals)
        steps = arrivals.local_steps.astype(p.dtype)
        return jnp.sum(p * steps) * p / jnp.maximum(steps, 1)


class _OfGradients(OptaxServer):
    """Base of servers that take stale updates of runs of one gradient."""

    learning_rate: Rate = number(default=0.1, least=0)

    accepts = STARTS


class malenia(_OfGradients):
    """Malenia SGD: x ← x + η (1/n) Σ_i (1/B_i) Σ_{j <= B_i} Δ_ij over the n clients that have arrived.

    B_i is the number of updates of client i in the step. Each client has the same weight, however fast it is, so the
    mean of the clients' objectives is minimised. The paper's steps close by `harmonic`, and take one gradient per run:
    `Client(optax.sgd, learning_rate=1.0, steps=1)`, so that Δ = -∇f_i. With `free_running(buffer=B, max_staleness=1,
    on_bound="stop")` and `fedbuff(staleness="none")` all updates have the same weight: Rennala SGD.

    Args:
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps.

    References:
        Tyurin & Richtárik, "Optimal time complexities of parallel stochastic optimization methods under a fixed
        computation model", NeurIPS 2023, Method 6. The rule follows a later text of the first author.
    """

    references = ("tyurin2023",)

    def weigh(self, arrivals: Arrivals) -> Array:
        client = jnp.where(arrivals.mask, arrivals.client, jnp.iinfo(jnp.int32).max)
        ordered = jnp.sort(client)
        last = jnp.searchsorted(ordered, client, side="right")
        share = counts(arrivals) / (last - jnp.searchsorted(ordered, client))
        return shares(share)


class fedcompass(Discounted):
    """FedCompass: x ← x + (η/N) Σ_i s(τ_i) Δ_i over the updates of a group and the general buffer.

    Each of the N clients arrives at most once. The paper's groups are formed by `compass`, which also chooses the local
    steps. Checked against the authors' code.

    Args:
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps.
        staleness: discount s of stale updates, see `jaxafl.server.fedopt.Discounting`; the code has (1 + τ)^(-1/2).
        exponent: exponent or slope a; at least 0. `None`: 1/2, and 10 for `hinge`.
        threshold: largest staleness b that `hinge` does not discount; at least 0.

    References:
        Li et al., "FedCompass: Efficient cross-silo federated learning on heterogeneous client devices using a
        computing power aware scheduler", ICLR 2024.
    """

    learning_rate: Rate = number(default=0.9, least=0)
    clients: Any = recording(default=None)  # N

    accepts = STARTS
    references = ("li2024",)

    def prepare(self, clock: Clock, client: Client, counts: np.ndarray, seed: int) -> tuple[fedcompass, Client]:
        return dataclasses.replace(self, clients=float(len(counts))), client

    def weigh(self, arrivals: Arrivals) -> Array:
        times = counts(arrivals)
        return self.discounted(arrivals, times) / jnp.asarray(self.clients, times.dtype)


class routed_sgd(_OfGradients):
    """Generalized AsyncSGD: x ← x + η/(N p_i) Δ_i for the update of client i, to which a task is sent with p_i.

    The division makes the mean step unbiased, however often a client is chosen. `routed` gives the probabilities p_i.
    The paper takes one gradient per task: `Client(optax.sgd, learning_rate=1.0, steps=1)`, so that Δ_i = -∇f_i.
    Several local steps are our extension. Uniform p_i give asynchronous SGD.

    Args:
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps.

    References:
        Leconte, Jonckheere, Samsonov & Moulines, "Queuing dynamics of asynchronous federated learning", AISTATS 2024.
        The rule follows the abstract.
    """

    table: Any = recording(default=None)  # float [N], N p_i

    requires = Delivery.QUEUED
    references = ("leconte2024",)

    def prepare(self, clock: Any, client: Client, counts: np.ndarray, seed: int) -> tuple[routed_sgd, Client]:
        return dataclasses.replace(self, table=len(counts) * clock.table(len(counts))), client

    def weigh(self, arrivals: Arrivals) -> Array:
        return counts(arrivals) / jnp.asarray(self.table, arrivals.samples.dtype)[arrivals.client]


class delay_adaptive(_OfGradients):
    """Delay-adaptive asynchronous SGD: x ← x + η_t Δ_i at every arrival, with η_t = η · min(1, c/τ).

    The papers apply one gradient per arrival: `Client(optax.sgd, learning_rate=1.0, steps=1)`, so that Δ_i = -∇f_i.
    Several local steps are our extension. Mishchenko et al.'s notebook restarts a client from the model before its own
    gradient is applied: `free_running(before_step=True)`. Their rule was checked against their code, that of Koloskova
    et al. against the paper.

    Args:
        learning_rate: largest server learning rate η; at least 0, or an Optax schedule of server steps.
        rule: rate of an update with staleness τ > c. `"ratio"`: η c/τ (Mishchenko et al.). `"drop"`: 0, so that the
            model stays although the version advances. `"koloskova"`: min(η, 1/(4Lτ)), the largest rate that eq. (11)
            allows.
        threshold: largest staleness c without reduction of the rate, above 0; `None` uses the clients in flight M_c.
        smoothness: smoothness constant L of the objective, above 0, for `rule="koloskova"`. Its theorem needs η <=
            1/(4L).

    References:
        Mishchenko et al., "Asynchronous SGD beats minibatch SGD under arbitrary delays", NeurIPS 2022; Koloskova et
        al., "Sharper convergence guarantees for asynchronous SGD for distributed and federated learning", NeurIPS 2022,
        Theorem 8 and eq. (11).
    """

    rule: Literal["ratio", "drop", "koloskova"] = static(default="ratio")
    threshold: Number | None = number(default=None, above=0)
    smoothness: Number | None = number(default=None, above=0)

    requires = Delivery.CONTINUOUS
    single = True
    drops = ByOptions(False, lambda one: one.rule == "drop")
    bounded = True
    references = ("mishchenko2022", "koloskova2022")

    def check(self, clock: Clock, client: Client, num_clients: int) -> None:
        if (self.rule == "koloskova") != (self.smoothness is not None):
            given = f"rule={self.rule!r}, smoothness={self.smoothness}"
            raise ValueError(f"delay_adaptive: got {given}; give a smoothness L with rule='koloskova', and only then")

    def prepare(self, clock: Clock, client: Client, counts: np.ndarray, seed: int) -> tuple[delay_adaptive, Client]:
        threshold = float(clock.in_flight(len(counts))) if self.threshold is None else self.threshold
        return dataclasses.replace(self, threshold=threshold), client

    def rate(self, arrivals: Arrivals) -> Array:
        tau = arrivals.staleness[0].astype(arrivals.loss.dtype)
        rate = jnp.asarray(self.learning_rate, tau.dtype)
        late = jnp.maximum(tau, 1)  # avoids 1 / 0: a fresh update never exceeds the threshold
        threshold = jnp.asarray(self.threshold, tau.dtype)
        reduced = {"ratio": rate * threshold / late, "drop": jnp.zeros_like(rate)}
        if self.smoothness is not None:
            reduced["koloskova"] = jnp.minimum(rate, 1 / (4 * self.smoothness * late))
        return jnp.where(tau <= threshold, rate, reduced[self.rule])

    def weigh(self, arrivals: Arrivals) -> Array:
        return jnp.where(self.rate(arrivals) > 0, counts(arrivals), 0)
