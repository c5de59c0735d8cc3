"""Quadratic clients: a problem with known constants, as data and a model for a simulation."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.data import FederatedData, from_arrays
from jaxafl.models import Model, from_functions
from jaxafl.models.model import Batch
from jaxafl.options import UserError, check_number, check_whole
from jaxafl.theory.bounds import numbers


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Quadratic:
    """f_i(w) = ½ (w - c_i)ᵀ A_i (w - c_i) and F = Σ λ_i f_i, as data and a model for `Simulation`.

    Sample j of client i has the loss f_i(w) - ζ_jᵀ(w - c_i), with Σ_j ζ_j = 0 and ‖ζ_j‖ = σ: training losses and
    gradients of a whole client are exactly f_i and ∇f_i, and the gradient of one sample has variance σ² everywhere. The
    test set holds every c_i in proportion to n_i without ζ, so the test loss is F too.

    Attributes:
        data, model: for `Simulation`; the model has the parameter `w` [d].
        curvature: A_i, [N, d, d], with eigenvalues from μ to L.
        centres: c_i, [N, d], where f_i is smallest.
        weights: λ_i = n_i / Σn, [N].
        start: x_0, [d].
        deviation: σ.
    """

    data: FederatedData
    model: Model
    curvature: np.ndarray
    centres: np.ndarray
    weights: np.ndarray
    start: np.ndarray
    deviation: float

    @functools.cached_property
    def mean_curvature(self) -> np.ndarray:
        """Σλ_i A_i, the Hessian of F, [d, d]."""
        return np.tensordot(self.weights, self.curvature, 1)

    @functools.cached_property
    def solution(self) -> np.ndarray:
        """w*, the minimiser of F, [d]."""
        return _minimiser(self.weights, self.curvature, self.centres)

    @property
    def optimum(self) -> float:
        """F*, the smallest value of F."""
        return self.loss(self.solution)

    def losses(self, w: Any) -> np.ndarray:
        """Computes f_i(w), [N]."""
        away = np.asarray(w) - self.centres
        return 0.5 * np.einsum("ni,nij,nj->n", away, self.curvature, away)

    def loss(self, w: Any) -> float:
        """Computes F(w)."""
        return float(self.weights @ self.losses(w))

    def gradients(self, w: Any) -> np.ndarray:
        """Computes ∇f_i(w), [N, d]."""
        return np.einsum("nij,nj->ni", self.curvature, np.asarray(w) - self.centres)

    def constants(self, radius: float | None = None, batch_size: int | None = None) -> dict[str, float]:
        """Returns the constants by the names of `theory.CONSTANTS`, valid where ‖w - w*‖ <= radius.

        μ, L, h² = max ‖c_i - w*‖², R = ‖x_0 - w*‖ (or the radius, if it is larger) and F(x_0) - F* are exact. The
        variance of gradients between clients is exact if all A_i are equal, otherwise the upper bound
        (√Σλ_i‖∇f_i(w*)‖² + max ‖A_i - Ā‖ r)². G is the upper bound max(‖∇f_i(w*)‖ + ‖A_i‖ r) + σ, which includes the
        noise of a mini-batch.

        Args:
            radius: r, by default ‖x_0 - w*‖.
            batch_size: samples of a stochastic gradient, drawn with replacement, with variance σ² / batch_size;
                `None` for the gradient of all samples.
        """
        distance = float(np.linalg.norm(self.start - self.solution))
        reach = distance if radius is None else radius
        eigenvalues = np.linalg.eigvalsh(self.curvature)
        at_optimum = self.gradients(self.solution)
        differ = np.linalg.norm(self.curvature - self.mean_curvature, 2, axis=(1, 2)).max()
        spread = np.sqrt(self.weights @ np.sum(at_optimum**2, axis=1)) + differ * reach
        noise = 0.0 if batch_size is None else self.deviation
        return {
            "clients": float(len(self.weights)),
            "smoothness": float(eigenvalues.max()),
            "strong_convexity": float(eigenvalues.min()),
            "gap": max(self.loss(self.start) - self.optimum, 0.0),  # rounding makes it negative at the optimum
            "distance": max(distance, reach),
            "optimum_spread": float(np.sum((self.centres - self.solution) ** 2, axis=1).max()),
            "gradient_bound": float((np.linalg.norm(at_optimum, axis=1) + eigenvalues[:, -1] * reach).max() + noise),
            "local_variance": noise**2 / (batch_size or 1),
            "global_variance": float(spread**2),
        }


def quadratic(
    clients: int = 10,
    dimension: int = 5,
    *,
    strong_convexity: float = 0.1,
    smoothness: float = 1.0,
    heterogeneity: float = 1.0,
    noise: float = 0.0,
    distance: float = 1.0,
    samples: int | Sequence[int] = 8,
    alike: bool = False,
    seed: int = 0,
) -> Quadratic:
    """Builds quadratic clients with given constants.

    Args:
        clients: N.
        dimension: d >= 2.
        strong_convexity: μ, the smallest eigenvalue of every A_i.
        smoothness: L >= μ, the largest.
        heterogeneity: h, the largest ‖c_i - w*‖; with 0, and with N = 1, all c_i are equal.
        noise: σ, the deviation of the gradient of a single sample.
        distance: ‖x_0 - w*‖.
        samples: n_i, one even number or one per client; they set λ_i.
        alike: if True, all A_i are equal.
        seed: the seed of the draws of A_i, c_i, ζ_j and the direction of x_0.

    Raises:
        ValueError, TypeError: an option is out of range.
    """
    owner = "theory.quadratic"
    N, d = check_whole(owner, "clients", clients), check_whole(owner, "dimension", dimension, least=2)
    numbers(owner, locals())
    check_number(owner, "heterogeneity", heterogeneity, least=0)
    check_number(owner, "noise", noise, least=0)
    sizes = np.broadcast_to(samples, (N,))
    if (sizes < 2).any() or (sizes % 2).any():
        raise UserError(f"{owner}: samples must be even and at least 2, got {samples}")
    rng = np.random.default_rng(check_whole(owner, "seed", seed, least=0, most=None))
    curvature = np.stack([_curvature(rng, d, strong_convexity, smoothness) for _ in range(1 if alike else N)])
    curvature = np.ascontiguousarray(np.broadcast_to(curvature, (N, d, d)))
    centres = rng.normal(size=(N, d))
    weights = sizes / sizes.sum()
    middle = _minimiser(weights, curvature, centres)
    furthest = np.linalg.norm(centres - middle, axis=1).max()
    solution = rng.normal(size=d)  # w*
    centres = solution + (centres - middle) * (heterogeneity / furthest if N > 1 else 0.0)
    start = solution + distance * _direction(rng, d)
    data = _data(rng, curvature, centres, sizes, noise)
    return Quadratic(data, _model(start), curvature, centres, weights, start, float(noise))


def _minimiser(weights: np.ndarray, curvature: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Returns the minimiser of Σλ_i f_i, [d]."""
    mean = np.tensordot(weights, curvature, 1)
    return np.linalg.solve(mean, np.einsum("n,nij,nj->i", weights, curvature, centres))


def _direction(rng: np.random.Generator, dimension: int) -> np.ndarray:
    drawn = rng.normal(size=dimension)
    return drawn / np.linalg.norm(drawn)


def _curvature(rng: np.random.Generator, dimension: int, least: float, most: float) -> np.ndarray:
    """Returns a random symmetric matrix with smallest eigenvalue `least` and largest eigenvalue `most`."""
    axes, _ = np.linalg.qr(rng.normal(size=(dimension, dimension)))
    values = np.concatenate([[least, most], rng.uniform(least, most, dimension - 2)])
    return (axes * values) @ axes.T


def _data(
    rng: np.random.Generator, curvature: np.ndarray, centres: np.ndarray, sizes: np.ndarray, noise: float
) -> FederatedData:
    """Builds a dataset with a sample (A_i, c_i, ζ_j) per row; the ζ_j are in pairs of opposite sign."""
    N, d = centres.shape

    def rows(owners: np.ndarray, noises: np.ndarray) -> np.ndarray:
        return np.concatenate([curvature.reshape(N, -1)[owners], centres[owners], noises], axis=1)

    owners = np.repeat(np.arange(N), sizes)
    half = np.stack([noise * _direction(rng, d) for _ in range(len(owners) // 2)])
    noises = np.stack([half, -half], axis=1).reshape(-1, d)
    tested = np.repeat(np.arange(N), sizes // np.gcd.reduce(sizes))
    test = rows(tested, np.zeros((len(tested), d)))
    y, y_test = np.zeros(len(owners), np.int32), np.zeros(len(tested), np.int32)
    return from_arrays(rows(owners, noises), y, owners, x_test=test, y_test=y_test, num_classes=1, name="quadratic")


def _model(start: np.ndarray) -> Model:
    d = len(start)

    def init(key: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        return {"w": jnp.asarray(start, jnp.result_type(float))}

    def loss(params: dict[str, jax.Array], batch: Batch, key: jax.Array) -> jax.Array:
        curvature = batch.x[:, : d * d].reshape(-1, d, d)
        centre, noise = batch.x[:, d * d : d * d + d], batch.x[:, d * d + d :]
        away = params["w"] - centre
        # sums instead of matrix products, which accelerators do not compute in float32 by default
        return jnp.sum(away * (0.5 * jnp.sum(curvature * away[:, None, :], axis=2) - noise), axis=1)

    return from_functions(init, loss, "quadratic")
