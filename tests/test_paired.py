"""Statistics of paired samples, against slow ones, and tables for papers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxafl.results.curves import check_at, reach, value
from jaxafl.results.tables.text import Cell, decimals, table
from jaxafl.study.paired import difference, summary, survival, time_to

TIMES = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=9)
QUICK = settings(max_examples=60, deadline=None)


def run(values: Any, every: int = 10, failed_step: int = -1) -> xr.Dataset:
    """A run that is evaluated every so many simulated seconds."""
    at = every * np.arange(len(values), dtype=float)
    return xr.Dataset(
        {"accuracy": ("evaluation", np.asarray(values, np.float32)), "failed_step": failed_step},
        {"eval_time": ("evaluation", at), "eval_bytes": ("evaluation", 1000 * at)},
    )


def split(pairs: list[tuple[int, bool]]) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray([float(at) for at, _ in pairs]), np.asarray([there for _, there in pairs])


def product_limit(at: np.ndarray, reached: np.ndarray, point: float) -> float:
    """Kaplan and Meier's share of runs that are not there yet, by its formula."""
    left = 1.0
    for event in sorted(set(at[reached & (at <= point)])):
        left *= 1 - np.sum(reached & (at == event)) / np.sum(at >= event)
    return left


def test_a_summary_is_the_mean_and_students_interval() -> None:
    values = np.array([1.0, 2.0, 4.0, 3.0, 5.0])
    found = summary(values)
    reach = 2.7764451 * np.sqrt(2.5) / np.sqrt(5)  # the 0.975 quantile of t with 4 degrees of freedom, from a table
    np.testing.assert_allclose(found[1:5], [3.0, np.sqrt(2.5), 3 - reach, 3 + reach], rtol=1e-6)
    assert summary(values, 0.5).high < found.high
    alone = summary(np.array([1.0]))
    assert alone.mean == 1 and np.isnan([alone.std, alone.low, alone.high]).all()


@QUICK
@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=6, max_size=8))
def test_the_p_value_counts_all_flips_of_signs(pairs: list[tuple[int, int]]) -> None:
    values, reference = np.asarray(pairs, float).T
    found, own = difference(values, reference, falls=False), values - reference
    flips = [abs(np.mean(own * signs)) for signs in itertools.product([1, -1], repeat=len(own))]
    assert found.p == pytest.approx(np.mean(np.asarray(flips) >= abs(own.mean()) - 1e-9))
    decided = found.low > 0 or found.high < 0
    assert found.verdict == (("better" if found.mean > 0 else "worse") if decided else "not decided")


def test_verdicts_know_which_way_is_better() -> None:
    values, reference = np.array([1.0, 1.1, 0.9]), np.array([2.0, 2.2, 1.9])
    assert difference(values, reference, falls=True).verdict == "better"
    assert difference(values, reference, falls=False).verdict == "worse"
    assert np.isnan(difference(values, reference, falls=False).p)
    assert difference(values[:1], reference[:1], falls=False).verdict == "not decided"
    broken = difference(np.append(values, np.nan), np.append(reference, 1.0), falls=True)
    assert broken.verdict == "not decided" and np.isnan(broken.mean)


@QUICK
@given(TIMES)
def test_times_to_a_target_are_those_of_kaplan_and_meier(pairs: list[tuple[int, bool]]) -> None:
    at, reached = split(pairs)
    points, left = survival(at, reached)
    assert points.tolist() == sorted(set(at[reached]))
    np.testing.assert_allclose(left, [product_limit(at, reached, point) for point in points], atol=1e-12)
    whole = [point for point in sorted(set(at)) if product_limit(at, reached, point) <= 0.5 + 1e-9]
    assert time_to(at, reached).median == (whole[0] if whole and reached.sum() >= len(at) / 2 else np.inf)


def test_values_of_a_run() -> None:
    one = run([0.1, 0.9, 0.4, 0.5, 0.6, 0.7])
    asked = ["last", "last5", "best", {"time": 29.0}, {"bytes": 30_000}]
    np.testing.assert_allclose([value(one, "accuracy", at) for at in asked], [0.7, 0.62, 0.9, 0.4, 0.5], rtol=1e-6)
    assert np.isnan(value(run([0.1, 0.9], failed_step=7), "accuracy"))
    assert np.isnan(value(run([np.nan]), "accuracy"))
    assert value(one.rename(accuracy="loss"), "loss", "best") == pytest.approx(0.1)
    with pytest.raises(ValueError, match=r"ends at time=50, before 60"):
        value(one, "accuracy", {"time": 60})
    for wrong in ("first", {"hours": 1}, {"time": 1, "bytes": 1}, {"time": -1}, 5):
        with pytest.raises(ValueError, match="at"):
            check_at(wrong)


def test_when_a_run_reaches_a_target() -> None:
    one = run([0.1, 0.9, 0.4])
    assert reach(one, 0.5, "accuracy", "time") == (10.0, True)
    assert reach(one, 0.95, "accuracy", "bytes") == (20_000.0, False)
    assert reach(one.assign_attrs(until_time=27.0), 0.95, "accuracy", "time") == (27.0, False)
    assert reach(one.rename(accuracy="loss"), 0.3, "loss", "time") == (0.0, True)
    failed = run([0.1, 0.9], failed_step=7)
    assert reach(failed, 0.5, "accuracy", "time") == (10.0, True)
    assert reach(failed, 0.95, "accuracy", "time") == (np.inf, False)
    assert reach(run([np.nan]), 0.5, "accuracy", "time") == (0.0, False)


def test_tables_are_written_in_every_format() -> None:
    rows = [[Cell("a_1|b"), Cell("91.2 ± 0.7", True)], [Cell("50 %"), Cell("> 3 (2/5)")]]
    markdown, latex = (table(form, ["method", "x"], rows).splitlines() for form in ("markdown", "latex"))
    assert markdown[2:] == [r"| a_1\|b | **91.2 ± 0.7** |", "| 50 % | > 3 (2/5) |"]
    assert latex[4:6] == [r"a\_1$|$b & \textbf{91.2 $\pm$ 0.7} \\", r"50 \% & $>$ 3 (2/5) \\"]
    with pytest.raises(ValueError, match="format must be one of 'markdown', 'latex'"):
        table("html", [], [])
    assert [decimals(found) for found in ([0.7, 0.1], [1.4], [12.0], [np.nan], [0.0], [1e-9])] == [2, 1, 0, 1, 1, 6]
