"""Statistics of paired samples, a value per seed: means, differences, and times to a target with censored runs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

UNDECIDED = "not decided"
_FEWEST = 6  # pairs: with five, a sign-flip test cannot give p < 0.05
_FLIPS = 2**16


class Summary(NamedTuple):
    """Summary of a method's values.

    Attributes:
        values: float [seeds]; NaN for a run that failed or is missing.
        mean: mean of the values; NaN if one is NaN.
        std: standard deviation with n - 1 degrees of freedom; NaN for one seed.
        low, high: Student's t interval of the mean.
    """

    values: np.ndarray
    mean: float
    std: float
    low: float
    high: float


class Difference(NamedTuple):
    """Differences of a method's values from those of a reference, seed by seed.

    Attributes:
        values: the differences, float [seeds].
        mean: mean of the differences.
        low, high: Student's t interval of the mean, without a correction for multiple comparisons.
        p: p-value of the exact two-sided sign-flip permutation test of the mean (for more than 16 seeds, of 65,536
            random flips). NaN for fewer than 6 seeds, with which no result is significant at 5 %.
        verdict: `"better"` or `"worse"` than the reference, or `"not decided"` if the interval contains 0.
    """

    values: np.ndarray
    mean: float
    low: float
    high: float
    p: float
    verdict: str


class TimeTo(NamedTuple):
    """Points at which the runs of a method reach a target.

    Attributes:
        at: float [seeds], the point at which a run reached the target, or ended; infinite for a failed run.
        reached: bool [seeds], True if the run reached the target.
        median: the first point by which half of the runs have reached the target, by Kaplan and Meier; infinite if
            fewer than half do.
    """

    at: np.ndarray
    reached: np.ndarray
    median: float


def summary(values: np.ndarray, confidence: float = 0.95) -> Summary:
    """Computes mean, standard deviation and interval of a method's values: x̄ ± t_{n-1, (1+c)/2} s / √n.

    Args:
        values: float [seeds].
        confidence: c, the confidence of the interval.
    """
    from scipy import stats

    count = len(values)
    mean = float(np.mean(values))
    std = float(np.std(values, ddof=1)) if count > 1 and np.isfinite(mean) else np.nan
    reach = std / np.sqrt(count) * stats.t.ppf((1 + confidence) / 2, count - 1) if count > 1 else np.nan
    return Summary(values, mean, std, float(mean - reach), float(mean + reach))


def difference(values: np.ndarray, reference: np.ndarray, falls: bool, confidence: float = 0.95) -> Difference:
    """Compares a method's values with those of a reference, seed by seed.

    Args:
        values, reference: float [seeds].
        falls: True if lower values are better.
        confidence: the confidence of the interval.
    """
    from scipy import stats

    found = summary(values - reference, confidence)
    verdict = UNDECIDED
    if found.low > 0 or found.high < 0:
        verdict = "better" if (found.mean < 0) == falls else "worse"
    p = np.nan
    if len(values) >= _FEWEST and np.isfinite(found.mean):
        p = stats.permutation_test(
            (values, reference),
            lambda x, y, axis: np.mean(x - y, axis=axis),
            permutation_type="samples",
            vectorized=True,
            n_resamples=_FLIPS,
            rng=np.random.default_rng(0),
        ).pvalue
    return Difference(found.values, found.mean, found.low, found.high, float(p), verdict)


def time_to(at: np.ndarray, reached: np.ndarray) -> TimeTo:
    """Estimates when runs reach a target, by Kaplan and Meier.

    Args:
        at: float [seeds], the point at which a run reached the target, or ended.
        reached: bool [seeds], True if the run reached the target.
    """
    points, left = survival(at, reached)
    later = points[left <= 0.5 + 1e-9]
    decided = later.size and 2 * reached.sum() >= len(reached)
    return TimeTo(at, reached, float(later[0]) if decided else np.inf)


def survival(at: np.ndarray, reached: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Computes Kaplan and Meier's curve: points, and the share of runs not at the target after each, float [points].

    A run that ended before reaching the target is censored at its end.
    """
    from scipy import stats

    later = at[np.isfinite(at)].max(initial=0.0) + 1  # SciPy refuses infinite times
    found = stats.ecdf(stats.CensoredData.right_censored(np.where(np.isfinite(at), at, later), ~reached)).sf
    events = np.isin(found.quantiles, at[reached])
    return found.quantiles[events], found.probabilities[events]
