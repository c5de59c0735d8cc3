"""Further buffered servers: CA2FL and the two DeFedAvg."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .update import Array, StepInfo, Update, mean_delta, require_single


class CA2FL:
    """On arrival D += Delta_i - h_i, then h_i <- Delta_i; at M arrivals x += eta (h_bar + D / M).

    h_bar = (1/N) sum h_i from before this buffer; h_i = 0 at first. Wang et al. 2024 (CA2FL).

    Args:
        eta: Server rate.
        num_clients: N.
        dim: Number of parameters.
    """

    def __init__(self, *, eta: float, num_clients: int, dim: int) -> None:
        self.eta = eta
        self.cache = np.zeros((num_clients, dim))
        self.info = StepInfo(eta=eta)

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        require_single(arrivals, "ca2fl")
        if not arrivals:
            return x
        cached_mean = self.cache.mean(axis=0)
        surprise = np.zeros_like(x)
        for update in arrivals:
            surprise = surprise + update.delta - self.cache[update.client]
            self.cache[update.client] = update.delta
        return x + self.eta * (cached_mean + surprise / len(arrivals))


class DeFedAvgIID:
    """x += (eta / n) sum of Delta_i over the n updates that complete first. DeFedAvg, Algorithm 2."""

    def __init__(self, *, eta: float = 1.0) -> None:
        self.eta = eta
        self.info = StepInfo(eta=eta)

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        require_single(arrivals, "defedavg_iid")
        total = np.sum([update.delta for update in arrivals], axis=0)
        return np.asarray(x + self.eta / len(arrivals) * total)


class DeFedAvgNonIID:
    """x += (eta / n) sum of Delta_i over the n draws WITH multiplicity. DeFedAvg, Algorithm 1 line 7 and eq. (8)."""

    def __init__(self, *, eta: float = 1.0) -> None:
        self.eta = eta
        self.info = StepInfo(eta=eta)

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        return x + self.eta * mean_delta(arrivals)
