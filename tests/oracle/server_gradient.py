"""Servers that apply gradients: AsySG, AUDG, PSURDG.

A local run is one gradient step without a local rate, so an arrival carries Delta_i = -grad f_i(x_s) (train with
`LocalTraining(learning_rate=1, steps=1)`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .update import Array, StepInfo, Update, mean_delta, require_single


class AsySG:
    """x -= eta (1/n) sum of grad f(x_s) over the n arrivals. Lian et al. 2015; DeFedAvg's IID baseline."""

    def __init__(self, *, eta: float) -> None:
        self.eta = eta
        self.info = StepInfo(eta=eta)

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        return x + self.eta * mean_delta(arrivals) if arrivals else x


class AUDG:
    """x -= eta sum over the arrived i of lambda_i grad f_i(x_s), lambda_i = n_i / sum over ALL clients.

    Not divided by the number of arrivals; a tick without arrivals leaves x alone.

    "The Impact Analysis of Delays in Asynchronous Federated Learning with Data Heterogeneity for Edge Intelligence",
    Algorithm 2.

    Args:
        eta: Server rate.
        num_samples: n_i of every client, [N].
    """

    def __init__(self, *, eta: float, num_samples: Sequence[int]) -> None:
        self.eta = eta
        self.weights = np.asarray(num_samples, dtype=np.float64) / sum(num_samples)
        self.info = StepInfo(eta=eta)

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        require_single(arrivals, "audg")
        for update in arrivals:
            x = x + self.eta * self.weights[update.client] * update.delta
        return x


class PSURDG:
    """x -= eta sum over ALL clients of lambda_i g_i, g_i the last gradient received from i (0 before the first).

    The same paper as for `AUDG`, Algorithm 3.

    Args:
        eta: Server rate.
        num_samples: n_i of every client, [N].
        dim: Number of parameters.
    """

    def __init__(self, *, eta: float, num_samples: Sequence[int], dim: int) -> None:
        self.eta = eta
        self.weights = np.asarray(num_samples, dtype=np.float64) / sum(num_samples)
        self.last = np.zeros((len(num_samples), dim))
        self.info = StepInfo(eta=eta)

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        require_single(arrivals, "psurdg")
        for update in arrivals:
            self.last[update.client] = update.delta
        return x + self.eta * (self.weights @ self.last)
