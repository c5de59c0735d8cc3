"""Synchronous adaptive servers: FedAdagrad, FedAdam, FedYogi, FedAMS."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .server import FADAS
from .update import Array, StepInfo, Update, mean_delta


class FedAdagrad:
    """D = mean Delta; m = b1 m + (1 - b1) D; v += D^2; x += eta m / (sqrt(v) + eps); m_0 = 0, v_0 = eps^2.

    Reddi et al. 2021, Algorithm 2 (no bias correction).
    """

    def __init__(self, *, eta: float, b1: float = 0.9, eps: float = 1e-3) -> None:
        self.eta, self.b1, self.eps = eta, b1, eps
        self.m: Array | float = 0.0
        self.v: Array | float = eps**2
        self.info = StepInfo(eta=eta)

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        direction = mean_delta(arrivals)
        self.m = self.b1 * self.m + (1 - self.b1) * direction
        self.v = self.v + direction**2
        return x + self.eta * self.m / (np.sqrt(self.v) + self.eps)


class FedAdam:
    """As `FedAdagrad`, with v = b2 v + (1 - b2) D^2. Reddi et al. 2021, Algorithm 2."""

    def __init__(self, *, eta: float, b1: float = 0.9, b2: float = 0.99, eps: float = 1e-3) -> None:
        self.eta, self.b1, self.b2, self.eps = eta, b1, b2, eps
        self.m: Array | float = 0.0
        self.v: Array | float = eps**2
        self.info = StepInfo(eta=eta)

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        direction = mean_delta(arrivals)
        self.m = self.b1 * self.m + (1 - self.b1) * direction
        self.v = self.b2 * self.v + (1 - self.b2) * direction**2
        return x + self.eta * self.m / (np.sqrt(self.v) + self.eps)


class FedYogi:
    """As `FedAdagrad`, with v = v - (1 - b2) D^2 sign(v - D^2). Reddi et al. 2021, Algorithm 2."""

    def __init__(self, *, eta: float, b1: float = 0.9, b2: float = 0.99, eps: float = 1e-3) -> None:
        self.eta, self.b1, self.b2, self.eps = eta, b1, b2, eps
        self.m: Array | float = 0.0
        self.v: Array | float = eps**2
        self.info = StepInfo(eta=eta)

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        direction = mean_delta(arrivals)
        self.m = self.b1 * self.m + (1 - self.b1) * direction
        self.v = self.v - (1 - self.b2) * direction**2 * np.sign(self.v - direction**2)
        return x + self.eta * self.m / (np.sqrt(self.v) + self.eps)


def fedams(
    *,
    eta: float,
    b1: float = 0.9,
    b2: float = 0.99,
    eps: float = 1e-8,
    bias_correction: str = "none",
    max_init: float = 0.0,
) -> FADAS:
    """FADAS's step on a synchronous cohort, with v_hat starting at (so never below) `max_init`.

    Its authors' code has max_init = 1e-3, eps = 0 and corrects the bias. Wang et al. 2022, Algorithm 1.
    """
    return FADAS(eta=eta, b1=b1, b2=b2, eps=eps, bias_correction=bias_correction, max_init=max_init)
