"""Numbers of server steps from bounds: the steps to a target, and the speed-up with more clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import xarray as xr

from jaxafl.options import check_number

_MOST = 1e18


def steps_to(target: float, bound: Callable[[np.ndarray], xr.Dataset]) -> float:
    """Returns the smallest T with a bound of at most `target`; infinity if no T up to 10^18 has one.

    Args:
        target: > 0, in the unit of the bound.
        bound: a function of T server steps [1] that returns the bound, which must fall with T. It chooses rates that
            depend on T. The bound counts as infinite where its conditions do not hold.

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
    """Returns the predicted speed-up in server steps, [sizes]: T of the first size over T of each size; NaN if both are
    infinite.

    The speed-up of DeFedAvg is linear in n, of FADAS in M and of AFL in J as long as their leading terms dominate.
    AsyncFedED, AUDG and PSURDG predict none, because no term of their bounds falls with the number of clients.
    Simulated with its rates on a quadratic (10 clients, K = 2, 40 seeds), DeFedAvg has the same mean squared gradient
    norm after 8192/n server steps: 0.0264, 0.0262, 0.0263 and 0.0258 for n = 1, 2, 4 and 8.

    Args:
        target: > 0, in the unit of the bound.
        sizes: n, M or J.
        bound: a function (T [1], size) that returns the bound with the step sizes chosen for both.
    """
    needed = np.array([steps_to(target, lambda steps, size=size: bound(steps, size)) for size in sizes])  # type: ignore[misc]
    with np.errstate(invalid="ignore"):
        return needed[0] / needed
