"""Slow NumPy simulations of quadratic clients, all seeds at once: what bounds are compared with.

Every function returns the models x_0 .. x_T, [T + 1, seeds, d].
"""

from __future__ import annotations

import numpy as np

from jaxafl.theory import Quadratic

Array = np.ndarray


def gradients_at(problem: Quadratic, w: Array) -> Array:
    """∇f_i(w) of models [seeds, d]: [seeds, N, d]."""
    return np.einsum("nij,snj->sni", problem.curvature, w[:, None] - problem.centres)


def mean_gradient_norms(problem: Quadratic, path: Array) -> Array:
    """(1/T) Σ_{t<T} of the mean over seeds of ‖∇F(x_t)‖², [T]."""
    gradient = np.einsum("ij,tsj->tsi", problem.mean_curvature, path[:-1] - problem.solution)
    return np.cumsum(np.sum(gradient**2, axis=2).mean(axis=1)) / np.arange(1, len(path))


def gaps_of_averages(problem: Quadratic, path: Array) -> Array:
    """Mean over seeds of F(ŵ(T)) - F*, ŵ(T) the mean of x_1 .. x_T, [T]."""
    average = np.cumsum(path[1:], axis=0) / np.arange(1, len(path))[:, None, None] - problem.solution
    return 0.5 * np.einsum("tsi,ij,tsj->ts", average, problem.mean_curvature, average).mean(axis=1)


def radius(problem: Quadratic, path: Array) -> float:
    """The largest ‖x_t - w*‖ of any seed."""
    return float(np.linalg.norm(path - problem.solution, axis=2).max())


def delayed(problem: Quadratic, rate: float, upload: Array, steps: int, seeds: int, reuse: bool) -> Array:
    """AUDG, or PSURDG (`reuse`), with Bernoulli uploads: at every tick each client's gradient arrives with its
    probability; then it takes the new model."""
    rng = np.random.default_rng(0)
    w = np.repeat(problem.start[None], seeds, axis=0)
    offered = gradients_at(problem, w)
    received, path = np.zeros_like(offered), [w]
    for _ in range(steps):
        arrives = (rng.random(offered.shape[:2]) < upload)[..., None]
        received = np.where(arrives, offered, received)
        used = received if reuse else np.where(arrives, offered, 0)
        w = w - rate * np.einsum("n,snj->sj", problem.weights, used)
        offered = np.where(arrives, gradients_at(problem, w), offered)
        path.append(w)
    return np.stack(path)


def updates(
    rng: np.random.Generator, problem: Quadratic, base: Array, who: Array, rate: float, local_steps: int, batch: int = 1
) -> Array:
    """Δ of one run each: K local steps from `base` [seeds, M, d] of the clients `who` [seeds, M], with gradient noise
    of variance σ² / batch."""
    x, curvature, centre = base, problem.curvature[who], problem.centres[who]
    for _ in range(local_steps):
        noise = rng.normal(size=x.shape)
        noise *= problem.deviation / np.sqrt(batch) / np.linalg.norm(noise, axis=-1, keepdims=True)
        x = x - rate * (np.einsum("smij,smj->smi", curvature, x - centre) + noise)
    return x - base


def buffered(
    problem: Quadratic, *, steps: int, seeds: int, arrivals: int, staleness_max: int, local_rate: float,
    local_steps: int, server_rate: float = 1.0, adaptive: tuple[float, float, float] | None = None,
    replacement: bool = True,
) -> Array:  # fmt: skip
    """DeFedAvg, or FADAS with `adaptive` (η, ε, β2): M clients drawn uniformly, each from a version that is 0 to τ_max
    old."""
    rng = np.random.default_rng(1)
    clients, dimension = problem.centres.shape
    path = np.empty((steps + 1, seeds, dimension))
    path[0] = problem.start
    second = np.zeros((seeds, dimension))
    largest, rows = second, np.arange(seeds)[:, None]
    for step in range(steps):
        order = rng.random((seeds, clients)).argsort(axis=1)[:, :arrivals]
        who = rng.integers(clients, size=(seeds, arrivals)) if replacement else order
        late = np.minimum(rng.integers(staleness_max + 1, size=who.shape), step)
        mean = updates(rng, problem, path[step - late, rows], who, local_rate, local_steps).mean(axis=1)
        if adaptive is None:
            change = server_rate * mean
        else:
            eta, epsilon, beta = adaptive
            second = beta * second + (1 - beta) * mean**2
            largest = np.maximum(largest, second)
            change = eta * mean / (np.sqrt(largest) + epsilon)
        path[step + 1] = path[step] + change
    return path
