"""Random and quasi-random samples of options as an axis of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from jaxafl.options import check_choice, check_whole, named, shown
from jaxafl.sweep.axes import NamedPaths

Method = Literal["sobol", "halton", "latin", "random"]


@named
def sample(
    n: int, distributions: Mapping[str, Any], seed: int = 0, method: Method = "sobol"
) -> dict[NamedPaths, list[tuple[Any, ...]]]:
    """Draws joint samples of options: an axis `sample` of a sweep, with the options as its coordinates.

    `afl.sweep(sim, afl.sample(64, {"client.learning_rate": scipy.stats.loguniform(1e-3, 1)}) | {"seed": range(3)}, T)`

    Args:
        n: number of draws; best a power of 2 with `"sobol"`.
        distributions: path -> a frozen distribution of `scipy.stats`, or a list of equally likely values. A discrete
            distribution gives integers.
        seed: seed of the draws.
        method: `"random"`, or a method of `scipy.stats.qmc`: scrambled `"sobol"` or `"halton"`, a `"latin"` hypercube.

    Returns:
        A mapping with one axis: the paths -> n rows of their values.

    Raises:
        TypeError: `distributions` is empty or holds an object that is no distribution.
        ValueError: n, the seed or the method cannot work, or a draw is not finite.
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
        kind = {"sobol": qmc.Sobol, "halton": qmc.Halton, "latin": qmc.LatinHypercube}[method]
        engine = kind(len(distributions), rng=generator)
        points = engine.random_base2(max(n - 1, 1).bit_length())[:n] if method == "sobol" else engine.random(n)
    columns = [_drawn(path, one, u) for (path, one), u in zip(distributions.items(), points.T, strict=True)]
    return {NamedPaths(distributions, "sample"): list(zip(*columns, strict=True))}


def _drawn(path: str, distribution: Any, points: np.ndarray) -> list[Any]:
    """Returns the quantiles of a distribution at points in [0, 1)."""
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
