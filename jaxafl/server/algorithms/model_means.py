"""Servers that average the clients' models in the place of updates: AFL, FAVANO, FedFa, QuAFL and SAFA."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxafl.client import Client, Moment
from jaxafl.clock.contract import ByOptions, Clock, Delivery
from jaxafl.clock.protocols.rounds import RESYNCHRONISED, UNDRAFTED
from jaxafl.device import Rows, buffers, weighted_sum
from jaxafl.options import Number, Part, UserError, check_options, number, recording, static
from jaxafl.server.contract import Array, Arrivals, Needs, Outcome, Server, Tree, counts, first_of, norm


class afl(Server):
    """AFL with non-convex objectives: x ← Σ w_i x_i^K over the J clients of a round, w_i ∝ n_i (1 + τ_i)^(-a).

    The J clients start from stale versions (`stale_rounds`). Local training is I epochs of Adam at the rate
    γ_e = γ_0 / (√(e + 1) (1 + α d_i)) with early stopping: `Client(optax.adam, learning_rate=γ_0, epochs=I,
    rate_schedule=jaxafl.server.afl_rate(α), patience=10)`.

    Args:
        staleness_exponent: exponent a of the staleness weight (1 + τ)^(-a); at least 0. The paper's experiments use 0
            (no penalty).
        tolerance: convergence threshold κ. Once ‖x_{t+1} - x_t‖ <= κ the model stays as it is; 0 never stops.
        broadcast: send the server's model to the clients. With `False` each client continues from its last local model,
            as in the authors' scripts, and the curves (mean LOCAL training loss) match theirs. This is not the
            algorithm: each client then trains on its local data only, and the server's average influences nothing. The
            scripts' constant delay d = 2 is `durations=constant(2.0)` with `afl_rate(delay="seconds")`. With an upload
            or an attack, a client's local model is here what the server receives.

    References:
        "Asynchronous federated learning with non-convex client objective functions and heterogeneous dataset",
        Algorithm 1.
    """

    staleness_exponent: Number = number(default=0.0, least=0)
    tolerance: Number = number(default=0.0, least=0)
    broadcast: bool = static(default=True)

    requires = Delivery.AGED
    accepts = Delivery.STALE
    references = ("afl2025",)
    needs = ByOptions(Needs(base=True), lambda one: Needs(base=True, client_models=not one.broadcast))
    meanings = {
        "step_norm": "Euclidean norm of the server's step",
        "converged": "True once the run has converged",
    }

    def check(self, clock: Any, client: Client, num_clients: int) -> None:
        if not self.broadcast and (clock.max_staleness or clock.replacement):
            way = "stale_rounds(max_staleness=0) without replacement"
            raise ValueError(f"afl(broadcast=False): give {way}, not {clock}")

    def init(self, params: Tree, samples: Array) -> Array:
        return jnp.bool_(False)  # True once the run has converged

    def update(self, params: Tree, state: Array, arrivals: Arrivals) -> Outcome:
        models, weights = arrivals.models, counts(arrivals) * arrivals.samples
        power = -jnp.asarray(self.staleness_exponent, weights.dtype)
        weights = weights * (1 + arrivals.staleness.astype(weights.dtype)) ** power
        average = weighted_sum(weights / jnp.sum(weights), models)
        new = optax.tree.where(state, params, average)
        step = norm(optax.tree.sub(new, params))
        stopped = state | ((step <= self.tolerance) & (self.tolerance > 0))
        info = {"step_norm": step, "converged": stopped}
        return Outcome(new, stopped, info, client_params=None if self.broadcast else models, weights=weights)


class afl_rate(Part):
    """AFL's local rate: the factor 1 / (√(e + 1) (1 + α d_i)) of local epoch e, for `Client(rate_schedule=...)`.

    Args:
        alpha: strength α of the reduction by the delay; at least 0.
        delay: meaning of the delay d_i. `"staleness"`: τ_i of the update. `"seconds"`: the duration of the run.
    """

    alpha: Number = number(default=0.01, least=0)
    delay: Literal["staleness", "seconds"] = static(default="staleness")

    def __post_init__(self) -> None:
        check_options(self)

    def __call__(self, moment: Moment) -> Array:
        delay = moment.staleness if self.delay == "staleness" else moment.duration
        return 1 / (jnp.sqrt(moment.epoch + 1.0) * (1 + self.alpha * delay))


class favano(Server):
    """FAVANO: x ← (x + Σ u_i) / (s + 1) over the s contacted clients, u_i = x_s + (x_i - x_s) / a_i.

    A client without completed steps contributes u_i = x_s, and what error feedback remembers. E_i is the number of
    local steps that fit since client i's last restart, and K caps it. Expectations are over the gap between contacts
    (geometric with probability s/N per period, in closed form) and the client's time per step (a mean over the
    4,096 values of `Duration.step_times` if it differs from run to run).

    Args:
        reweight: normaliser a_i of an update. `"deterministic"`: a_i = E[min(E_i, K)]. `"stochastic"`: a_i =
            P(E_i > 0) · min(E_i, K).
        normaliser: given values of E[min(E_i, K)], or of P(E_i > 0) with `"stochastic"`; above 0, one number per client
            [N]. `None` computes them, for one number of local steps in all runs of a client.

    References:
        Leconte et al., "FAVAS: Federated averaging with asynchronous clients", 2023; a baseline of DeFedAvg.
    """

    reweight: Literal["deterministic", "stochastic"] = static(default="deterministic")
    normaliser: Number | None = number(default=None, above=0, per_client=True)
    table: Any = recording(default=None)  # float [N], E[min(E_i, K)] or P(E_i > 0)

    requires = Delivery.PARTIAL
    accepts = Delivery.STALE | Delivery.PULLED
    references = ("leconte2023",)
    needs = Needs(base=True)
    meanings = {"normaliser": "a_i, by which FAVANO divides a client's update"}

    def prepare(self, clock: Any, client: Client, counts: np.ndarray, seed: int) -> tuple[Server, Client]:
        num_clients = len(counts)
        if self.normaliser is not None:
            return dataclasses.replace(self, table=np.full(num_clients, self.normaliser, np.float64)), client
        latency, per_step = clock.durations.step_times(num_clients, seed)
        most = np.broadcast_to(client.local_steps(counts), (num_clients,))
        probability = clock.contacted / num_clients
        expected, positive = expectations(latency, per_step, float(clock.period), probability, most)
        return dataclasses.replace(self, table=expected if self.reweight == "deterministic" else positive), client

    def update(self, params: Tree, state: tuple[()], arrivals: Arrivals) -> Outcome:
        weight = counts(arrivals)
        a = jnp.asarray(self.table)[arrivals.client].astype(weight.dtype)
        if self.reweight == "stochastic":
            a = a * arrivals.local_steps
        share = weight / jnp.where(a > 0, a, 1)  # without local steps Δ is 0, or what the client's upload remembers
        total = 1 + jnp.sum(weight)
        starts = weighted_sum(weight, arrivals.base)
        steps = weighted_sum(share, arrivals.delta)
        params = jax.tree.map(lambda x, s, d: (x + s + d) / total, params, starts, steps)
        return Outcome(params, state, {"normaliser": a}, weights=weight, kept=1.0)


def expectations(
    latency: np.ndarray, per_step: np.ndarray, period: float, probability: float, most: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Computes E[min(E, K)] and P(E > 0) per client, float64 [N].

    With G ~ Geometric(probability) periods between contacts, E >= k exactly if G >= g_k = ⌈(latency + k · step) /
    period⌉, so E[min(E, K)] = Σ_{k=1..K} P(G >= g_k) with P(G >= g) = (1 - probability)^(g - 1).

    Args:
        latency, per_step: float64 [N, R], equally likely values in seconds.
        period: seconds between contacts.
        probability: probability of a contact per period.
        most: int [N], K.
    """

    def reached(k: int) -> np.ndarray:
        gap = np.maximum(np.ceil((latency + k * per_step) / period * (1 - 1e-9)), 1)
        return np.power(1 - probability, gap - 1).mean(axis=1)

    expected = sum((np.where(k <= most, reached(k), 0) for k in range(1, most.max() + 1)), np.zeros(len(most)))
    return expected, reached(1)


class FedFaState(NamedTuple):
    """Window of the newest client models."""

    models: Tree  # the last M models, each leaf [M, ...]; the oldest is replaced first
    received: Array  # int32, number of models so far


class fedfa(Server):
    """FedFa: x ← (1/M) Σ of the last M client models x_i^K, at every arrival.

    Until M models have arrived, x stays at x_0 although the version advances. With M = 1 it is `fedasync` with α = 1.
    There is no discount of stale models. Keeps M models. Checked against two reimplementations and the paper's
    abstract; FedFa-Delta, the paper's variant with updates instead of models, is not implemented.

    Args:
        window: number of models M; at least 1.

    References:
        Xu et al., "FedFa: A fully asynchronous training paradigm for federated learning", IJCAI 2024.
    """

    window: int = static(default=5)

    requires = Delivery.CONTINUOUS
    accepts = Delivery.STALE
    references = ("xu2024",)
    single = True
    needs = Needs(base=True)

    def init(self, params: Tree, samples: Array) -> FedFaState:
        return FedFaState(buffers.allocate(params, self.window), jnp.int32(0))

    def update(self, params: Tree, state: FedFaState, arrivals: Arrivals) -> Outcome:
        model = first_of(arrivals.models)
        models = buffers.write(state.models, state.received % self.window, model)
        full = state.received + 1 >= self.window
        new = jax.tree.map(lambda rows, x: jnp.where(full, jnp.mean(rows, axis=0), x), models, params)
        share = jnp.where(full, 1 / self.window, 0.0)
        return Outcome(new, FedFaState(models, state.received + 1), weights=share[None], kept=1 - share)


class quafl(Server):
    """QuAFL without quantiser: server and clients average with each other at every contact.

    p = 1/(s + 1); each contacted client has executed h_i = min(K, steps that fit) local steps from its OWN model, which
    yields x_i; x ← p x + (1 - p) mean_i x_i; then x_i ← p x_old + (1 - p) x_i. With an upload or an attack, x_i is
    here what the server receives, so that it knows the model of every client. Keeps a model per client.

    Args:
        scale_local_rate: multiply the clients' learning rate, a number, by 1/(1 - p), as in the authors' code.

    References:
        Zakerinia et al., "Communication-efficient federated learning with data and client heterogeneity", 2022.
    """

    scale_local_rate: bool = static(default=False)

    requires = Delivery.PARTIAL
    accepts = Delivery.STALE | Delivery.PULLED
    references = ("zakerinia2022",)
    needs = Needs(client_models=True)

    def check(self, clock: Clock, client: Client, num_clients: int) -> None:
        if self.scale_local_rate and "learning_rate" not in client.hyperparameters:
            raise UserError("quafl: scale_local_rate=True needs Client(optimiser, learning_rate=...) with a number")

    def prepare(self, clock: Any, client: Client, counts: np.ndarray, seed: int) -> tuple[Server, Client]:
        if not self.scale_local_rate:
            return self, client
        rate = client.hyperparameters["learning_rate"] * ((clock.contacted + 1) / clock.contacted)
        return self, dataclasses.replace(client, hyperparameters=client.hyperparameters | {"learning_rate": rate})

    def update(self, params: Tree, state: tuple[()], arrivals: Arrivals) -> Outcome:
        weights = counts(arrivals)
        p = 1 / (arrivals.mask.shape[0] + 1)
        models = arrivals.models
        average = weighted_sum(weights / weights.sum(), models)
        new = jax.tree.map(lambda x, y: p * x + (1 - p) * y, params, average)
        mixed = jax.tree.map(lambda x, y: p * x[None] + (1 - p) * y, params, models)
        return Outcome(new, state, client_params=mixed, weights=(1 - p) * weights / weights.sum(), kept=p)


class SAFAState(NamedTuple):
    """Cached models and their weights."""

    cache: Rows  # cached model of every client
    weights: Array  # float [N], n_k / Σ n


class safa(Server):
    """SAFA: x = Σ_k (n_k/Σn) cache_k over ALL clients.

    Entries of deprecated clients are replaced by x; picked updates enter the cache before the aggregation, undrafted
    ones after it. Batch statistics are averaged over the picked updates, weighted by samples. The clock (`semi_async`)
    decides which clients are picked, undrafted or deprecated. Keeps one model per client.

    References:
        Wu et al., "SAFA: A semi-asynchronous protocol for fast federated learning with low overhead", IEEE TC 2021,
        eqs. (6)-(8).
    """

    requires = Delivery.KINDS | Delivery.BY_CLIENT
    accepts = Delivery.STALE | Delivery.EMPTY
    references = ("wu2021",)
    needs = Needs(base=True, client_rows=1, empty_steps=True)
    meanings = {
        "picked": "updates that entered the cache before the aggregation",
        "undrafted": "updates that entered the cache after the aggregation",
        "deprecated": "clients whose entry in the cache was replaced by the global model",
    }

    def init(self, params: Tree, samples: Array) -> SAFAState:
        return SAFAState(Rows.filled(params, len(samples)), samples / jnp.sum(samples))

    def update(self, params: Tree, state: SAFAState, arrivals: Arrivals) -> Outcome:
        models = arrivals.models
        undrafted = arrivals.mask & (arrivals.kind % 2 == UNDRAFTED)
        picked = arrivals.mask & ~undrafted
        deprecated = arrivals.kind >= RESYNCHRONISED
        everywhere = jax.tree.map(lambda x: x[None], params)
        cache = state.cache.replace(deprecated, everywhere).replace(picked, models)
        new = cache.weighted_sum(state.weights)
        cache = cache.replace(undrafted, models)
        info = {"picked": jnp.sum(picked), "undrafted": jnp.sum(undrafted), "deprecated": jnp.sum(deprecated)}
        weights = jnp.where(picked, arrivals.samples, 0)
        return Outcome(new, state._replace(cache=cache), info, weights=weights)
