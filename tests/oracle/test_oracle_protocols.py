"""Whole runs on the clocks of ticks, samples, contacts and rounds, worked by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from .client import LocalTraining, Quadratic
from .client_epochs import EpochTraining
from .clock_bernoulli import bernoulli
from .clock_interrupting import interrupting
from .clock_sampled import sampled
from .clock_semi_async import semi_async
from .clock_stale_rounds import stale_rounds
from .server_buffered import DeFedAvgNonIID
from .server_gradient import AUDG, PSURDG
from .server_interrupting import FAVANO, QuAFL, gap_expectations
from .server_rounds import AFL, SAFA
from .simulate import simulate
from .simulate_afl import simulate_afl
from .simulate_quafl import simulate_quafl
from .simulate_safa import simulate_safa
from .small_cases import DEPRECATING, DRAWN, FILLING, LOSSY, per_client, vector
from .update import Server

HALF = LocalTraining(learning_rate=0.5)  # one step halves the distance to the client's centre
GRADIENT = LocalTraining(learning_rate=1.0)  # Delta = centre - x_s


def centres(*values: float) -> list[Quadratic]:
    """Clients with f_i(w) = 1/2 (w - c_i)^2."""
    return [Quadratic(a=np.ones((1, 1)), c=np.array([[value]])) for value in values]


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        # eta lambda = 1/4. Tick 0: c0 offers 4: +1. Tick 1: 4 again and c1's 8: +3. Tick 2: nobody. Tick 3, both from
        # v2 = 4: 0 and 4: +1. Tick 4: c0 from v4 = 5: -1, c1's 4 again: +.75.
        ("audg", [0, 1, 4, 4, 5, 5.75]),
        # Tick 2: 4 and 8 once more: +3. Tick 3: 0 and 4: +1. Tick 4: c0 from v4 = 8: -4, and 4: 0.
        ("psurdg", [0, 1, 4, 7, 8, 8]),
    ],
)
def test_gradients_over_lossy_links(algorithm, expected):
    options: dict[str, Any] = {"eta": 0.5, "num_samples": [1, 1]}
    server: Server = AUDG(**options) if algorithm == "audg" else PSURDG(**options, dim=1)
    run = simulate(bernoulli(**LOSSY), GRADIENT, server, vector(0.0), centres(4.0, 8.0))
    np.testing.assert_allclose(np.ravel(run.versions), expected)


def test_defedavg_niid():
    # Step 0: c0 and c1 from 0: 4 and 8. Step 1: c0 from 6: 1, twice. Step 2: c1 from v1 = 6: 5, c2 from v0: 12. Step 3:
    # c0 from v2 = 7: .5.
    run = simulate(sampled(**DRAWN), HALF, DeFedAvgNonIID(), vector(0.0), centres(8.0, 16.0, 24.0))
    np.testing.assert_allclose(np.ravel(run.versions), [0, 6, 7, 15.5, 16])


CONTACTS = interrupting([[0], [1], [1], [0]], per_client([0.5, 2.0]), num_clients=2, period=1.0, max_steps=2)


def test_favano():
    # c0 always makes 2 steps: a = 2; c1 none, 1, 1, 2, 2, ... for gaps of 1, 2, ...: a = 1/4 + 1/8 + 2/8 = .625.
    # Contact 0: u = 3/2. Contact 1: one step from v0, 8/.625 = 12.8. Contact 2: no step: u = x_s = 6.775.
    # Contact 3: c0 from v1 = .75 moves by 3/4 of 3.25: u = .75 + 2.4375/2.
    normaliser = [
        gap_expectations(period=1.0, step_time=seconds, contact_probability=0.5, max_steps=2)[0]
        for seconds in (0.5, 2.0)
    ]
    assert normaliser == pytest.approx([2.0, 0.625])
    run = simulate(CONTACTS, HALF, FAVANO(normaliser=normaliser), vector(0.0), centres(4.0, 16.0))
    np.testing.assert_allclose(np.ravel(run.versions), [0, 0.75, 6.775, 6.775, 4.371875])
    assert math.isnan(run.records[2].losses[0])
    assert run.records[2].norms == (0.0,)
    assert run.times == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("scale_rate", "expected"),
    [
        # Contact 0: c0 0 -> 3; x and x_0 meet at 1.5. Contact 1: c1 0 -> 8: meet at 4.75. Contact 2: c1 has made no
        # step. Contact 3: c0 goes on from its OWN 1.5: 3.375.
        (False, [0, 1.5, 4.75, 4.75, 4.0625]),
        # Rate 1/2 (1 + 1)/1: every step reaches the centre. 4: 2. 16: 9. c1 stays. 4: 6.5.
        (True, [0, 2, 9, 9, 6.5]),
    ],
)
def test_quafl(scale_rate, expected):
    server = QuAFL(num_clients=2, x0=vector(0.0))
    run = simulate_quafl(CONTACTS, HALF, server, vector(0.0), centres(4.0, 16.0), scale_rate=scale_rate)
    np.testing.assert_allclose(np.ravel(run.versions), expected)
    np.testing.assert_allclose(np.ravel(server.models), [expected[4], expected[3]])
    # The distance of x_t = 4.75 from c0's model 1.5 (9 and 2 with the scaled rate).
    assert run.records[3].drifts == pytest.approx((expected[3] - expected[1],))


def test_safa_undrafted():
    # Weights 1/3. Round 0: c0 3, c1 6: (3 + 6 + 0)/3. Round 1: c0 from 3: 4.5, c2 from 0: 12, and c1's 6 of before:
    # 7.5; then its undrafted 7.5 (from 3). Round 2, all from 7.5: c0 6.75, c1 9.75, and c2's 12 of before.
    server = SAFA(num_samples=[1, 1, 1], x0=vector(0.0))
    run = simulate_safa(semi_async(**FILLING, rounds=3), HALF, server, vector(0.0), centres(6.0, 12.0, 24.0))
    np.testing.assert_allclose(np.ravel(run.versions), [0, 3, 7.5, 9.5])
    np.testing.assert_allclose(np.ravel(server.cache), [6.75, 9.75, 15.75])


def test_safa_deprecated():
    # Weights 1/4, centres 8, 16, 0, 0. Round 0: c0 4: x = 1. Round 1: c1 from v0: 8: (4 + 8)/4; c0 from 1, 4.5, comes
    # after. Round 2: c2's and c3's entries become x = 3; c0 from 3: 5.5: (5.5 + 8 + 3 + 3)/4.
    server = SAFA(num_samples=[1] * 4, x0=vector(0.0))
    run = simulate_safa(semi_async(**DEPRECATING, rounds=3), HALF, server, vector(0.0), centres(8.0, 16.0, 0.0, 0.0))
    np.testing.assert_allclose(np.ravel(run.versions), [0, 1, 3, 4.875])
    assert [[arrival.kind for arrival in record.arrivals] for record in run.records] == [
        ["picked"],
        ["undrafted", "picked"],
        ["picked"],
    ]
    assert run.times == [1, 2, 3]


# One epoch of Adam without memory moves a model by its rate, 1 / (1 + alpha d), towards the centre, +100 or -100.
SIGN = EpochTraining(learning_rate=1.0, epochs=1, delay_weight=1.0, b1=0.0, b2=0.0, eps=0.0)
ROUNDS = stale_rounds([[0], [1], [0], [0, 1]], [[0], [1], [1], [0, 1]], per_client([3.0, 1.0]), num_clients=2)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # 1; c1 from v0, d = 1: -1/2; c0 from v1 = 1, d = 1: 1.5; c0 from v3: 2.5 and c1 from v2 = -1/2: -1.
        ({}, [0, 1, -0.5, 1.5, 0.75]),
        # d = 3 s for c0, 1 s for c1: moves of 1/4 and 1/2. c0 from v1 = 1/4: 1/2; then 3/4 and v2 - 1/2 = -1.
        ({"delay": "seconds"}, [0, 0.25, -0.5, 0.5, -0.125]),
        # d = 2, each from its own model: 1/3; -1/3; 2/3; 1 and -2/3.
        ({"broadcast": False}, [0, 1 / 3, -1 / 3, 2 / 3, 1 / 6]),
        # The steps move by 1, 1.5, 2 and .75 (the last ends the recorded rounds anyway).
        ({"tolerance": 1.0}, [0, 1]),
        ({"tolerance": 0.9}, [0, 1, -0.5, 1.5, 0.75]),
    ],
)
def test_afl(options, expected):
    run = simulate_afl(ROUNDS, SIGN, AFL(), vector(0.0), centres(100.0, -100.0), **options)
    np.testing.assert_allclose(np.ravel(run.versions), expected, atol=1e-15)
    assert run.times == [3, 4, 7, 10][: len(expected) - 1]
    assert len(run.records) == len(expected) - 1


def test_afl_weighs_stale_models_less():
    # Round 3 as above, c1 (delivered first) with 2 samples and staleness 1: weights 1 and 2 (1/2)^a.
    clients = [centres(100.0)[0], Quadratic(a=np.ones((2, 1)), c=np.full((2, 1), -100.0))]
    run = simulate_afl(ROUNDS, SIGN, AFL(a=2.0), vector(0.0), clients)
    assert run.versions[4] == pytest.approx((2.5 - 0.5) / 1.5)
    assert [update.client for update in run.records[3].updates] == [1, 0]


def test_afl_gives_each_epoch_its_batches():
    asked: list[tuple[int, int]] = []

    def batches(client: int, run: int) -> list[list[list[int]]]:
        asked.append((client, run))
        return [[[0], [0]]]

    run = simulate_afl(ROUNDS, SIGN, AFL(), vector(0.0), centres(100.0, -100.0), batches=batches)
    assert asked == [(0, 0), (1, 0), (0, 1), (0, 2), (1, 1)]
    assert [update.local_steps for record in run.records for update in record.updates] == [2] * 5


def test_afl_rejects_an_unknown_delay():
    with pytest.raises(ValueError, match="delay must be"):
        simulate_afl(ROUNDS, SIGN, AFL(), vector(0.0), centres(0.0, 0.0), delay="rounds")
