"""Local training on quadratic clients: every optimiser written out, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Quadratic:
    """A client's samples; f(w) = 1/2 sum_j mean_b a_bj (w_j - c_bj)^2 over the samples b of a batch.

    Attributes:
        a: Curvatures, [n_i, dim].
        c: Centres, [n_i, dim].
    """

    a: Array
    c: Array

    @property
    def num_samples(self) -> int:
        return len(self.a)

    def loss(self, w: Array, batch: Sequence[int] | slice = slice(None)) -> float:
        """f(w) on the samples `batch`; all of them by default."""
        return float(0.5 * np.sum(np.mean(self.a[batch] * (w - self.c[batch]) ** 2, axis=0)))

    def gradient(self, w: Array, batch: Sequence[int] | slice = slice(None)) -> Array:
        """mean_b a_bj (w_j - c_bj), [dim]."""
        return np.asarray(np.mean(self.a[batch] * (w - self.c[batch]), axis=0))


@dataclass(frozen=True)
class LocalTraining:
    """How every client trains. Optimiser state starts afresh with each run.

    Attributes:
        learning_rate: eta_l.
        steps: K, where the clock does not decide it.
        optimizer: "sgd" or "adam".
        momentum: mu of heavy-ball momentum, v = mu v + g, w -= eta_l v (PyTorch and Optax; no dampening).
        nesterov: Step along g + mu v (the new v) instead of v.
        proximal: mu of the FedProx term mu/2 ||w - x_s||^2 (AsyncFedED, eq. (39)).
        weight_decay: Added to the gradient as weight_decay * w (before the optimiser).
        step_multipliers: Factor on the learning rate of each local step; at least K of them. None: 1.
        run_decay: The learning rate of a client's r-th run (r = 0, 1, ...) is multiplied by run_decay**r.
        b1, b2, eps: Adam's decays and eps, added outside the root.
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

    def __post_init__(self) -> None:
        if self.optimizer not in ("sgd", "adam"):
            raise ValueError(f'optimizer must be "sgd" or "adam", got {self.optimizer!r}')


@dataclass(frozen=True)
class LocalResult:
    """x_i^K, Delta_i = x_i^K - x_s, and the mean over the steps of the data loss BEFORE each step."""

    model: Array
    delta: Array
    loss: float


def train(
    x_start: Array,
    data: Quadratic,
    training: LocalTraining,
    *,
    local_steps: int | None = None,
    run: int = 0,
    batches: Sequence[Sequence[int]] | None = None,
) -> LocalResult:
    """Runs K local steps from x_s.

    Step k: g = grad f_batch(w) + proximal (w - x_s) + weight_decay w, then the optimiser's step at the rate
    learning_rate * step_multipliers[k] * run_decay**run. The reported loss is f_batch(w) alone, without the two
    penalties.

    Args:
        x_start: x_s, [dim].
        data: The client's samples.
        training: The local optimiser and its options.
        local_steps: K; None takes `training.steps`.
        run: Index of the run among the client's runs.
        batches: Sample indices of each step; None takes full-batch steps.

    Returns:
        The model, the update and the mean loss.

    Raises:
        ValueError: If K < 1, or there are fewer batches or step multipliers than steps.
    """
    steps = training.steps if local_steps is None else local_steps
    _check_lengths(steps, training.step_multipliers, batches)
    w = np.array(x_start, dtype=np.float64)
    first, second = np.zeros_like(w), np.zeros_like(w)
    losses = []
    for k in range(steps):
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
    return LocalResult(model=w, delta=w - x_start, loss=float(np.mean(losses)))


def adam(first: Array, second: Array, g: Array, k: int, b1: float, b2: float, eps: float) -> tuple[Array, Array, Array]:
    """The moments after step k (from 0) and its direction. Kingma & Ba 2015, Algorithm 1; eps outside the root."""
    first = b1 * first + (1 - b1) * g
    second = b2 * second + (1 - b2) * g**2
    corrected_first = first / (1 - b1 ** (k + 1))
    corrected_second = second / (1 - b2 ** (k + 1))
    return first, second, corrected_first / (np.sqrt(corrected_second) + eps)


def _check_lengths(steps: int, multipliers: Sequence[float] | None, batches: Sequence[Sequence[int]] | None) -> None:
    if steps < 1:
        raise ValueError(f"a run needs at least 1 local step, got {steps}")
    if multipliers is not None and len(multipliers) < steps:
        raise ValueError(f"{steps} local steps need as many step_multipliers, got {len(multipliers)}")
    if batches is not None and len(batches) < steps:
        raise ValueError(f"{steps} local steps need as many batches, got {len(batches)}")
