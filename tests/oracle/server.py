"""FedAvg, FedAsync, AsyncFedED, FedBuff and FADAS, written from their papers' formulas.

Without arrivals FedAvg, FedBuff and FADAS leave the parameters and their own state alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from .update import Array, StepInfo, Update, mean_delta, require_single, weighted_sum


class FedAvg:
    """x += eta sum_i w_i Delta_i, w_i = n_i / sum n over the cohort ("samples"), or 1/n ("uniform").

    McMahan et al. 2017, Algorithm 1 (eta = 1).
    """

    def __init__(self, *, weights: str = "samples", eta: float = 1.0) -> None:
        if weights not in ("samples", "uniform"):
            raise ValueError(f'weights must be "samples" or "uniform", got {weights!r}')
        self.weights, self.eta = weights, eta
        self.info = StepInfo(eta=eta)

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        if not arrivals:
            return x
        weights = [u.multiplicity * (u.num_samples if self.weights == "samples" else 1) for u in arrivals]
        total = sum(weights)
        return x + self.eta * weighted_sum([w / total for w in weights], [u.delta for u in arrivals])


class FedAsync:
    """x <- (1 - alpha_t) x + alpha_t x_i^K with alpha_t = alpha s(tau); with mix="delta" x += alpha_t Delta_i.

    s(tau) is 1 ("constant"), (1 + tau)^-a ("polynomial"), or 1 if tau <= b else 1 / (a (tau - b) + 1) ("hinge").
    A arrivals in one step are applied one after another in the given order, each making its own version: the j-th
    (from 0) sees staleness A tau + j.

    Xie et al. 2019, Algorithm 1 and section 5.2; AsyncFedED, eqs. (40) and (41).
    """

    def __init__(
        self,
        *,
        alpha: float,
        weighting: str | Callable[[int], float] = "constant",
        a: float = 0.5,
        b: float = 4.0,
        mix: str = "model",
    ) -> None:
        if weighting not in ("constant", "polynomial", "hinge") and not callable(weighting):
            raise ValueError(f'weighting must be "constant", "polynomial", "hinge" or a function, got {weighting!r}')
        if mix not in ("model", "delta"):
            raise ValueError(f'mix must be "model" or "delta", got {mix!r}')
        self.alpha, self.weighting, self.a, self.b, self.mix = alpha, weighting, a, b, mix
        self.info = StepInfo()

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        require_single(arrivals, "fedasync")
        for j, update in enumerate(arrivals):
            alpha_t = self.alpha * self._staleness_weight(len(arrivals) * update.staleness + j)
            x = (1 - alpha_t) * x + alpha_t * update.model if self.mix == "model" else x + alpha_t * update.delta
            self.info = StepInfo(eta=alpha_t)
        return x

    def _staleness_weight(self, tau: int) -> float:
        if callable(self.weighting):
            return self.weighting(tau)
        if self.weighting == "polynomial":
            return float((1 + tau) ** -self.a)
        if self.weighting == "hinge" and tau > self.b:
            return 1 / (self.a * (tau - self.b) + 1)
        return 1.0


class AsyncFedED:
    """x += eta Delta, eta = lam / (gamma + eps), gamma = ||x_t - x_s|| / ||Delta||; K changes with gamma.

    K <- max(1, K + round(kappa (gamma_bar - gamma))).

    gamma_bar is `target_staleness`. The new K is at least 1 and at most `max_steps` (cutting it down is counted as
    clipped), and is the reply to the client that arrived. With ||Delta|| = 0, gamma is 0 if x_t = x_s; otherwise the
    update is dropped: x and K stay, gamma is infinite, eta 0. Rounding: "floor" (towards minus infinity) or "truncate"
    (towards zero).

    AsyncFedED, Algorithms 1 and 2.
    """

    def __init__(
        self,
        *,
        lam: float,
        eps: float,
        target_staleness: float,
        kappa: float,
        max_steps: int,
        rounding: str = "floor",
        distance: str = "euclidean",
    ) -> None:
        if rounding not in ("floor", "truncate"):
            raise ValueError(f'rounding must be "floor" or "truncate", got {rounding!r}')
        self.lam, self.eps, self.kappa, self.max_steps = lam, eps, kappa, max_steps
        self.target_staleness, self.distance = target_staleness, distance
        self.round = math.floor if rounding == "floor" else math.trunc
        self.info = StepInfo()

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        if len(arrivals) != 1:
            raise ValueError(f"asyncfeded takes one arrival per server step, got {len(arrivals)}")
        require_single(arrivals, "asyncfeded")
        (update,) = arrivals
        drift, length = float(np.linalg.norm(x - update.x_start)), float(np.linalg.norm(update.delta))
        if self.distance == "cosine":
            drift, length = (
                1 - float(one @ update.x_start / (np.linalg.norm(one) * np.linalg.norm(update.x_start)))
                for one in (x, update.x_start + update.delta)
            )
        if length == 0 and drift > 0:
            self.info = StepInfo(eta=0.0, gamma=math.inf, replies={update.client: update.local_steps}, dropped=1)
            return x
        gamma = drift / length if length > 0 else 0.0
        eta = self.lam / (gamma + self.eps)
        unclipped = max(1, update.local_steps + self.round(self.kappa * (self.target_staleness - gamma)))
        self.info = StepInfo(
            eta=eta,
            gamma=gamma,
            replies={update.client: min(unclipped, self.max_steps)},
            clipped=int(unclipped > self.max_steps),
        )
        return x + eta * update.delta


class FedBuff:
    """D = sum_i s(tau_i) w_i Delta_i, w_i = 1/M (reduce="sum": times M); m = beta m + D; x += eta m.

    s(tau) is 1 (scaling=None), 1 / sqrt(1 + tau) (scaling="sqrt") or a function of tau; w_i may also be the share of
    the samples or of the local steps. Nguyen et al. 2022, Algorithm 1.
    """

    def __init__(
        self,
        *,
        eta: float = 1.0,
        scaling: str | Callable[[int], float] | None = None,
        momentum: float = 0.0,
        reduce: str = "mean",
        weights: str = "uniform",
    ) -> None:
        if scaling not in (None, "sqrt") and not callable(scaling):
            raise ValueError(f'scaling must be None, "sqrt" or a function, got {scaling!r}')
        if reduce not in ("mean", "sum"):
            raise ValueError(f'reduce must be "mean" or "sum", got {reduce!r}')
        self.eta, self.momentum, self.reduce = eta, momentum, reduce
        self.discount = scaling if callable(scaling) else lambda tau: 1.0 if scaling is None else (1 + tau) ** -0.5
        self.field = {"uniform": "multiplicity", "samples": "num_samples", "local_steps": "local_steps"}[weights]
        self.m: Array | None = None
        self.info = StepInfo(eta=eta)

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        if not arrivals:
            return x
        size = [getattr(u, self.field) * (1 if self.field == "multiplicity" else u.multiplicity) for u in arrivals]
        factor = 1 / sum(size) if self.reduce == "mean" else sum(u.multiplicity for u in arrivals) / sum(size)
        weights = [factor * one * self.discount(u.staleness) for one, u in zip(size, arrivals, strict=True)]
        direction = weighted_sum(weights, [u.delta for u in arrivals])
        self.m = direction if self.m is None else self.momentum * self.m + direction
        return x + self.eta * self.m


class FADAS:
    """m = b1 m + (1 - b1) D; v = b2 v + (1 - b2) D^2; v_hat = max(v_hat, v); x += eta_t m / (sqrt(v_hat) + eps).

    D = (1/M) sum_i Delta_i; m, v start at 0, v_hat at `max_init`; all elementwise. With k = 1, 2, ... the step count,
    bias_correction "none": as above; "authors": x += (eta_t / (1 - b1^k)) m / (sqrt(v_hat) / sqrt(1 - b2^k) + eps);
    "optax": v_hat = max(v_hat, v / (1 - b2^k)) and m / (1 - b1^k) replace v_hat and m.

    With tau_max = max tau_i of the buffer, delay_scaling None: eta_t = eta; "eq4": eta if tau_max <= tau_c else
    min(eta, 1 / tau_max); "eq77": eta if tau_max <= tau_c else eta / tau_max.

    FADAS, Algorithm 1, eqs. (4) and (77).
    """

    def __init__(
        self,
        *,
        eta: float,
        b1: float = 0.9,
        b2: float = 0.99,
        eps: float = 1e-8,
        bias_correction: str = "none",
        delay_scaling: str | None = None,
        tau_c: int | None = None,
        max_init: float = 0.0,
    ) -> None:
        if bias_correction not in ("none", "authors", "optax"):
            raise ValueError(f'bias_correction must be "none", "authors" or "optax", got {bias_correction!r}')
        if delay_scaling not in (None, "eq4", "eq77"):
            raise ValueError(f'delay_scaling must be None, "eq4" or "eq77", got {delay_scaling!r}')
        if delay_scaling is not None and tau_c is None:
            raise ValueError(f"delay_scaling={delay_scaling!r} needs tau_c")
        self.eta, self.b1, self.b2, self.eps = eta, b1, b2, eps
        self.bias_correction, self.delay_scaling, self.tau_c = bias_correction, delay_scaling, tau_c
        self.m: Array | float = 0.0
        self.v: Array | float = 0.0
        self.v_hat: Array | float = max_init
        self.k = 0
        self.info = StepInfo()

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        if not arrivals:
            return x
        direction = mean_delta(arrivals)
        eta_t = self._rate(max(u.staleness for u in arrivals))
        self.k += 1
        self.m = self.b1 * self.m + (1 - self.b1) * direction
        self.v = self.b2 * self.v + (1 - self.b2) * direction**2
        correction_1, correction_2 = 1 - self.b1**self.k, 1 - self.b2**self.k
        candidate = self.v / correction_2 if self.bias_correction == "optax" else self.v
        self.v_hat = np.maximum(self.v_hat, candidate)
        self.info = StepInfo(eta=eta_t)
        if self.bias_correction == "none":
            return x + eta_t * self.m / (np.sqrt(self.v_hat) + self.eps)
        if self.bias_correction == "authors":
            return x + (eta_t / correction_1) * self.m / (np.sqrt(self.v_hat) / np.sqrt(correction_2) + self.eps)
        return x + eta_t * (self.m / correction_1) / (np.sqrt(self.v_hat) + self.eps)

    def _rate(self, tau_max: int) -> float:
        if self.delay_scaling is None or self.tau_c is None or tau_max <= self.tau_c:
            return self.eta
        return min(self.eta, 1 / tau_max) if self.delay_scaling == "eq4" else self.eta / tau_max
