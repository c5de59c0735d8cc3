"""Bounds as datasets: terms, dimensions, conditions, errors; their numbers against formulas written out once more."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest

from jaxafl.options import UserError
from jaxafl.references import BIBTEX
from jaxafl.theory import CONSTANTS, asyncfeded, defedavg, delayed_gradients, fadas
from tests.theory.cases import CASES

cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@cases
def test_terms_sum_to_the_total_and_attributes_say_what_it_is(case) -> None:
    function, constants = case
    bound = function(**constants)
    terms = [name for name in bound.data_vars if name != "total"]
    assert list(bound.data_vars) == [*terms, "total"] and bound["total"].dtype == np.float64
    assert bound["total"].item() == pytest.approx(sum(bound[name].item() for name in terms), rel=1e-14)
    assert all(bound[name].attrs["long_name"] for name in bound.data_vars)
    assert bound.attrs["paper"] in BIBTEX and bound.attrs["bounds"] == bound["total"].attrs["long_name"]
    assert bound.attrs["form"] in ("corrected", "printed", "order")
    assert bool(bound.attrs["holds"]) and "violated" not in bound.attrs["conditions"]
    assert bool(bound.attrs["guaranteed"]) or bound.attrs["note"]


@cases
def test_a_bound_scales_with_the_units_of_parameters_and_objective(case) -> None:
    """x -> 3x, f -> 5f: every constant by its dimension, terms and both sides of conditions by theirs. Steps, local
    steps and staleness are counts."""
    function, constants = case
    scaled = {}
    units = {name: CONSTANTS[name].dimension for name in inspect.signature(function).parameters if name in CONSTANTS}
    for name in inspect.signature(function).parameters:
        default = inspect.signature(function).parameters[name].default
        value = constants.get(name, default)
        if name in units and value is not None:
            x, f = units[name]
            value = value * 3.0**x * 5.0**f
        scaled[name] = value
    before, after = function(**constants), function(**scaled)
    powers = {"local_drift": (2, 0), "update_norm_squared": (2, 0), "gap_of_average": (0, 1), "gap_difference": (0, 1)}
    x, f = powers.get(before.attrs["quantity"], (-2, 2))
    for name in before.data_vars:
        assert after[name].item() == pytest.approx(before[name].item() * 3.0**x * 5.0**f, rel=1e-12), name
    for old, new in zip(*(_sides(bound) for bound in (before, after)), strict=True):
        assert new == pytest.approx(old, rel=1e-4)


def _sides(bound) -> list[float]:
    """left / right of each condition."""
    pairs = [one.rpartition(": ")[2].split()[:3] for one in bound.attrs["conditions"].split("; ") if ":" in one]
    return [float(left) / float(right) for left, _, right in pairs]


def test_asyncfeded_by_hand() -> None:
    rates = np.array([0.05, 0.02, 0.01])
    K, L, gamma, sigma, spread = 3, 2.0, 0.1, 0.5, 0.7
    m1, m2, log = rates.mean(), (rates**2).mean(), math.log(4)
    theta = 1 - (gamma**2 * K * log / 3 + 4 * K**2 * L**2 * m2 * gamma**2)
    own = dict(smoothness=L, local_rate=rates, local_variance=sigma, global_variance=spread)
    bound = asyncfeded.theorem_2(
        server_steps=40, local_steps=K, gap=3.0, server_rate=0.3, euclidean_staleness=gamma, **own
    )
    expected = 2 * 3.0 / (0.3 * K * m1 * 40) + 0.3 / m1 * (
        (log + 4 * K) / (72 * L * theta) * sigma + (3 * log + 4 * K) / (18 * L * theta) * spread
    )
    assert bound["total"].item() == pytest.approx(expected, rel=1e-14)
    update = asyncfeded.corollary_1(local_steps=K, euclidean_staleness=gamma, gradient_norm_squared=1.3, **own)
    a, b = K**2 * L**2 * m2, K * log
    expected = (12 * a + b) / (3 * L**2 * theta) * 1.3 + (72 * a + b) / (72 * L**2 * theta) * sigma
    assert update["total"].item() == pytest.approx(expected + (24 * a + b) / (6 * L**2 * theta) * spread, rel=1e-14)
    moved = asyncfeded.theorem_1(local_steps=[1, 3], gradient_norm_squared=1.3, **own)
    np.testing.assert_allclose(moved["total"], [(k / 8) * (spread + 1.3) + (k + 1) / 96 * sigma for k in (1, 3)])
    late = dict(local_steps=K, euclidean_staleness=3.0, gradient_norm_squared=1.3)
    apart = asyncfeded.corollary_1(**late, **own | {"local_variance": 0.0})
    assert np.isinf(apart["total"]) and not apart.attrs["holds"] and "violated" in apart.attrs["conditions"]


def test_audg_and_psurdg_by_hand() -> None:
    constants = CASES["audg"][1]
    T, eta, R, L, mu, h2, G, N, I, A, B = 50, 0.3, 1.5, 2.0, 0.5, 0.8, 4.0, 6, 4.5, 0.3, 1.1  # noqa: E741
    S = R**2 / (2 * eta * T) + 2 * L / (mu * T**2) * (L * R**2 + (mu + L) * h2)
    audg = S + L * R**2 * A / 2 + (N - I) * ((2 * L - mu) * h2 / 2 + 3 * L * R**2 / 2)
    audg += eta**2 * G**2 * (L - mu) / 2 * I * A + eta**2 * G**2 * L * N / 2 * B
    psurdg = S + N * eta**2 * G**2 / 2 * ((L - mu) * A + L * B) + L * R**2 * A / 2
    totals = {
        name: CASES[name][0](**CASES[name][1])["total"].item() for name in ("sfl", "audg", "psurdg", "difference")
    }
    assert [totals["sfl"], totals["audg"], totals["psurdg"]] == pytest.approx([S, audg, psurdg], rel=1e-14)
    assert totals["difference"] == pytest.approx(psurdg - audg, rel=1e-12)
    without = {name: value for name, value in constants.items() if name != "optimum_spread"}
    alike = audg - S - (N - I) * (2 * L - mu) * h2 / 2
    assert delayed_gradients.pdd(**without)["total"].item() == pytest.approx(alike, rel=1e-13)
    del constants, without
    printed = delayed_gradients.psurdg_less_audg(**CASES["difference"][1], form="printed")["total"].item()
    assert printed - totals["difference"] == pytest.approx((N - I) * eta**2 * G**2 * mu / 2 * A, rel=1e-10)


def test_fadas_by_hand() -> None:
    constants = CASES["fadas 5.6"][1]
    T, K, M, N, F, L, s, g, G, eps, eta, rate, worst, late = (
        50, 3, 4, 20, 3.0, 2.0, 0.5, 0.7, 5.0, 0.2, 1e-3, 1e-3, 9.0, 3.0
    )  # fmt: skip
    C, V = rate * K * G + eps, 15 * rate**2 * K**2 * L**2 * (s + 6 * K * g) + 3 * K * g
    share = (N - M) / (N - 1)
    common = 4 * C * F / (eta * rate * K * T) + 20 * C * rate**2 * K * L**2 * (s + 6 * K * g) / eps
    factor = 8 * C * eta**2 * rate**2 * K * L**2 * late * worst / (M * eps**3) + 12 * C * eta * rate * L / (M * eps**2)
    assert fadas.theorem_5_6(**constants)["total"].item() == pytest.approx(common + factor * (s + share * V), rel=1e-14)
    H, u = 8e-4 * T, 0.5
    adaptive = common + 8 * C * eta**3 * rate**2 * K * L**2 * T * late * s / (M * eps**3 * H)
    adaptive += 8 * C * u * eta**2 * rate**2 * K * L**2 * T * late / (math.sqrt(M) * eps**3 * H) * share * V
    adaptive += 4 * C * eta * rate * L / (M * eps**2) * (s + share * V + 3 * K * g)
    assert fadas.theorem_5_9(**CASES["fadas 5.9"][1])["total"].item() == pytest.approx(adaptive, rel=1e-14)
    conditions = fadas.theorem_5_6(**constants).attrs["conditions"].split("; ")
    limits = [float(one.rpartition("<= ")[2].split()[0]) for one in conditions]
    expected = [
        eps**2 * M * (N - 1) / (180 * C * N * (N - M) * worst * K * L),
        math.sqrt(eps**3 * M * (N - 1)) / (12 * math.sqrt(C * N * (M - 1) * worst**3) * K * L),
        math.sqrt(eps) / (math.sqrt(360 * C * worst) * K * L),
    ]
    assert limits == pytest.approx(expected, rel=1e-5)


def test_defedavg_by_hand_and_its_printed_form() -> None:
    T, K, n, F, L, s, G, nu, late, u = 10**7, 3, 4, 3.0, 2.0, 0.5, 5.0, 0.7, 9.0, 2.0
    function, constants = CASES["defedavg 1"]
    rising = 4 * s * L + 2 * L * K * G**2
    expected = math.sqrt(256 * F * (16 * s * L + 8 * L * G**2 * K) / (n * K * T))
    expected += 8 * L**2 * (s + 8 * K * nu) * u / (rising * K * T)
    bound = function(**constants)
    assert bound["total"].item() == pytest.approx(expected, rel=1e-14)
    rates = defedavg.step_sizes(
        server_steps=T, local_steps=K, arrivals=n, gap=F, smoothness=L, local_variance=s, gradient_bound=G
    )
    assert rates["server_rate"] == pytest.approx(math.sqrt(4 * n * K * F))
    assert rates["local_rate"] == pytest.approx(1 / (K * math.sqrt(rising * T)))
    limits = [float(one.rpartition("<= ")[2].split()[0]) for one in bound.attrs["conditions"].split("; ")]
    last = (2 * s + G**2 * K) / (8 * s * L * K * late + 4 * L * G**2 * K**2 * late**2)
    assert limits == pytest.approx([1 / (8 * L * K), 1 / (4 * L * K * late), last], rel=1e-5)
    alike = CASES["defedavg 2"]
    assert alike[0](**alike[1])["total"].item() == pytest.approx(
        math.sqrt(128 * s * L * F / (n * K * T)) + 8 * L / (K * T), rel=1e-14
    )
    printed = alike[0](**alike[1], form="printed")
    assert printed["leading"].item() == pytest.approx(math.sqrt(128 * L * F / (n * K * T)), rel=1e-14)
    assert not printed.attrs["guaranteed"]


def test_a_bound_says_first_if_it_is_vacuous_or_violated() -> None:
    """LR²/2 = 2 with L = 1 and R = 2; S = R²/(2ηT) + (2L/(μT²))[LR² + (μ+L)h²]."""
    known = dict(learning_rate=0.5, distance=2.0, smoothness=1.0, strong_convexity=0.5, optimum_spread=0.0)
    bound = delayed_gradients.sfl(server_steps=np.arange(1, 41), **known)
    T = np.arange(1, 41)
    first = int(T[4 / (0.5 * 2 * T) + 16 / T**2 < 2][0])
    assert next(iter(bound.attrs)) == "verdict" and 1 < first < 40
    vacuous, informative = bound.attrs["verdict"].split("; ")
    assert vacuous.startswith(f"vacuous at server_steps = 1 .. {first - 1} ({first - 1} of 40): not below 2")
    assert informative == f"informative at server_steps = {first} .. 40 ({41 - first} of 40)"
    assert delayed_gradients.sfl(server_steps=1, **known).attrs["verdict"].startswith("vacuous:")
    assert delayed_gradients.sfl(server_steps=1000, **known).attrs["verdict"] == "informative"
    steep = delayed_gradients.sfl(server_steps=1000, **known | {"learning_rate": 3.0})
    assert steep.attrs["verdict"] == "no bound: its conditions are violated"


@pytest.mark.parametrize(
    ("name", "value"),
    [("smoothness", -1.0), ("server_steps", [10, 0]), ("distance", math.nan), ("strong_convexity", 3.0)],
)
def test_wrong_constants_are_named(name, value) -> None:
    function, constants = CASES["sfl"]
    with pytest.raises(UserError, match=f"sfl: {name}"):
        function(**constants | {name: value})
