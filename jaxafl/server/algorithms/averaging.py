"""Servers that add a weighted mean of the updates: FedAvg, FedBuff, AsySG, DeFedAvg; or of products: FlexLoRA."""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from jaxafl.client import Client
from jaxafl.clock.contract import STARTS, ByOptions, Clock, Delivery
from jaxafl.device import weighted_sum
from jaxafl.options import Number, UserError, number, static
from jaxafl.server.algorithms.checks import check_everyone, check_gradients
from jaxafl.server.contract import TICKS, Array, Arrivals, Needs, Outcome, Server, Tree, counts, shares
from jaxafl.server.fedopt import Discounting, OptaxServer
from jaxafl.server.scheduled import Rate


class _Mean(OptaxServer):
    """Base of servers with x ← x + η D, where D is the mean over the arrivals unless `weigh` is overridden."""

    learning_rate: Rate = number(default=1.0, least=0)


class fedavg(_Mean):
    """Federated averaging: x ← x + η Σ_i w_i Δ_i over the cohort.

    With η = 1 this is x ← Σ w_i x_i^K. FedProx is `fedavg` with `Client(proximal=μ)`. AsyncFedED's eq. (38) divides
    once more by the size of the cohort; this slip of the paper is not implemented.

    Args:
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps.
        weights: weights w_i of the updates. `"samples"`: w_i = n_i / Σ n over the cohort. `"uniform"`: all equal. Batch
            statistics (a model's non-trainable state) are averaged with these weights, too.

    References:
        McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017;
        Li et al., "Federated optimization in heterogeneous networks" (FedProx), MLSys 2020.
    """

    weights: Literal["samples", "uniform"] = static(default="samples")

    accepts = Delivery.STALE | Delivery.MULTIPLE | TICKS
    bounded = ByOptions(False, lambda one: one.weights == "uniform")
    references = ("mcmahan2017",)

    def weigh(self, arrivals: Arrivals) -> Array:
        return shares(counts(arrivals) * (arrivals.samples if self.weights == "samples" else 1))


class flexlora(Server):
    """FlexLoRA: factors of rank r for the mean of the clients' products B A, instead of the means of B and of A.

    M = B A + η Σ_i p_i (B_i A_i - B_s A_s) for every kernel, with p_i = n_i / Σ n over the arrivals, and the factors
    B_s and A_s that client i started from. If all started from the newest ones, and η = 1, M = Σ_i p_i B_i A_i. The
    singular value decomposition M = U S Vᵀ gives the first factor, U_r S_r, and the second one, V_rᵀ. Their product is
    a projection: of all matrices of rank r the nearest one to M. n arrivals can make an M of rank n r, and what is
    beyond r is lost.

    Factors are parameters `a` and `b` side by side, as of `afl.models.lora` and `afl.models.bert`; r is the shorter
    axis of A. Others are averaged as by `fedavg`. Factors turn from step to step, so the state of a client's optimiser
    should not last. Stale arrivals are our extension. The rule follows the abstract and codes of third parties.

    Args:
        learning_rate: η; at least 0, or an Optax schedule of server steps.

    References:
        Bai et al., "Federated fine-tuning of large language models under heterogeneous tasks and client resources",
        NeurIPS 2024.
    """

    learning_rate: Rate = number(default=1.0, least=0)

    references = ("bai2024",)
    needs = Needs(base=True)
    meanings = {"kept": "share of ‖M‖² that rank r keeps, the smallest of all kernels"}

    def check(self, clock: Clock, client: Client, num_clients: int) -> None:
        if client.personal is not None:
            raise UserError("flexlora: the server has no personal factors, so that it lacks products; give fedavg")

    def update(self, params: Tree, state: tuple[()], arrivals: Arrivals) -> Outcome:
        weights = shares(counts(arrivals) * arrivals.samples)
        kept = [jnp.ones(())]

        def moved(now: Any, start: Any, delta: Any) -> Any:
            if not isinstance(now, dict):
                return now + self.learning_rate * weighted_sum(weights, delta)
            left, right = ("b", "a") if len(now["a"]) <= now["a"].shape[1] else ("a", "b")  # [in, r] in `bert`
            ends, rank = jax.tree.map(jnp.add, start, delta), len(now[right])
            sums = [jnp.einsum("n,nor,nri->oi", weights, pair[left], pair[right]) for pair in (ends, start)]
            matrix = now[left] @ now[right] + self.learning_rate * (sums[0] - sums[1])
            u, s, v = jnp.linalg.svd(matrix, full_matrices=False)
            kept.append(jnp.vdot(s[:rank], s[:rank]) / jnp.maximum(jnp.vdot(s, s), jnp.finfo(s.dtype).tiny))
            return {left: jnp.pad(u * s, ((0, 0), (0, rank)))[:, :rank], right: jnp.pad(v, ((0, rank), (0, 0)))[:rank]}

        params = jax.tree.map(moved, params, arrivals.base, arrivals.delta, is_leaf=_are_factors)
        return Outcome(params, state, {"kept": jnp.min(jnp.stack(kept))}, weights=weights)


def _are_factors(node: Any) -> bool:
    return isinstance(node, dict) and {*node} == {"a", "b"}


class fedbuff(Discounting):
    """FedBuff: x ← x + η D with D = Σ_i w_i s(τ_i) Δ_i over a buffer of M arrivals, in the paper with w_i = 1/M.

    M is an option of the clock: the paper uses `free_running(buffer=10)`. With one arrival per server step nothing is
    buffered.

    Args:
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps.
        staleness, exponent, threshold, weights: s and w_i; see `jaxafl.server.fedopt.Discounting`.
        momentum: server momentum β in [0, 1), with m ← βm + D and x ← x + ηm; `None` for no momentum.
        reduce: reduction over the buffer. `"mean"` is D; `"sum"` is MD, so that uniform weights are not divided by M.

    References:
        Nguyen et al., "Federated learning with buffered asynchronous aggregation", AISTATS 2022.
    """

    momentum: Number | None = number(default=None, least=0, below=1)
    reduce: Literal["mean", "sum"] = static(default="mean")

    buffer = 10
    bounded = ByOptions(True, lambda one: super().bounded and one.reduce == "mean")
    references = ("nguyen2022",)

    def _divisor(self, weights: Array, times: Array) -> Array:
        total = super()._divisor(weights, times)
        return total if self.reduce == "mean" else total / jnp.maximum(jnp.sum(times), 1)

    def optimizer_of(self, rate: Number) -> optax.GradientTransformation:
        return optax.sgd(rate, self.momentum)


class asysg(_Mean):
    """Asynchronous parallel stochastic gradient: x ← x - η · mean over the n arrivals of ∇f_i(x_s).

    One mini-batch gradient per run and no local rate: `Client(optax.sgd, learning_rate=1.0, steps=1)`, so that Δ = -∇f.

    Args:
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps.

    References:
        Lian et al., "Asynchronous parallel stochastic gradient for nonconvex optimization", NeurIPS 2015; the IID
        baseline of DeFedAvg.
    """

    learning_rate: Rate = number(default=0.1, least=0)

    requires = Delivery.CONTINUOUS
    accepts = STARTS | Delivery.QUEUED
    references = ("lian2015",)
    local = {"learning_rate": 1.0, "steps": 1}

    def check(self, clock: Clock, client: Client, num_clients: int) -> None:
        check_gradients(self.name, client, full_batch=False)


class defedavg_iid(_Mean):
    """DeFedAvg-IID: x ← x + (η/n) Σ Δ_i over the n updates that complete first.

    All clients train all the time (`free_running` with concurrency = N and buffer = n); a client that finishes starts
    again at once from the newest model. On this clock `fedbuff(staleness="none")` is the same algorithm.

    Args:
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps.

    References:
        "Achieving linear speedup in asynchronous federated learning with heterogeneous clients" (DeFedAvg), Algorithm
        2.
    """

    requires = Delivery.CONTINUOUS
    accepts = STARTS
    references = ("wang2024defedavg",)

    check = check_everyone


class defedavg_niid(_Mean):
    """DeFedAvg-nIID: x ← x + (η/n) Σ Δ_i over n clients drawn with replacement, WITH multiplicity.

    Runs on `sampled`: each drawn client must have a finished update in its send buffer. Eq. (8) and line 7 of the
    algorithm count a client as often as it is drawn; the sign in eq. (3) and "|I_t| <= n" are slips (without
    multiplicity the sum is biased).

    Args:
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps.

    References:
        "Achieving linear speedup in asynchronous federated learning with heterogeneous clients" (DeFedAvg), Algorithm
        1.
    """

    requires = Delivery.PULLED | Delivery.MULTIPLE
    accepts = STARTS
    references = ("wang2024defedavg",)
