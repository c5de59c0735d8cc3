"""AFL's local training on quadratic clients: epochs of Adam at a decaying, delay-aware rate, with early stopping."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .client import Array, Quadratic, adam


@dataclass(frozen=True)
class EpochTraining:
    """Epochs e = 0, 1, ... of Adam at the rate gamma_e = gamma_0 / (sqrt(e + 1) (1 + alpha d)), d the run's delay.

    "Asynchronous Federated Learning with non-convex client objective functions and heterogeneous dataset", Algorithm 1.

    Attributes:
        learning_rate: gamma_0.
        epochs: I, the most epochs of a run.
        delay_weight: alpha.
        patience: Stop after an epoch that is the `patience`-th in a row whose loss is not below the smallest loss of
            the epochs before. None: never.
        adam_reset: Adam's moments and step count start afresh with every "run" or with every "epoch".
        b1, b2, eps: Adam's decays and eps, added outside the root.
    """

    learning_rate: float
    epochs: int
    delay_weight: float = 0.0
    patience: int | None = None
    adam_reset: str = "run"
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        if self.adam_reset not in ("run", "epoch"):
            raise ValueError(f'adam_reset must be "run" or "epoch", got {self.adam_reset!r}')
        if self.epochs < 1:
            raise ValueError(f"a run needs at least 1 epoch, got {self.epochs}")
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"patience must be at least 1 epoch or None, got {self.patience}")


@dataclass(frozen=True)
class EpochResult:
    """x_i^K after the LAST epoch made, its Delta, the mean loss over all steps, each epoch's loss, the steps made."""

    model: Array
    delta: Array
    loss: float
    epoch_losses: tuple[float, ...]
    local_steps: int


def train_epochs(
    x_start: Array,
    data: Quadratic,
    training: EpochTraining,
    *,
    delay: float = 0.0,
    batches: Sequence[Sequence[Sequence[int]]] | None = None,
) -> EpochResult:
    """Up to I epochs from x_s.

    The loss of an epoch is the mean over its steps of the batch loss before the step (with one full-batch step: the
    loss before the epoch). The last parameters are returned, not those of the best epoch.

    Args:
        x_start: x_s, [dim].
        data: The client's samples.
        training: The local optimiser and its options.
        delay: d, in versions or seconds.
        batches: Sample indices, [epochs][steps of the epoch][batch]; None takes one full-batch step per epoch.

    Raises:
        ValueError: If there are batches for fewer than I epochs.
    """
    if batches is not None and len(batches) < training.epochs:
        raise ValueError(f"{training.epochs} epochs need as many lists of batches, got {len(batches)}")
    w = np.array(x_start, dtype=np.float64)
    first, second, k = np.zeros_like(w), np.zeros_like(w), 0
    losses: list[float] = []
    epoch_losses: list[float] = []
    without_improvement = 0
    for e in range(training.epochs):
        if training.adam_reset == "epoch":
            first, second, k = np.zeros_like(w), np.zeros_like(w), 0
        rate = training.learning_rate / (math.sqrt(e + 1) * (1 + training.delay_weight * delay))
        before = len(losses)
        for batch in [slice(None)] if batches is None else [list(indices) for indices in batches[e]]:
            losses.append(data.loss(w, batch))
            g = data.gradient(w, batch)
            first, second, direction = adam(first, second, g, k, training.b1, training.b2, training.eps)
            w = w - rate * direction
            k += 1
        loss = float(np.mean(losses[before:]))
        improved = loss < min(epoch_losses, default=math.inf)
        without_improvement = 0 if improved else without_improvement + 1
        epoch_losses.append(loss)
        if without_improvement == training.patience:
            break
    return EpochResult(
        model=w,
        delta=w - x_start,
        loss=float(np.mean(losses)),
        epoch_losses=tuple(epoch_losses),
        local_steps=len(losses),
    )
