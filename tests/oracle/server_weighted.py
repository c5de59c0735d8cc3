"""Servers with weights or rates of their own: FedNova, delay-adaptive SGD, FedFa, PORT."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .update import Array, StepInfo, Update, require_single, weighted_sum


class FedNova:
    """x += eta tau_eff sum_i p_i Delta_i / K_i, tau_eff = sum_i p_i K_i, p_i by samples or equal. Wang et al. 2020."""

    def __init__(self, *, eta: float = 1.0, weights: str = "samples") -> None:
        self.eta, self.weights = eta, weights
        self.info = StepInfo(eta=eta)

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        size = [u.multiplicity * (u.num_samples if self.weights == "samples" else 1) for u in arrivals]
        p = np.asarray(size) / sum(size)
        effective = sum(share * u.local_steps for share, u in zip(p, arrivals, strict=True))
        normalised = [u.delta / u.local_steps for u in arrivals]
        return x + self.eta * effective * weighted_sum(list(p), normalised)


class DelayAdaptive:
    """x += eta_t Delta, eta_t = eta if tau <= c, else eta c / tau ("ratio"), 0 ("drop"), min(eta, 1 / (4 L tau)).

    Mishchenko et al. 2022; Koloskova et al. 2022, eq. (11).
    """

    def __init__(self, *, eta: float, c: float, rule: str = "ratio", smoothness: float | None = None) -> None:
        self.eta, self.c, self.rule, self.smoothness = eta, c, rule, smoothness
        self.info = StepInfo()

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        (update,) = arrivals
        rate, tau = self.eta, update.staleness
        if tau > self.c:
            if self.smoothness is not None:
                rate = min(rate, 1 / (4 * self.smoothness * tau))
            else:
                rate = rate * self.c / tau if self.rule == "ratio" else 0.0
        self.info = StepInfo(eta=rate)
        return x + rate * update.delta


class FedFa:
    """x <- the mean of the last M uploaded models, once there are M. Xu et al. 2024."""

    def __init__(self, *, window: int) -> None:
        self.window = window
        self.models: list[Array] = []
        self.info = StepInfo()

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        require_single(arrivals, "fedfa")
        (update,) = arrivals
        self.models = [*self.models, update.model][-self.window :]
        return np.asarray(np.mean(self.models, axis=0)) if len(self.models) == self.window else x


class PORT:
    """x += sum p_i Delta_i, p_i in proportion to n_i (w_sim (cos_i + 1) / 2 + w_st B / (tau_i + B)).

    cos_i between Delta_i and x_t - x_{t-1} if tau_i > 1, else 1. Su, Li 2022.
    """

    def __init__(self, *, similarity: float = 1.0, staleness: float = 3.0, bound: float = 10.0) -> None:
        self.similarity, self.staleness, self.bound = similarity, staleness, bound
        self.previous: Array | None = None
        self.info = StepInfo()

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        last = np.zeros_like(x) if self.previous is None else x - self.previous
        raw = [u.multiplicity * u.num_samples * self._value(u, last) for u in arrivals]
        self.previous = x
        return x + weighted_sum([one / sum(raw) for one in raw], [u.delta for u in arrivals])

    def _value(self, update: Update, last: Array) -> float:
        cosine, tau = 1.0, update.staleness
        if tau > 1:
            lengths = float(np.linalg.norm(update.delta) * np.linalg.norm(last))
            cosine = float(update.delta @ last) / lengths if lengths > 0 else 0.0
        return self.similarity * (cosine + 1) / 2 + self.staleness * self.bound / (tau + self.bound)
