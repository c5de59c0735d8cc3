"""FAVANO (FAVAS), federated averaging with asynchronous clients."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.client import Client
from jaxafl.clock.contract import Delivery
from jaxafl.device import weighted_sum
from jaxafl.options import Number, number, recording, static
from jaxafl.server.contract import Arrivals, Needs, Outcome, Server, Tree, counts


class favano(Server):
    """FAVANO: x ← (x + Σ u_i) / (s + 1) over the s contacted clients, u_i = x_s + (x_i - x_s) / a_i.

    A client without completed steps contributes u_i = x_s. E_i is the number of local steps that fit since client i's
    last restart, and K caps it. Expectations are over the gap between contacts (geometric with probability s/N per
    period, in closed form) and the client's time per step.

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
    needs = Needs(base=True, linear=True)
    meanings: ClassVar[dict[str, str]] = {"normaliser": "a_i, by which FAVANO divides a client's update"}

    def prepare(self, clock: Any, client: Client, counts: np.ndarray, seed: int) -> tuple[Server, Client]:
        num_clients = len(counts)
        if self.normaliser is not None:
            table = np.broadcast_to(np.asarray(self.normaliser, np.float64), (num_clients,))
            return dataclasses.replace(self, table=table), client
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
        share = jnp.where(arrivals.local_steps > 0, weight / jnp.where(a > 0, a, 1), 0)
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
