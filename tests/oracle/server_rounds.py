"""Servers of staleness-weighted and semi-asynchronous rounds: AFL and SAFA."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .update import Array, StepInfo, Update, weighted_sum


class AFL:
    """x <- sum_i w_i x_i^K with w_i proportional to n_i s(tau_i); s = 1 (a = 0) or (1 + tau)^-a.

    "Asynchronous Federated Learning with non-convex client objective functions and heterogeneous dataset", Algorithm 1
    (s = 1 in its experiments).
    """

    def __init__(self, *, a: float = 0.0) -> None:
        self.a = a
        self.info = StepInfo()

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        weights = [u.multiplicity * u.num_samples * float((1 + u.staleness) ** -self.a) for u in arrivals]
        total = sum(weights)
        return weighted_sum([weight / total for weight in weights], [u.model for u in arrivals])


class SAFA:
    """x <- sum over ALL clients of (n_k / sum n) cache_k; every cache starts as x_0.

    Before the aggregation the entries of deprecated clients are replaced by x_t, then those of picked clients by their
    models (a deprecated client that was picked too ends with its model); after it, those of undrafted clients by
    theirs.

    Wu et al. 2020 (SAFA): pre-aggregation cache update, aggregation, post-aggregation cache update.

    Args:
        num_samples: n_k of every client, [N].
        x0: Initial parameters, [dim].
    """

    def __init__(self, *, num_samples: Sequence[int], x0: Array) -> None:
        self.weights = np.asarray(num_samples, dtype=np.float64) / sum(num_samples)
        self.cache = np.tile(np.asarray(x0, dtype=np.float64), (len(num_samples), 1))
        self.info = StepInfo()

    def step(
        self,
        x: Array,
        arrivals: Sequence[Update],
        undrafted: Sequence[Update] = (),
        deprecated: Sequence[int] = (),
    ) -> Array:
        """One round: `arrivals` are the picked updates."""
        for client in deprecated:
            self.cache[client] = x
        for update in arrivals:
            self.cache[update.client] = update.model
        x_new = np.asarray(self.weights @ self.cache)
        for update in undrafted:
            self.cache[update.client] = update.model
        return x_new
