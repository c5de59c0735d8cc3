"""Every server of the oracle, worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from .server import FADAS, AsyncFedED, FedAsync, FedAvg, FedBuff
from .server_adaptive import FedAdagrad, FedAdam, FedYogi, fedams
from .server_buffered import CA2FL, DeFedAvgIID, DeFedAvgNonIID
from .server_gradient import AUDG, PSURDG, AsySG
from .server_interrupting import FAVANO, QuAFL, gap_expectations
from .server_rounds import AFL, SAFA
from .small_cases import update, vector
from .update import Array, Update


def test_fedavg():
    cohort = [update(0, 1.0, num_samples=1), update(1, 4.0, num_samples=3)]
    assert FedAvg().step(vector(10.0), cohort) == pytest.approx(13.25)  # 1/4 + 3
    assert FedAvg(weights="uniform").step(vector(10.0), cohort) == pytest.approx(12.5)
    assert FedAvg(eta=2.0).step(vector(10.0), cohort) == pytest.approx(16.5)
    assert FedAvg().step(vector(10.0), []) == pytest.approx(10.0)
    twice = [update(0, 1.0, multiplicity=2), update(1, 4.0)]
    assert FedAvg().step(vector(0.0), twice) == pytest.approx(2.0)  # (1 + 1 + 4) / 3


@pytest.mark.parametrize(
    ("options", "staleness", "expected"),
    [
        ({"weighting": "constant"}, 3, 3.0),  # 1/2 2 + 1/2 4
        ({"weighting": "constant", "mix": "delta"}, 3, 3.5),  # 2 + 1/2 3
        ({"weighting": "polynomial", "a": 0.5}, 3, 2.5),  # s = 1/2: 3/4 2 + 1/4 4
        ({"weighting": "hinge", "a": 0.5, "b": 4.0}, 4, 3.0),  # s = 1
        ({"weighting": "hinge", "a": 0.5, "b": 4.0}, 6, 2.5),  # s = 1 / (1/2 2 + 1)
    ],
)
def test_fedasync(options, staleness, expected):
    server = FedAsync(alpha=0.5, **options)
    assert server.step(vector(2.0), [update(0, 3.0, x_start=1.0, staleness=staleness)]) == pytest.approx(expected)


def test_fedasync_applies_several_arrivals_in_turn():
    # Two arrivals of staleness 1 count as versions 2 and 3 old: weights 1/3 and 1/4. 0 -> 1/3 3 = 1 -> 3/4 + 1/4 4.
    server = FedAsync(alpha=1.0, weighting="polynomial", a=1.0)
    assert server.step(vector(0.0), [update(0, 3.0, staleness=1), update(1, 4.0, staleness=1)]) == pytest.approx(1.75)
    assert server.info.eta == pytest.approx(0.25)


def asyncfeded_arrival(delta: Array) -> list[Update]:
    return [Update(client=3, delta=delta, x_start=vector(0.0, 0.0), local_steps=10)]


@pytest.mark.parametrize(("rounding", "steps"), [("floor", 9), ("truncate", 10)])
def test_asyncfeded(rounding, steps):
    # ||x - x_s|| = 5, ||Delta|| = 2.5: gamma = 2, eta = 1 / 2.5 = .4; K changes by .5 (1 - 2) = -.5.
    server = AsyncFedED(lam=1.0, eps=0.5, target_staleness=1.0, kappa=0.5, max_steps=20, rounding=rounding)
    np.testing.assert_allclose(server.step(vector(3.0, 4.0), asyncfeded_arrival(vector(0.0, 2.5))), [3.0, 5.0])
    assert server.info.gamma == pytest.approx(2.0)
    assert server.info.eta == pytest.approx(0.4)
    assert server.info.replies == {3: steps}
    assert (server.info.dropped, server.info.clipped) == (0, 0)


def test_asyncfeded_by_the_cosine():
    # From x_s = (2, 0) the client goes to (2, 2), 45 degrees away, and the server to (0, 1), 90 degrees.
    server = AsyncFedED(lam=1.0, eps=1.0, target_staleness=6.0, kappa=1.0, max_steps=20, distance="cosine")
    sent = [Update(client=3, delta=vector(0.0, 2.0), x_start=vector(2.0, 0.0), local_steps=10)]
    gamma = 1 / (1 - 1 / math.sqrt(2))  # 3.414
    np.testing.assert_allclose(server.step(vector(0.0, 1.0), sent), [0.0, 1 + 2 / (gamma + 1)])
    assert server.info.gamma == pytest.approx(gamma) and server.info.replies == {3: 12}


def test_asyncfeded_bounds_of_the_number_of_steps():
    server = AsyncFedED(lam=1.0, eps=0.5, target_staleness=20.0, kappa=1.0, max_steps=15)
    server.step(vector(3.0, 4.0), asyncfeded_arrival(vector(0.0, 2.5)))  # 10 + 18
    assert (server.info.replies, server.info.clipped) == ({3: 15}, 1)
    server = AsyncFedED(lam=1.0, eps=0.5, target_staleness=0.0, kappa=9.0, max_steps=15)
    server.step(vector(3.0, 4.0), asyncfeded_arrival(vector(0.0, 2.5)))  # 10 - 18
    assert (server.info.replies, server.info.clipped) == ({3: 1}, 0)


def test_asyncfeded_without_an_update():
    server = AsyncFedED(lam=1.0, eps=0.5, target_staleness=3.0, kappa=1.0, max_steps=15)
    np.testing.assert_array_equal(server.step(vector(3.0, 4.0), asyncfeded_arrival(vector(0.0, 0.0))), [3.0, 4.0])
    assert (server.info.dropped, server.info.replies) == (1, {3: 10})
    np.testing.assert_array_equal(server.step(vector(0.0, 0.0), asyncfeded_arrival(vector(0.0, 0.0))), [0.0, 0.0])
    assert (server.info.dropped, server.info.gamma, server.info.replies) == (0, 0.0, {3: 13})


def test_fedbuff():
    buffer = [update(0, 2.0), update(1, 4.0, staleness=3)]
    assert FedBuff(scaling=None).step(vector(0.0), buffer) == pytest.approx(3.0)
    assert FedBuff(scaling="sqrt").step(vector(0.0), buffer) == pytest.approx(2.0)  # (2 + 4/2) / 2
    assert FedBuff(scaling=None, reduce="sum").step(vector(0.0), buffer) == pytest.approx(6.0)
    server = FedBuff(eta=0.1, momentum=0.5, scaling=None)
    x = server.step(vector(0.0), buffer)  # m = 3
    x = server.step(x, [])  # an empty tick leaves m alone
    assert server.step(x, [update(0, 1.0)]) == pytest.approx(0.55)  # m = 1.5 + 1


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ("uniform", 2.5),  # (2 + 6/2) / 2
        ("samples", 2.75),  # 1/4 2 + 3/4 6/2
        ("local_steps", 2.2),  # 4/5 2 + 1/5 6/2
    ],
)
def test_fedbuff_weights(weights, expected):
    buffer = [update(0, 2.0, local_steps=4), update(1, 6.0, staleness=3, num_samples=3)]
    assert FedBuff(scaling="sqrt", weights=weights).step(vector(0.0), buffer) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("bias_correction", "expected"),
    [
        # D = 2: m = .2, v = v_hat = .04, step eta. D = 0: m = .18, v_hat stays .04: step .9 eta.
        ("none", 1.9),
        # D = 2: (1/.1) .2 / (.2/.1) = 1. D = 0: (1/.19) .18 / (.2 / sqrt(.0199)).
        ("authors", 1 + 0.18 / 0.19 * math.sqrt(0.0199) / 0.2),
        # D = 2: v_hat = .04/.01 = 4, m / .1 = 2. D = 0: .0396/.0199 < 4, so .18/.19 / 2.
        ("optax", 1 + 0.18 / 0.19 / 2),
    ],
)
def test_fadas(bias_correction, expected):
    server = FADAS(eta=0.01, bias_correction=bias_correction, eps=0.0)
    x = server.step(vector(0.0), [update(0, 1.0), update(1, 3.0)])
    assert x == pytest.approx(0.01)
    assert server.step(x, [update(0, 0.0)]) == pytest.approx(0.01 * expected)


@pytest.mark.parametrize(
    ("eta", "scaling", "tau_max", "rate"),
    [
        (0.5, None, 4, 0.5),
        (0.5, "eq4", 1, 0.5),
        (0.5, "eq4", 4, 0.25),
        (0.1, "eq4", 4, 0.1),
        (0.5, "eq77", 1, 0.5),
        (0.5, "eq77", 4, 0.125),
    ],
)
def test_fadas_delay_scaling(eta, scaling, tau_max, rate):
    server = FADAS(eta=eta, delay_scaling=scaling, tau_c=1, eps=0.0)
    assert server.step(vector(0.0), [update(0, 2.0, staleness=0), update(1, 2.0, staleness=tau_max)]) == pytest.approx(
        rate
    )
    assert server.info.eta == pytest.approx(rate)


def test_adaptive_servers():
    # eps = 1, so v_0 = 1; b1 = .5: D = 2 gives m = 1.
    cohort = [update(0, 1.0), update(1, 3.0)]
    assert FedAdagrad(eta=1.0, b1=0.5, eps=1.0).step(vector(0.0), cohort) == pytest.approx(1 / (math.sqrt(5) + 1))
    assert FedAdam(eta=1.0, b1=0.5, b2=0.5, eps=1.0).step(vector(0.0), cohort) == pytest.approx(
        1 / (math.sqrt(2.5) + 1)
    )
    yogi = FedYogi(eta=1.0, b1=0.5, b2=0.5, eps=1.0)
    x = yogi.step(vector(0.0), cohort)  # v = 1 - .5 4 (-1) = 3
    assert x == pytest.approx(1 / (math.sqrt(3) + 1))
    # D = 1: m = 1, v = 3 - .5 1 (+1) = 2.5
    assert yogi.step(x, [update(0, 1.0)]) == pytest.approx(1 / (math.sqrt(3) + 1) + 1 / (math.sqrt(2.5) + 1))


def test_fedams_floor():
    # m = .2, v = .04, v_hat = max(.25, .04): .2 / .5
    server = fedams(eta=1.0, eps=0.0, max_init=0.25)
    assert server.step(vector(0.0), [update(0, 1.0), update(1, 3.0)]) == pytest.approx(0.4)


def test_gradient_servers():
    two = [update(0, -2.0), update(1, -4.0)]
    assert AsySG(eta=0.1).step(vector(0.0), two) == pytest.approx(-0.3)
    audg = AUDG(eta=0.1, num_samples=[1, 3])
    assert audg.step(vector(0.0), two) == pytest.approx(-0.35)  # 1/4 2 + 3/4 4
    assert audg.step(vector(0.0), [update(0, -6.0)]) == pytest.approx(-0.15)
    assert audg.step(vector(7.0), []) == pytest.approx(7.0)
    psurdg = PSURDG(eta=0.1, num_samples=[1, 3], dim=1)
    assert psurdg.step(vector(0.0), [update(1, -4.0)]) == pytest.approx(-0.3)  # client 0: still 0
    assert psurdg.step(vector(0.0), [update(0, -6.0)]) == pytest.approx(-0.45)
    assert psurdg.step(vector(0.0), []) == pytest.approx(-0.45)


def test_ca2fl():
    server = CA2FL(eta=1.0, num_clients=2, dim=1)
    x = server.step(vector(0.0), [update(0, 2.0), update(1, 4.0)])
    assert x == pytest.approx(3.0)
    # h_bar = 3; client 0 twice: (6 - 2) + (8 - 6) = 6, over 2.
    assert server.step(x, [update(0, 6.0), update(0, 8.0)]) == pytest.approx(9.0)


def test_defedavg():
    assert DeFedAvgIID(eta=0.5).step(vector(1.0), [update(0, 3.0), update(1, 5.0)]) == pytest.approx(3.0)
    # n = 3 draws, client 0 drawn twice: (3 + 3 + 6) / 3
    drawn = [update(0, 3.0, multiplicity=2), update(1, 6.0)]
    assert DeFedAvgNonIID().step(vector(1.0), drawn) == pytest.approx(5.0)
    with pytest.raises(ValueError, match="counts each update once"):
        DeFedAvgIID().step(vector(1.0), drawn)


def test_afl():
    arrivals = [update(0, 1.0, x_start=1.0), update(1, 3.0, x_start=3.0, staleness=1)]
    assert AFL().step(vector(99.0), arrivals) == pytest.approx(4.0)
    assert AFL(a=1.0).step(vector(99.0), arrivals) == pytest.approx(10 / 3)  # weights 2/3, 1/3


def test_safa():
    server = SAFA(num_samples=[1, 1, 2], x0=vector(0.0))
    # Cache 4 (picked), 8 (deprecated), 0: 1 + 2 + 0; then client 2 enters with 10: 1 + 2 + 5.
    x = server.step(vector(8.0), [update(0, 4.0)], undrafted=[update(2, 10.0)], deprecated=[1])
    assert x == pytest.approx(3.0)
    assert server.step(x, []) == pytest.approx(8.0)


@pytest.mark.parametrize(("reweight", "normaliser"), [("deterministic", [1.5, 1.0]), ("stochastic", [0.5, 1.0])])
def test_favano(reweight, normaliser):
    # u_0 = 2 + 3 / 1.5 = 4, u_1 = 1 (no step made): (4 + 4 + 1) / 3
    contacted = [update(0, 3.0, x_start=2.0, local_steps=3), update(1, 0.0, x_start=1.0, local_steps=0)]
    server = FAVANO(normaliser=normaliser, reweight=reweight)
    assert server.step(vector(4.0), contacted) == pytest.approx(3.0)


def test_gap_expectations():
    # Two steps a period, K = 3, p = 1/2: 1/2 2 + 1/2 3; one step always fits.
    assert gap_expectations(period=1, step_time=0.5, contact_probability=0.5, max_steps=3) == pytest.approx((2.5, 1.0))
    # A step takes two periods: none after the first, so P = 1/2.
    assert gap_expectations(period=1, step_time=2, contact_probability=0.5, max_steps=1) == pytest.approx((0.5, 0.5))
    # s = N: every gap is one period.
    assert gap_expectations(period=1, step_time=2, contact_probability=1.0, max_steps=9) == pytest.approx((0.0, 0.0))


@pytest.mark.parametrize("probability", [0.05, 0.3])
def test_gap_expectations_against_the_plain_sum(probability):
    terms = [(probability * (1 - probability) ** (g - 1), min(g * 3 // 4, 20)) for g in range(1, 2000)]
    expected = (sum(p * e for p, e in terms), sum(p for p, e in terms if e > 0))
    assert gap_expectations(period=3, step_time=4, contact_probability=probability, max_steps=20) == pytest.approx(
        expected
    )


def test_quafl():
    # s = 1, p = 1/2. Client 0 moves to 4: x = 2, x_0 = 2. Moves to 4 again: x = 3, x_0 = 3.
    server = QuAFL(num_clients=2, x0=vector(0.0))
    x = server.step(vector(0.0), [update(0, 4.0)])
    x = server.step(x, [update(0, 2.0)])
    assert x == pytest.approx(3.0)
    # Both, p = 1/3: client 0 at 3 + 3 = 6, client 1 at 0 + 0 = 0: x = 1 + 2/3 3, x_0 = 1 + 4, x_1 = 1.
    assert server.step(x, [update(0, 3.0), update(1, 0.0)]) == pytest.approx(3.0)
    np.testing.assert_allclose(server.models, [[5.0], [1.0]])
