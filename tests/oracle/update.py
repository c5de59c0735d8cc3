"""What a server gets for each arrival, and what it tells besides the new parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Update:
    """One arrival with its values.

    Attributes:
        client: Client index.
        delta: Delta_i = x_i^K - x_s, [dim]; servers ADD it.
        x_start: x_s, the version the run started from, [dim].
        staleness: tau = t - s.
        num_samples: n_i.
        local_steps: K, the local steps done.
        multiplicity: How many times the update counts.
    """

    client: int
    delta: Array
    x_start: Array
    staleness: int = 0
    num_samples: int = 1
    local_steps: int = 1
    multiplicity: int = 1

    @property
    def model(self) -> Array:
        """x_i^K."""
        return self.x_start + self.delta


@dataclass(frozen=True)
class StepInfo:
    """Diagnostics of one server step; None or empty where the algorithm has none.

    Attributes:
        eta: Effective server rate.
        gamma: AsyncFedED's relative drift ||x_t - x_s|| / ||Delta_i||.
        replies: Next number of local steps of each answered client.
        dropped: Updates dropped in this step.
        clipped: Replies cut down to the largest allowed number of steps, in this step.
    """

    eta: float | None = None
    gamma: float | None = None
    replies: Mapping[int, int] = field(default_factory=dict)
    dropped: int = 0
    clipped: int = 0


class Server(Protocol):
    """Every server: `step` returns x_{t+1} and leaves its diagnostics in `info`."""

    info: StepInfo

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array: ...


def weighted_sum(weights: Sequence[float], vectors: Sequence[Array]) -> Array:
    """Sum of weights[i] * vectors[i]."""
    total = np.zeros_like(vectors[0])
    for weight, vector in zip(weights, vectors, strict=True):
        total = total + weight * vector
    return total


def mean_delta(arrivals: Sequence[Update]) -> Array:
    """(1/M) sum of Delta_i, each counted `multiplicity` times."""
    count = sum(update.multiplicity for update in arrivals)
    return weighted_sum([update.multiplicity / count for update in arrivals], [update.delta for update in arrivals])


def require_single(arrivals: Sequence[Update], algorithm: str) -> None:
    """Raises if an update counts more than once where the algorithm has no meaning for it."""
    for update in arrivals:
        if update.multiplicity != 1:
            raise ValueError(f"{algorithm} counts each update once; client {update.client} has {update.multiplicity}")
