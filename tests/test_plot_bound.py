"""The figure of a bound: the mean over seeds, the total and its terms; what is not guaranteed is said."""

from __future__ import annotations

import numpy as np
import xarray as xr

from jaxafl import plot
from jaxafl.theory import defedavg, delayed_gradients, fadas
from tests.theory.cases import CASES

STEPS = np.arange(1, 21)


def result(factor: float) -> xr.Dataset:
    evaluated = np.array([0, 10, 20])
    return xr.Dataset(
        {
            "gradient_norm_squared": ("step", factor / STEPS),
            "average_loss": ("evaluation", factor + 1.0 / (1 + evaluated)),
        },
        {"eval_step": ("evaluation", evaluated)},
        {"title": "fedbuff on free_running"},
    )


def seeds() -> xr.Dataset:
    return xr.concat([result(1.0), result(3.0)], dim="seed").assign_coords(seed=[0, 1])


def lines(figure) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {line.get_label(): (line.get_xdata(), line.get_ydata()) for line in figure.axes[0].lines}


def test_the_running_mean_over_seeds_the_total_and_every_term(tmp_path) -> None:
    bound = defedavg.theorem_1(**CASES["defedavg 1"][1] | {"server_steps": STEPS})
    figure = plot.bound(seeds(), bound, path=tmp_path / "bound.png")
    drawn = lines(figure)
    assert (tmp_path / "bound.png").stat().st_size > 5000
    at, mean = drawn["mean of 2 seeds"]
    np.testing.assert_array_equal(at, STEPS)
    np.testing.assert_allclose(mean, np.cumsum(2.0 / STEPS) / STEPS)
    np.testing.assert_array_equal(drawn["Theorem 1, eq. (12) (conditions violated)"][1], bound["total"])
    for name in ("leading", "drift"):
        np.testing.assert_array_equal(drawn[f"{name}: {bound[name].attrs['long_name']}"][1], bound[name])
    assert figure.axes[0].get_yscale() == "log" and figure.axes[0].get_ylabel() == bound.attrs["bounds"]
    doubtful = fadas.theorem_5_6(**CASES["fadas 5.6"][1] | {"server_steps": STEPS})
    assert "Theorem 5.6, eq. (5) (not guaranteed, vacuous)" in lines(plot.bound({"a": seeds()}, doubtful))


def test_the_gap_of_the_average_is_above_the_optimum() -> None:
    bound = delayed_gradients.audg(**CASES["audg"][1] | {"server_steps": STEPS})
    at, gap = lines(plot.bound({"a": seeds(), "b": result(2.0)}, bound, optimum=0.5))["a, mean of 2 seeds"]
    assert at.tolist() == [10, 20]
    np.testing.assert_allclose(gap, 1.5 + 1 / np.array([11, 21]))
    assert "eq. (21) (vacuous)" in lines(plot.bound(result(1.0), bound))
