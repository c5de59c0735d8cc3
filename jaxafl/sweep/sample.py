"""Random and quasi-random samples of options, as an axis of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from jaxafl.options import check_choice, check_whole, named, shown
from jaxafl.sweep.axes import Together

Method = Literal["sobol", "halton", "latin", "random"]


@named
def sample(
    n: int, distributions: Mapping[str, Any], seed: int = 0, method: Method = "sobol"
) -> dict[Together, list[tuple[Any, ...]]]:
    """Draws options together: an axis called `sample` of a sweep, beside which the options stand as coordinates.

    `afl.sweep(sim, afl.sample(64, {"client.learning_rate": scipy.stats.loguniform(1e-3, 1)}) | {"seed": range(3)}, T)`

    Args:
        n: draws; with `"sobol"` best a power of 2.
        distributions: path -> a frozen distribution of `scipy.stats` (whole numbers of a discrete one stay whole), or
            a list of values that are equally likely.
        seed: of the draws.
        method: of `scipy.stats.qmc`: scrambled `"sobol"` or `"halton"`, a `"latin"` hypercube; or `"random"`.

    Returns:
        An axis: the paths -> the n rows of their values.

    Raises:
        ValueError, TypeError: there is nothing to draw, or not from a distribution.
    """
    from scipy.stats import qmc

    check_whole("sample", "n", n)
    check_choice("sample", "method", method, ("sobol", "halton", "latin", "random"))
    check_whole("sample", "seed", seed, least=0)
    if not isinstance(distributions, Mapping) or not distributions:
        raise TypeError(f"sample(distributions=...) needs path -> distribution, got {shown(distributions)}")
    generator = np.random.default_rng(seed)
    if method == "random":
        points = generator.random((n, len(distributions)))
    else:
        made = {"sobol": qmc.Sobol, "halton": qmc.Halton, "latin": qmc.LatinHypercube}[method]
        engine = made(len(distributions), rng=generator)
        points = engine.random_base2(max(n - 1, 1).bit_length())[:n] if method == "sobol" else engine.random(n)
    columns = [_drawn(path, one, u) for (path, one), u in zip(distributions.items(), points.T, strict=True)]
    return {Together(distributions, "sample"): list(zip(*columns, strict=True))}


def _drawn(path: str, distribution: Any, points: np.ndarray) -> list[Any]:
    """The quantiles of a distribution at points in [0, 1)."""
    if isinstance(distribution, Sequence) and not isinstance(distribution, str) and distribution:
        return [distribution[int(u * len(distribution))] for u in points]
    if not hasattr(distribution, "ppf"):
        raise TypeError(
            f"sample: {path} needs a distribution such as scipy.stats.loguniform(1e-3, 1), or a list of values; got "
            f"{shown(distribution)}"
        )
    values = np.asarray(distribution.ppf(points))
    if not np.isfinite(values).all():
        raise ValueError(f"sample: {path} has drawn {values[~np.isfinite(values)][0]}; is the distribution bounded?")
    discrete = hasattr(getattr(distribution, "dist", None), "pmf")
    return [int(value) if discrete else float(value) for value in values]
