"""Slow aggregates of a list of updates in which an update of multiplicity m stands m times."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

Array = np.ndarray
Rule = Callable[[list[Array], list[float]], Array]
"""From updates [d] and their weights to the direction."""


def median(points: list[Array], weights: list[float]) -> Array:
    return sum(weights) * np.median(points, axis=0)


def trimmed_mean(dropped: Callable[[int], int]) -> Rule:
    def rule(points: list[Array], weights: list[float]) -> Array:
        count = min(dropped(len(points)), (len(points) - 1) // 2)
        kept = [sorted(column)[count : len(column) - count] for column in np.stack(points, axis=1)]
        return sum(weights) * np.array([math.fsum(column) / len(column) for column in kept])

    return rule


def krum(byzantine: int, selected: Callable[[int], int]) -> Rule:
    def rule(points: list[Array], weights: list[float]) -> Array:
        near = max(len(points) - byzantine - 2, 1)
        scores = []
        for place, point in enumerate(points):
            others = [other for at, other in enumerate(points) if at != place]
            scores.append(sum(sorted(float(np.sum((point - other) ** 2)) for other in others)[:near]))
        best = sorted(range(len(points)), key=lambda place: (scores[place], place))[: selected(len(points))]
        return sum(weights) * np.mean([points[place] for place in best], axis=0)

    return rule


def geometric_median(iterations: int, smoothing: float) -> Rule:
    def rule(points: list[Array], weights: list[float]) -> Array:
        total = sum(weights)
        alphas = [weight / total for weight in weights]

        def objective(z: Array) -> float:
            return sum(a * float(np.linalg.norm(z - p)) for a, p in zip(alphas, points, strict=True))

        z = sum((a * p for a, p in zip(alphas, points, strict=True)), np.zeros_like(points[0]))
        value = objective(z)
        for _ in range(iterations):
            betas = [a / max(smoothing, np.linalg.norm(z - p)) for a, p in zip(alphas, points, strict=True)]
            z = sum((b * p for b, p in zip(betas, points, strict=True)), np.zeros_like(z)) / sum(betas)
            before, value = value, objective(z)
            if abs(before - value) < 1e-6 * value:
                break
        return total * z

    return rule


class CenteredClip:
    """Carries its centre over; the other rules have no state."""

    def __init__(self, radius: float, iterations: int, dim: int) -> None:
        self.radius, self.iterations, self.v = radius, iterations, np.zeros(dim)

    def __call__(self, points: list[Array], weights: list[float]) -> Array:
        for _ in range(self.iterations):
            moves = []
            for point in points:
                length = np.linalg.norm(point - self.v)
                moves.append((point - self.v) * (min(1, self.radius / length) if length else 1))
            self.v = self.v + np.mean(moves, axis=0)
        return sum(weights) * self.v


def clipped_mean(norm: float) -> Rule:
    """The private mean without noise."""

    def rule(points: list[Array], weights: list[float]) -> Array:
        lengths = [float(np.linalg.norm(point)) for point in points]
        parts = zip(points, lengths, weights, strict=True)
        return np.sum([w * p * (min(1, norm / length) if length else 1) for p, length, w in parts], axis=0)

    return rule
