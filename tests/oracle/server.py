"""Every server as its paper's formula, on NumPy vectors: `step` returns x_{t+1} and leaves its diagnostics in `info`.

A step without arrivals leaves the parameters and the state alone, apart from servers with tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Discount = Callable[[int], float]


@dataclass(frozen=True)
class Update:
    """An arrival: Δ_i = x_i^K - x_s and x_s [dim], τ = t - s, n_i, K, how many times the update counts, its kind."""

    client: int
    delta: Array
    x_start: Array
    staleness: int = 0
    num_samples: int = 1
    local_steps: int = 1
    multiplicity: int = 1
    kind: str = "arrival"

    @property
    def model(self) -> Array:
        """x_i^K."""
        return self.x_start + self.delta


@dataclass(frozen=True)
class StepInfo:
    """Rate of the server, AsyncFedED's γ and next local steps by client, and counts of the step."""

    eta: float | None = None
    gamma: float | None = None
    replies: Mapping[int, int] = field(default_factory=dict)
    dropped: int = 0
    clipped: int = 0


class Server(Protocol):
    info: StepInfo

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array: ...


def weighted_sum(weights: Sequence[float], vectors: Sequence[Array]) -> Array:
    """Adds weights[i] * vectors[i] one by one."""
    total = np.zeros_like(vectors[0])
    for weight, vector in zip(weights, vectors, strict=True):
        total = total + weight * vector
    return total


def weighted_mean(weights: Sequence[float], vectors: Sequence[Array]) -> Array:
    return weighted_sum([weight / sum(weights) for weight in weights], vectors)


def mean_delta(arrivals: Sequence[Update]) -> Array:
    """Returns (1/M) Σ Δ_i, each counted `multiplicity` times."""
    return weighted_mean([u.multiplicity for u in arrivals], [u.delta for u in arrivals])


def sizes(arrivals: Sequence[Update], weights: str) -> list[float]:
    """Returns multiplicities, times the field that the weights are named after."""
    name = {"uniform": "", "samples": "num_samples", "local_steps": "local_steps"}[weights]
    return [u.multiplicity * (getattr(u, name) if name else 1) for u in arrivals]


def always(staleness: int) -> float:
    """No discount."""
    return 1.0


class FedAvg:
    """x += η Σ w_i Δ_i, w_i = n_i / Σ n or 1/n over the cohort. McMahan et al. 2017, Algorithm 1 (η = 1).

    With equal weights DeFedAvg, both algorithms; AsySG with Δ_i = -∇f_i (Lian et al. 2015).
    """

    def __init__(self, *, weights: str = "samples", eta: float = 1.0) -> None:
        self.weights, self.eta, self.info = weights, eta, StepInfo(eta=eta)

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        if not arrivals:
            return x
        return x + self.eta * weighted_mean(sizes(arrivals, self.weights), [u.delta for u in arrivals])


class FedNova:
    """x += η τ_eff Σ p_i Δ_i / K_i, τ_eff = Σ p_i K_i, p_i by samples or equal. Wang et al. 2020."""

    def __init__(self, *, eta: float = 1.0, weights: str = "samples") -> None:
        self.eta, self.weights, self.info = eta, weights, StepInfo(eta=eta)

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        size = sizes(arrivals, self.weights)
        effective = sum(one / sum(size) * u.local_steps for one, u in zip(size, arrivals, strict=True))
        return x + self.eta * effective * weighted_mean(size, [u.delta / u.local_steps for u in arrivals])


class FedAsync:
    """x <- (1 - α_t) x + α_t x_i^K with α_t = α s(τ); with mix="delta" x += α_t Δ_i.

    A arrivals in one step are applied one by one, each making a version: the j-th (from 0) has staleness A τ + j.
    Xie et al. 2019, Algorithm 1 and section 5.2; AsyncFedED, eqs. (40) and (41).
    """

    def __init__(self, *, alpha: float, discount: Discount = always, mix: str = "model") -> None:
        self.discount = discount
        self.alpha, self.mix, self.info = alpha, mix, StepInfo()

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        for j, update in enumerate(arrivals):
            alpha_t = self.alpha * self.discount(len(arrivals) * update.staleness + j)
            x = (1 - alpha_t) * x + alpha_t * update.model if self.mix == "model" else x + alpha_t * update.delta
            self.info = StepInfo(eta=alpha_t)
        return x


class AsyncFedED:
    """x += η Δ, η = λ / (γ + ε), γ = ‖x_t - x_s‖ / ‖Δ‖; K <- max(1, K + round(κ (γ̄ - γ))), at most `max_steps`.

    With ‖Δ‖ = 0, γ is 0 if x_t = x_s; else the update is dropped: x and K stay. AsyncFedED, Algorithms 1 and 2.
    """

    def __init__(
        self, *, lam: float, eps: float, target_staleness: float, kappa: float, max_steps: int,
        rounding: str = "floor", distance: str = "euclidean",
    ) -> None:  # fmt: skip
        self.lam, self.eps, self.kappa, self.max_steps = lam, eps, kappa, max_steps
        self.target_staleness, self.distance = target_staleness, distance
        self.round = math.floor if rounding == "floor" else math.trunc
        self.info = StepInfo()

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        (update,) = arrivals
        drift, length = float(np.linalg.norm(x - update.x_start)), float(np.linalg.norm(update.delta))
        if self.distance == "cosine":
            drift, length = (
                1 - float(one @ update.x_start / (np.linalg.norm(one) * np.linalg.norm(update.x_start)))
                for one in (x, update.model)
            )
        if length == 0 and drift > 0:
            self.info = StepInfo(eta=0.0, gamma=math.inf, replies={update.client: update.local_steps}, dropped=1)
            return x
        gamma = drift / length if length > 0 else 0.0
        eta = self.lam / (gamma + self.eps)
        wanted = max(1, update.local_steps + self.round(self.kappa * (self.target_staleness - gamma)))
        replies = {update.client: min(wanted, self.max_steps)}
        self.info = StepInfo(eta=eta, gamma=gamma, replies=replies, clipped=int(wanted > self.max_steps))
        return x + eta * update.delta


class FedBuff:
    """D = Σ s(τ_i) w_i Δ_i with Σ w_i = 1 (reduce="sum": M); m = β m + D; x += η m. Nguyen et al. 2022, Algorithm 1."""

    def __init__(
        self, *, eta: float = 1.0, discount: Discount = always, momentum: float = 0.0, reduce: str = "mean",
        weights: str = "uniform",
    ) -> None:  # fmt: skip
        self.eta, self.momentum, self.reduce, self.weights = eta, momentum, reduce, weights
        self.discount = discount
        self.m: Array | None = None
        self.info = StepInfo(eta=eta)

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        if not arrivals:
            return x
        size = sizes(arrivals, self.weights)
        factor = (1 if self.reduce == "mean" else sum(u.multiplicity for u in arrivals)) / sum(size)
        weights = [factor * one * self.discount(u.staleness) for one, u in zip(size, arrivals, strict=True)]
        direction = weighted_sum(weights, [u.delta for u in arrivals])
        self.m = direction if self.m is None else self.momentum * self.m + direction
        return x + self.eta * self.m


class FADAS:
    """m = b1 m + (1 - b1) D; v = b2 v + (1 - b2) D²; v̂ = max(v̂, v); x += η_t m / (√v̂ + ε), D = (1/M) Σ Δ_i.

    With k = 1, 2, ... steps: bias_correction "authors": x += (η_t / (1 - b1^k)) m / (√v̂ / √(1 - b2^k) + ε); "optax":
    v̂ = max(v̂, v / (1 - b2^k)) and m / (1 - b1^k) in the place of v̂ and m. With τ_max > τ_c, delay_scaling "eq4":
    η_t = min(η, 1 / τ_max); "eq77": η_t = η / τ_max. v̂ begins at `max_init` (FedAMS, Wang et al. 2022).
    FADAS, Algorithm 1, eqs. (4) and (77).
    """

    def __init__(
        self, *, eta: float, b1: float = 0.9, b2: float = 0.99, eps: float = 1e-8, bias_correction: str = "none",
        delay_scaling: str | None = None, tau_c: int = 0, max_init: float = 0.0,
    ) -> None:  # fmt: skip
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
        direction, tau = mean_delta(arrivals), max(u.staleness for u in arrivals)
        eta = self.eta
        if self.delay_scaling is not None and tau > self.tau_c:
            eta = min(self.eta, 1 / tau) if self.delay_scaling == "eq4" else self.eta / tau
        self.k += 1
        self.m = self.b1 * self.m + (1 - self.b1) * direction
        self.v = self.b2 * self.v + (1 - self.b2) * direction**2
        first, second = 1 - self.b1**self.k, 1 - self.b2**self.k
        self.v_hat = np.maximum(self.v_hat, self.v / second if self.bias_correction == "optax" else self.v)
        self.info = StepInfo(eta=eta)
        if self.bias_correction == "none":
            return x + eta * self.m / (np.sqrt(self.v_hat) + self.eps)
        if self.bias_correction == "authors":
            return x + (eta / first) * self.m / (np.sqrt(self.v_hat) / np.sqrt(second) + self.eps)
        return x + eta * (self.m / first) / (np.sqrt(self.v_hat) + self.eps)


class Adaptive:
    """D = mean Δ; m = b1 m + (1 - b1) D; x += η m / (√v + ε); m_0 = 0, v_0 = ε². Reddi et al. 2021, Algorithm 2.

    v is v + D² ("adagrad"), b2 v + (1 - b2) D² ("adam") or v - (1 - b2) D² sign(v - D²) ("yogi").
    """

    def __init__(self, rule: str, *, eta: float, b1: float = 0.9, b2: float = 0.99, eps: float = 1e-3) -> None:
        self.rule, self.eta, self.b1, self.b2, self.eps = rule, eta, b1, b2, eps
        self.m: Array | float = 0.0
        self.v: Array | float = eps**2
        self.info = StepInfo(eta=eta)

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        direction = mean_delta(arrivals)
        square = direction**2
        self.m = self.b1 * self.m + (1 - self.b1) * direction
        self.v = {
            "adagrad": self.v + square,
            "adam": self.b2 * self.v + (1 - self.b2) * square,
            "yogi": self.v - (1 - self.b2) * square * np.sign(self.v - square),
        }[self.rule]
        return x + self.eta * self.m / (np.sqrt(self.v) + self.eps)


class CA2FL:
    """On arrival D += Δ_i - h_i, then h_i <- Δ_i; at M arrivals x += η (h̄ + D / M), h̄ from before this buffer.

    Wang et al. 2024 (CA2FL).
    """

    def __init__(self, *, eta: float, num_clients: int, dim: int) -> None:
        self.eta, self.cache, self.info = eta, np.zeros((num_clients, dim)), StepInfo(eta=eta)

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        if not arrivals:
            return x
        cached_mean, surprise = self.cache.mean(axis=0), np.zeros_like(x)
        for update in arrivals:
            surprise = surprise + update.delta - self.cache[update.client]
            self.cache[update.client] = update.delta
        return x + self.eta * (cached_mean + surprise / len(arrivals))


class AUDG:
    """x -= η Σ λ_i ∇f_i(x_s) over the arrived i, λ_i = n_i / Σ n over ALL clients. Delays in AFL, Algorithm 2."""

    def __init__(self, *, eta: float, num_samples: Sequence[int]) -> None:
        self.eta, self.weights = eta, np.asarray(num_samples, float) / sum(num_samples)
        self.info = StepInfo(eta=eta)

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        for update in arrivals:
            x = x + self.eta * self.weights[update.client] * update.delta
        return x


class PSURDG(AUDG):
    """The same sum over ALL clients, with the last gradient received from each (0 before the first). Algorithm 3."""

    def __init__(self, *, eta: float, num_samples: Sequence[int], dim: int) -> None:
        super().__init__(eta=eta, num_samples=num_samples)
        self.last = np.zeros((len(num_samples), dim))

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        for update in arrivals:
            self.last[update.client] = update.delta
        return x + self.eta * (self.weights @ self.last)


class FAVANO:
    """x <- (x + Σ u_i) / (s + 1), u_i = x_s + Δ_i / a_i over the s contacted clients (x_s if E_i = 0).

    a_i = normaliser_i ("deterministic") or normaliser_i E_i ("stochastic"), with E_i local steps. Leconte et al. 2023.
    """

    def __init__(self, *, normaliser: Sequence[float], reweight: str = "deterministic") -> None:
        self.normaliser, self.reweight, self.info = normaliser, reweight, StepInfo()

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        total = np.array(x, float)
        for update in arrivals:
            total = total + update.x_start
            if update.local_steps > 0:
                steps = update.local_steps if self.reweight == "stochastic" else 1
                total = total + update.delta / (self.normaliser[update.client] * steps)
        return total / (len(arrivals) + 1)


def gap_expectations(
    *, period: float, step_times: Sequence[float], contact_probability: float, max_steps: int
) -> tuple[float, float]:
    """Returns E[min(E, K)] and P(E > 0) if a run's seconds per local step are drawn from equally likely ones.

    E = ⌊g period / step_time⌋ with g = 1, 2, ... periods between two contacts: P(g) = p (1 - p)^(g-1).
    """
    expected, positive = 0.0, 0.0
    for step_time in step_times:
        survival, steps, g = 1.0, 0, 0
        while steps < max_steps and survival > 0:  # from then on every gap gives K steps
            g += 1
            more = math.floor(g * period / step_time)
            expected += survival * (min(more, max_steps) - steps)
            positive += survival * ((more > 0) - (steps > 0))
            survival, steps = survival * (1 - contact_probability), min(more, max_steps)
    return expected / len(step_times), positive / len(step_times)


class QuAFL:
    """x <- p x + (1 - p) mean x_i and x_i <- p x_old + (1 - p) x_i over the s contacted clients, p = 1 / (s + 1).

    x_i is the client's OWN model plus Δ_i. Without the quantiser. Zakerinia et al. 2022.
    """

    def __init__(self, *, num_clients: int, x0: Array) -> None:
        self.models, self.info = np.tile(np.asarray(x0, float), (num_clients, 1)), StepInfo()

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        p = 1 / (len(arrivals) + 1)
        trained = {update.client: self.models[update.client] + update.delta for update in arrivals}
        for client, model in trained.items():
            self.models[client] = p * x + (1 - p) * model
        return np.asarray(p * x + (1 - p) * np.mean(list(trained.values()), axis=0))


class AFL:
    """x <- Σ w_i x_i^K with w_i ∝ n_i. AFL with non-convex objectives, Algorithm 1."""

    info = StepInfo()

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        return weighted_mean(sizes(arrivals, "samples"), [u.model for u in arrivals])


class SAFA:
    """x <- Σ (n_k / Σ n) cache_k over ALL clients; every cache begins as x_0. Wu et al. 2020.

    Before it, entries of deprecated clients become x_t (their update is x_t with Δ = 0), and those of picked clients
    their models; after it, those of undrafted clients theirs.
    """

    def __init__(self, *, num_samples: Sequence[int], x0: Array) -> None:
        self.weights = np.asarray(num_samples, float) / sum(num_samples)
        self.cache, self.info = np.tile(np.asarray(x0, float), (len(num_samples), 1)), StepInfo()

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        for after in (False, True):
            x_new = np.asarray(self.weights @ self.cache)
            for update in arrivals:
                if (update.kind == "undrafted") == after:
                    self.cache[update.client] = update.model
        return x_new


class LastUpdates:
    """x += η (1/N) Σ of the last Δ_i of ALL clients; an arrival replaces its client's row.

    begin: "at once", "full" (with the arrivals by which every client has come, ACE, Chang et al. 2025), or "later"
    (with the first step after those, or with them if all are in the first step: MIFA, Gu et al. 2021, and IA2SGD).
    """

    def __init__(self, *, eta: float, num_clients: int, dim: int, begin: str) -> None:
        self.eta, self.begin = eta, begin
        self.rows = np.zeros((num_clients, dim))
        self.stamps: list[int | None] = [None] * num_clients
        self.count = 0
        self.info = StepInfo()

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        t, self.count = self.count, self.count + 1
        begins = {"at once": True, "later": None not in self.stamps}.get(self.begin)
        if begins is False and len({update.client for update in arrivals}) == len(self.rows):
            begins = set(self.stamps) == {None}
        for update in arrivals:
            self.rows[update.client] = update.delta
            self.stamps[update.client] = self.stamp(t, update)
        begins = None not in self.stamps if begins is None else begins
        self.info = StepInfo(eta=self.eta if begins else 0.0)
        return x + self.eta * self.direction(t) if begins else x

    def stamp(self, t: int, update: Update) -> int:
        return t

    def direction(self, t: int) -> Array:
        return np.asarray(self.rows.mean(axis=0))


class ACED(LastUpdates):
    """The mean over {i: t - s_i <= max_age} only; 0 if there are none. Chang et al. 2025.

    s_i is the step after which i last got the model ("dispatch"), or the version of its row's gradient ("row").
    """

    def __init__(self, *, max_age: float, age: str = "dispatch", eta: float, num_clients: int, dim: int) -> None:
        super().__init__(begin="full", eta=eta, num_clients=num_clients, dim=dim)
        self.max_age, self.age = max_age, age

    def stamp(self, t: int, update: Update) -> int:
        return t if self.age == "dispatch" else t - update.staleness

    def direction(self, t: int) -> Array:
        chosen = [row for row, s in zip(self.rows, self.stamps, strict=True) if s is not None and t - s <= self.max_age]
        return np.asarray(np.mean(chosen, axis=0) if chosen else np.zeros_like(self.rows[0]))


class FedStale:
    """x += η (Σ_S (α_i / p_i) (Δ_i - β h_i) + β Σ α_i h_i); then h_i <- Δ_i for i in S. Rodio, Neglia 2024.

    p: participation probabilities [N], or `None` for the share of steps so far in which the client has arrived.
    """

    def __init__(
        self, *, alpha: Sequence[float], p: Sequence[float] | None, beta: float, dim: int, eta: float = 1.0
    ) -> None:
        self.alpha, self.p, self.beta, self.eta = np.asarray(alpha), p, beta, eta
        self.steps, self.arrived, self.h = 0, np.zeros(len(alpha)), np.zeros((len(alpha), dim))
        self.info = StepInfo(eta=eta)

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        step = self.beta * self.alpha @ self.h
        self.steps += 1
        for i in {update.client for update in arrivals}:
            self.arrived[i] += 1
        p = self.arrived / self.steps if self.p is None else self.p
        for update in arrivals:
            i = update.client
            step = step + self.alpha[i] / p[i] * (update.delta - self.beta * self.h[i])
        for update in arrivals:
            self.h[update.client] = update.delta
        return np.asarray(x + self.eta * step)


class AREA:
    """x += (1/N) Σ (x_i - y_i) over arrivals, y_i <- x_i, y_i = x_0 at first. Iakovidou, Kim 2024."""

    def __init__(self, *, num_clients: int, x0: Array) -> None:
        self.y, self.info = np.tile(x0, (num_clients, 1)), StepInfo()

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        for update in arrivals:
            x = x + (update.model - self.y[update.client]) / len(self.y)
            self.y[update.client] = update.model
        return x


class Kardam:
    """x += u with u = η s(τ) Δ_i, if its Lipschitz coefficient is small. Damaskinos et al. 2018.

    quantile: of the clients' largest coefficients; window: coefficients kept per client.
    """

    def __init__(self, *, num_clients: int, eta: float, dampening: Discount, quantile: float, window: int) -> None:
        self.clients, self.eta, self.dampening = num_clients, eta, dampening
        self.quantile, self.window = quantile, window
        self.before: dict[int, tuple[Array, Array]] = {}
        self.known: dict[int, list[float]] = {}
        self.last: tuple[Array, Array] | None = None
        self.row = 0
        self.info = StepInfo()

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        (arrival,) = arrivals
        client, start = arrival.client, arrival.x_start
        u = self.eta * self.dampening(arrival.staleness) * arrival.delta
        if client in self.before and np.any(start != self.before[client][1]):
            coefficient = np.linalg.norm(u - self.before[client][0]) / np.linalg.norm(start - self.before[client][1])
            self.known.setdefault(client, []).append(float(coefficient))
        self.before[client] = u, start
        largest = [max(values[-self.window :]) for values in self.known.values()]
        passes = not largest or self.row >= self.clients
        if not passes:
            assert self.last is not None
            moved = np.linalg.norm(start - self.last[1])
            ratio = np.linalg.norm(u - self.last[0])
            passes = moved == 0 or ratio / moved <= np.quantile(largest, self.quantile)
        if not passes:
            self.row += 1
            return x
        self.row, self.last = 0, (u, start)
        return x + u


class PickySGD:
    """x += η Δ_i if ‖x - x_s‖ <= distance = ε / (2 β), else x stays. Cohen et al. 2021, Algorithm 1."""

    def __init__(self, *, eta: float, distance: float) -> None:
        self.eta, self.distance, self.info = eta, distance, StepInfo(eta=eta)

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        (arrival,) = arrivals
        near = sum(float(a - b) ** 2 for a, b in zip(x, arrival.x_start, strict=True)) <= self.distance**2
        return x + self.eta * arrival.delta if near else x


class DelayAdaptive:
    """x += η_t Δ, η_t = η if τ <= c, else η c / τ ("ratio"), 0 ("drop"), or min(η, 1 / (4 L τ)) with a smoothness L.

    Mishchenko et al. 2022; Koloskova et al. 2022, eq. (11).
    """

    def __init__(self, *, eta: float, c: float, rule: str = "ratio", smoothness: float | None = None) -> None:
        self.eta, self.c, self.rule, self.smoothness, self.info = eta, c, rule, smoothness, StepInfo()

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


class DelayedNesterov:
    """Momentum that changes with every N-th arrival, by the mean update since then. Liu et al. 2024."""

    def __init__(self, *, eta: float, beta: float, period: int, c: float) -> None:
        self.eta, self.beta, self.period, self.c, self.info = eta, beta, period, c, StepInfo()
        self.momentum, self.since = np.zeros(0), list[Array]()

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        (update,) = arrivals
        self.since.append(update.delta)
        factor, m = self.c, self.momentum if len(self.momentum) else np.zeros_like(x)
        if len(self.since) == self.period:
            m = self.momentum = self.beta * m + np.mean(self.since, axis=0)
            self.since, factor = [], 1 - self.c * (self.period - 1)
        return x + self.eta * (factor * self.beta * m + update.delta / self.period)


class FedFa:
    """x <- the mean of the last M uploaded models, once there are M. Xu et al. 2024."""

    def __init__(self, *, window: int) -> None:
        self.window, self.info = window, StepInfo()
        self.models: list[Array] = []

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        (update,) = arrivals
        self.models = [*self.models, update.model][-self.window :]
        return np.asarray(np.mean(self.models, axis=0)) if len(self.models) == self.window else x


class PORT:
    """x += Σ p_i Δ_i, p_i ∝ n_i (w_sim (cos_i + 1) / 2 + w_st B / (τ_i + B)). Su, Li 2022.

    cos_i between Δ_i and x_t - x_{t-1} if τ_i > 1, else 1.
    """

    def __init__(self, *, similarity: float = 1.0, staleness: float = 3.0, bound: float = 10.0) -> None:
        self.similarity, self.staleness, self.bound = similarity, staleness, bound
        self.previous: Array | None = None
        self.info = StepInfo()

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        last = np.zeros_like(x) if self.previous is None else x - self.previous
        raw = [one * self._value(u, last) for one, u in zip(sizes(arrivals, "samples"), arrivals, strict=True)]
        self.previous = x
        return x + weighted_mean(raw, [u.delta for u in arrivals])

    def _value(self, update: Update, last: Array) -> float:
        cosine, tau = 1.0, update.staleness
        if tau > 1:
            lengths = float(np.linalg.norm(update.delta) * np.linalg.norm(last))
            cosine = float(update.delta @ last) / lengths if lengths > 0 else 0.0
        return self.similarity * (cosine + 1) / 2 + self.staleness * self.bound / (tau + self.bound)
