"""Local training on quadratic clients in float64: every optimiser written out, and AFL's epochs of Adam."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Quadratic:
    """Samples with curvatures a and centres c, [n_i, dim]; f(w) = 1/2 Σ_j mean_b a_bj (w_j - c_bj)² over a batch."""

    a: Array
    c: Array

    @property
    def num_samples(self) -> int:
        return len(self.a)

    def loss(self, w: Array, batch: Sequence[int] | slice = slice(None)) -> float:
        return float(0.5 * np.sum(np.mean(self.a[batch] * (w - self.c[batch]) ** 2, axis=0)))

    def gradient(self, w: Array, batch: Sequence[int] | slice = slice(None)) -> Array:
        return np.asarray(np.mean(self.a[batch] * (w - self.c[batch]), axis=0))


@dataclass(frozen=True)
class LocalTraining:
    """K steps of "sgd" or "adam", whose state begins afresh with each run.

    Step k: g = ∇f(w) + proximal (w - x_s) + weight_decay w, then the optimiser's step at the rate learning_rate ·
    step_multipliers[k] · run_decay^run. Momentum is v = μ v + g, w -= η v, with `nesterov` along g + μ v.
    """

    learning_rate: float
    steps: int = 1
    optimizer: str = "sgd"
    momentum: float = 0.0
    nesterov: bool = False
    proximal: float = 0.0
    weight_decay: float = 0.0
    step_multipliers: Sequence[float] | None = None
    run_decay: float = 1.0
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8


@dataclass(frozen=True)
class LocalResult:
    """x_i^K, the mean of the losses before each step (NaN without one), and the steps made."""

    model: Array
    loss: float
    local_steps: int


def train(
    x_start: Array,
    data: Quadratic,
    training: LocalTraining,
    *,
    local_steps: int | None = None,
    run: int = 0,
    batches: Sequence[Sequence[int]] | None = None,
) -> LocalResult:
    """Runs K local steps from x_s on the samples of `batches`, or on all of them."""
    w = np.array(x_start, float)
    first, second = np.zeros_like(w), np.zeros_like(w)
    losses = []
    for k in range(training.steps if local_steps is None else local_steps):
        batch = slice(None) if batches is None else list(batches[k])
        losses.append(data.loss(w, batch))
        g = data.gradient(w, batch) + training.proximal * (w - x_start) + training.weight_decay * w
        if training.optimizer == "sgd":
            first = training.momentum * first + g
            direction = g + training.momentum * first if training.nesterov else first
        else:
            first, second, direction = adam(first, second, g, k, training.b1, training.b2, training.eps)
        multiplier = 1.0 if training.step_multipliers is None else training.step_multipliers[k]
        w = w - training.learning_rate * multiplier * training.run_decay**run * direction
    return LocalResult(w, float(np.mean(losses)) if losses else math.nan, len(losses))


def adam(first: Array, second: Array, g: Array, k: int, b1: float, b2: float, eps: float) -> tuple[Array, Array, Array]:
    """Returns the moments after step k (from 0) and its direction. Kingma, Ba 2015, Algorithm 1; ε outside the root."""
    first = b1 * first + (1 - b1) * g
    second = b2 * second + (1 - b2) * g**2
    corrected = first / (1 - b1 ** (k + 1)), second / (1 - b2 ** (k + 1))
    return first, second, corrected[0] / (np.sqrt(corrected[1]) + eps)


@dataclass(frozen=True)
class EpochTraining:
    """Epochs e = 0, 1, ... of Adam at the rate γ_e = γ_0 / (√(e + 1) (1 + α d)), with the delay d of the run.

    It stops after an epoch that is the `patience`-th in a row whose loss is not below the smallest before. Adam begins
    afresh with every "run" or "epoch". AFL with non-convex objectives, Algorithm 1.
    """

    learning_rate: float
    epochs: int
    delay_weight: float = 0.0
    patience: int | None = None
    adam_reset: str = "run"


def train_epochs(
    x_start: Array,
    data: Quadratic,
    training: EpochTraining,
    *,
    delay: float = 0.0,
    batches: Sequence[Sequence[Sequence[int]]] | None = None,
) -> LocalResult:
    """Makes up to I epochs from x_s, of batches [epoch][step] or one step on all samples, and returns the LAST model.

    The loss of an epoch is the mean over its steps of the loss before the step.
    """
    w = np.array(x_start, float)
    first, second, k = np.zeros_like(w), np.zeros_like(w), 0
    losses: list[float] = []
    epochs: list[float] = []
    in_a_row = 0
    for e in range(training.epochs):
        if training.adam_reset == "epoch":
            first, second, k = np.zeros_like(w), np.zeros_like(w), 0
        rate = training.learning_rate / (math.sqrt(e + 1) * (1 + training.delay_weight * delay))
        before = len(losses)
        for batch in [slice(None)] if batches is None else [list(indices) for indices in batches[e]]:
            losses.append(data.loss(w, batch))
            first, second, direction = adam(first, second, data.gradient(w, batch), k, 0.9, 0.999, 1e-8)
            w, k = w - rate * direction, k + 1
        loss = float(np.mean(losses[before:]))
        in_a_row = 0 if loss < min(epochs, default=math.inf) else in_a_row + 1
        epochs.append(loss)
        if in_a_row == training.patience:
            break
    return LocalResult(w, float(np.mean(losses)), len(losses))
