"""FAVANO (FAVAS)."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.checks import as_numbers, check_choice
from jaxafl.clock.step_times import step_times
from jaxafl.pytrees import leaf, pytree, static
from jaxafl.server.contract import Arrivals, Needs, Tree, Update, counts

Array = jax.Array


@pytree
class FAVANO:
    """See `favano`."""

    normaliser: Any = None
    table: Any = None
    reweight: str = static(default="deterministic")

    name: ClassVar[str] = "favano"
    clocks: ClassVar[frozenset[str]] = frozenset({"interrupting"})
    references: ClassVar[tuple[str, ...]] = ("leconte2023",)
    needs: ClassVar[Needs] = Needs(start=True, prepares=True)

    def check(self, clock: Any, client: Any, num_clients: int) -> None:
        check_choice("favano", "reweight", self.reweight, ("deterministic", "stochastic"))
        if self.normaliser is None and np.ndim(np.asarray(client.steps, object)) == 2:
            raise ValueError(
                "favano: the expected steps of a client need one number of local steps for all its runs; "
                "give Client(steps=...) per client, or a normaliser"
            )
        if self.normaliser is not None:
            array = as_numbers("favano", "normaliser", self.normaliser)
            if array.shape != (num_clients,) or not (np.isfinite(array) & (array > 0)).all():
                raise ValueError(f"favano: normaliser must be one positive number per client ({num_clients},)")

    def prepare(self, clock: Any, local_steps: np.ndarray, num_clients: int, seed: int) -> FAVANO:
        """The same server with its table: a_i, or P(E_i > 0) for `stochastic`."""
        if self.normaliser is not None:
            return dataclasses.replace(self, table=np.asarray(self.normaliser, np.float64))
        latency, per_step = step_times(clock.durations, num_clients, seed)
        most = np.broadcast_to(local_steps, (num_clients,))
        probability = clock.contacted / num_clients
        expected, positive = expectations(latency, per_step, float(clock.period), probability, most)
        return dataclasses.replace(self, table=expected if self.reweight == "deterministic" else positive)

    def init(self, params: Tree, samples: Array) -> tuple[()]:
        return ()

    def update(self, params: Tree, state: tuple[()], arrivals: Arrivals) -> Update:
        weight = counts(arrivals)
        a = jnp.asarray(self.table)[arrivals.client].astype(weight.dtype)
        if self.reweight == "stochastic" and self.normaliser is None:
            a = a * arrivals.local_steps
        share = jnp.where(arrivals.local_steps > 0, weight / jnp.where(a > 0, a, 1), 0)
        total = 1 + jnp.sum(weight)
        params = jax.tree.map(
            lambda x, s, d: (x + jnp.tensordot(weight, s, axes=1) + jnp.tensordot(share, d, axes=1)) / total,
            params,
            arrivals.start,
            arrivals.delta,
        )
        return Update(params, state, {"normaliser": a})


def favano(reweight: str = "deterministic", normaliser: Any = None) -> FAVANO:
    """FAVANO: x ← (x + Σ u_i) / (s + 1) over the s contacted clients, u_i = x_s + (x_i - x_s) / a_i.

    A client that made no step gives u_i = x_s. With E_i the local steps that fit since i's last restart, capped at K:
    `"deterministic"` a_i = E[min(E_i, K)]; `"stochastic"` a_i = P(E_i > 0) · min(E_i, K). Both expectations are over
    the gap between contacts (geometric with probability s/N per period) and the client's time per step; over the gap
    they are summed in closed form.

    Args:
        reweight: `"deterministic"` or `"stochastic"`.
        normaliser: a_i of your own, [N], > 0.

    References:
        Leconte et al., "FAVAS: Federated averaging with asynchronous clients", 2023; a baseline of DeFedAvg.
    """
    return FAVANO(leaf(normaliser, "favano", "normaliser"), None, reweight)


def expectations(
    latency: np.ndarray, per_step: np.ndarray, period: float, probability: float, most: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """E[min(E, K)] and P(E > 0) per client, float64 [N].

    With G ~ Geometric(probability) periods between contacts, E >= k exactly if G >= g_k = ⌈(latency + k · step) /
    period⌉, so E[min(E, K)] = Σ_{k=1..K} P(G >= g_k) with P(G >= g) = (1 - probability)^(g - 1).

    Args:
        latency, per_step: [N, R], equally likely values in seconds.
        period: seconds.
        probability: of a contact per period.
        most: int [N], K.
    """
    expected = np.zeros(len(most))
    positive = np.zeros(len(most))
    for k in range(1, int(most.max()) + 1):
        gap = np.maximum(np.ceil((latency + k * per_step) / period * (1 - 1e-9)), 1)
        reached = np.power(1 - probability, gap - 1).mean(axis=1)
        expected += np.where(k <= most, reached, 0)
        if k == 1:
            positive = reached
    return expected, positive
