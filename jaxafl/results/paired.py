"""Statistics of paired samples, a value per seed: means, differences, and the times to a target that not all reach."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

UNDECIDED = "not decided"
_FEWEST = 6  # pairs: with five, a sign-flip test cannot give p < 0.05
_FLIPS = 2**16


class Summary(NamedTuple):
    """A method's values.

    Attributes:
        values: float [seeds]; NaN for a run that failed, or is missing.
        mean: NaN where a value is.
        std: with n - 1 degrees of freedom; NaN for one seed.
        low, high: Student's t interval of the mean.
        at: the point at which runs are compared, in words.
    """

    values: np.ndarray
    mean: float
    std: float
    low: float
    high: float
    at: str = ""


class Difference(NamedTuple):
    """A method's values minus those of a reference, seed by seed.

    Attributes:
        values: float [seeds].
        mean: of them.
        low, high: Student's t interval of the mean, for this comparison alone: of many, some are wrong by chance.
        p: of the exact two-sided sign-flip permutation test of the mean (of more than 16 seeds, 65,536 random flips);
            NaN for fewer than 6 seeds, of which it could not tell anything at 5 %.
        verdict: `"better"` or `"worse"` than the reference, or `"not decided"` where the interval holds 0.
        at: the point at which runs are compared, in words.
    """

    values: np.ndarray
    mean: float
    low: float
    high: float
    p: float
    verdict: str
    at: str = ""


class TimeTo(NamedTuple):
    """When the runs of a method reach a target.

    Attributes:
        at: float [seeds], where each reached it, or else ended; infinite for one that failed.
        reached: bool [seeds].
        median: the first point by which half of the runs have reached it, by Kaplan and Meier; infinite where fewer
            than half do.
        restricted_mean: the mean of min(point, horizon), by Kaplan and Meier.
        horizon: of the restricted mean; the same for all methods that are compared.
    """

    at: np.ndarray
    reached: np.ndarray
    median: float
    restricted_mean: float
    horizon: float


class First(NamedTuple):
    """Who reaches a target first, seed by seed.

    Attributes:
        wins: seeds on which the method is first.
        losses: seeds on which the reference is.
        undecided: seeds on which both are there at once, neither gets there, or the run of one ended too early to tell.
        p: of the exact two-sided sign test of wins against losses; NaN where there are none.
    """

    wins: int
    losses: int
    undecided: int
    p: float


def summary(values: np.ndarray, confidence: float = 0.95) -> Summary:
    """What a method's values say: x̄ ± t_{n-1, (1+c)/2} s / √n.

    Args:
        values: float [seeds].
        confidence: c of the interval.
    """
    from scipy import stats

    count, mean = len(values), float(np.mean(values))
    std = float(np.std(values, ddof=1)) if count > 1 else np.nan
    reach = std / np.sqrt(count) * stats.t.ppf((1 + confidence) / 2, count - 1) if count > 1 else np.nan
    return Summary(values, mean, std, float(mean - reach), float(mean + reach))


def difference(values: np.ndarray, reference: np.ndarray, falls: bool, confidence: float = 0.95) -> Difference:
    """What the differences of pairs say.

    Args:
        values, reference: float [seeds].
        falls: whether lower is better.
        confidence: of the interval.
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


def time_to(at: np.ndarray, reached: np.ndarray, horizon: float) -> TimeTo:
    """When runs reach a target.

    Args:
        at: float [seeds], where they reached it, or ended.
        reached: bool [seeds].
        horizon: of the restricted mean.
    """
    points, left = survival(at, reached)
    median = points[left <= 0.5 + 1e-9][:1] if 2 * reached.sum() >= len(reached) else points[:0]
    inside = points < horizon
    edges = np.concatenate([[0.0], points[inside], [horizon]])
    mean = np.sum(np.diff(edges) * np.append(1.0, left[inside]))
    return TimeTo(at, reached, float(median[0]) if median.size else np.inf, float(mean), float(horizon))


def survival(at: np.ndarray, reached: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Kaplan and Meier's curve: points, and the share of runs that have not reached the target after each; both
    float [points]. A run that ended counts until it did."""
    from scipy import stats

    if not reached.any():
        return np.zeros(0), np.zeros(0)
    later = at[np.isfinite(at)].max() + 1  # SciPy takes no infinite times
    found = stats.ecdf(stats.CensoredData.right_censored(np.where(np.isfinite(at), at, later), ~reached)).sf
    events = np.isin(found.quantiles, at[reached])
    return found.quantiles[events], found.probabilities[events]


def common_horizon(several: Iterable[tuple[np.ndarray, np.ndarray]]) -> float:
    """How far the curves of all methods are known: to the end of a method's last run where that has not reached the
    target, else beyond all points.

    Args:
        several: `at` and `reached` of each method.
    """
    ends, finite = [], [0.0]
    for at, reached in several:
        finite.extend(at[np.isfinite(at)])
        last = at.max(initial=0.0)
        if np.isfinite(last) and not reached[at == last].all():
            ends.append(last)
    return float(min(ends)) if ends else max(finite)


def first(at: np.ndarray, reached: np.ndarray, other: np.ndarray, other_reached: np.ndarray) -> First:
    """Who is first, of pairs.

    Args:
        at, reached: of the method, [seeds].
        other, other_reached: of the reference.
    """
    from scipy import stats

    wins = int(np.sum(reached & np.where(other_reached, at < other, at <= other)))
    losses = int(np.sum(other_reached & np.where(reached, other < at, other <= at)))
    p = stats.binomtest(wins, wins + losses).pvalue if wins + losses else np.nan
    return First(wins, losses, len(at) - wins - losses, float(p))
