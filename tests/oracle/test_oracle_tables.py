"""Servers with tables, weights and rates of their own, worked by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from .server_tables import ACED, AREA, FedStale, LastUpdates, PickySGD
from .server_weighted import PORT, DelayAdaptive, FedFa, FedNova
from .small_cases import update, vector
from .update import Array, Server, Update

OPTIMA = (1.0, -1.0)  # f_i' = x - OPTIMA[i]


def last_updates(begin: str) -> Server:
    """MIFA ("at once" without waiting, "later" with it), IA2SGD ("later") or ACE ("full") of two clients."""
    return LastUpdates(eta=0.5, num_clients=2, dim=1, begin=begin)


def aced(max_age: float, age: str) -> Server:
    return ACED(eta=0.5, num_clients=2, dim=1, max_age=max_age, age=age)


def fedstale(beta: float, p: Sequence[float]) -> Server:
    return FedStale(alpha=[0.5] * 2, p=p, beta=beta, dim=1)


def area(x0: Array) -> Server:
    return AREA(num_clients=2, x0=x0)


def versions(server: Server, steps: Sequence[Sequence[tuple[int, int]]]) -> list[float]:
    """x_0 = 2, x_1, ... for steps of arrivals (client, version that its gradient is taken at)."""
    found = [vector(2.0)]
    for t, arrivals in enumerate(steps):
        gradients = [(client, found[start], t - start) for client, start in arrivals]
        updates = [
            Update(client=c, delta=OPTIMA[c] - x, x_start=x, staleness=staleness) for c, x, staleness in gradients
        ]
        found.append(server.step(found[-1], updates))
    return [float(x[0]) for x in found]


def test_ace():
    # times 1 and 3; at time 0 a gradient of each client at x_0
    steps = [[(0, 0), (1, 0)], [(0, 1)], [(0, 2)], [(0, 3)], [(1, 1)]]
    assert versions(last_updates("full"), steps) == pytest.approx([2, 1, 0.25, -0.3125, -0.734375, -0.90625])


def test_ia2sgd():
    # times 1 and 3: the table is full at 3, and client 1's second gradient is taken at x_0 again
    steps = [[(0, 0)], [(0, 1)], [(0, 2)], [(1, 0)], [(0, 3)], [(0, 5)], [(0, 6)], [(1, 4)]]
    expected = [2, 2, 2, 2, 2, 1, 0.25, -0.3125, -0.875]
    assert versions(last_updates("later"), steps) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("max_age", "age", "expected"),
    [
        (1, "dispatch", [2, 1, 0.25, 0.625]),  # at 1 both count, at 2 client 0 only: 2 - 0 > 1
        (9, "dispatch", [2, 1, 0.25, -0.3125]),  # ACE
        (0, "row", [2, 1, 1, 1]),  # client 0's gradients are one and two versions old: nobody counts
    ],
)
def test_aced(max_age, age, expected):
    starts = (1, 2) if age == "dispatch" else (0, 0)
    steps = [[(0, 0), (1, 0)], [(0, starts[0])], [(0, starts[1])]]
    assert versions(aced(max_age, age), steps) == pytest.approx(expected)


def test_mifa():
    # f_0' = 1 at x_0 moves alone at first: 2 - 1/2 1/2; then both rows: f_1'(1.75) = 2.75 beside the old 1.
    assert versions(last_updates("at once"), [[(0, 0)], [(1, 1)]]) == pytest.approx([2, 1.75, 0.8125])
    # The round by which all have come does not step, the next does: rows 1 and 3, then client 0 at 2 again.
    assert versions(last_updates("later"), [[(0, 0)], [(1, 0)], [(0, 2)]]) == pytest.approx([2, 2, 2, 1])
    # Without arrivals it goes on along the rows.
    assert versions(last_updates("at once"), [[(0, 0), (1, 0)], []]) == pytest.approx([2, 1, 0])


def test_fedstale():
    server = fedstale(0.5, [1.0, 0.5])
    x = server.step(vector(0.0), [update(0, 4.0), update(1, 2.0)])  # 1/2 4 + 1/2 2 / 1/2
    assert x == pytest.approx(4.0)
    assert server.step(x, [update(1, 6.0)]) == pytest.approx(4.0 + 6.5)  # (6 - 1) + 1/2 (2 + 1)
    assert server.step(x, []) == pytest.approx(4.0 + 2.5)  # 1/2 (2 + 3)
    assert fedstale(0.0, [0.5, 0.5]).step(vector(0.0), [update(0, 4.0)]) == pytest.approx(4.0)  # FedAvg
    server = fedstale(1.0, [1.0, 0.5])  # FedVARP
    x = server.step(vector(0.0), [update(0, 4.0), update(1, 2.0)])
    assert server.step(x, [update(1, 6.0)]) == pytest.approx(4.0 + 7.0)  # (6 - 2) + 1/2 (4 + 2)


def test_picky_sgd():
    server = PickySGD(eta=0.5, distance=2.0)
    assert server.step(vector(3.0), [update(0, 4.0, x_start=1.0, staleness=9)]) == pytest.approx(5.0)  # at the bound
    assert server.step(vector(5.0), [update(1, 4.0, x_start=2.5, staleness=1)]) == pytest.approx(5.0)
    assert server.step(vector(-1.0), [update(1, 4.0, x_start=1.5)]) == pytest.approx(-1.0)
    for start, moves in ((1.4, True), (1.5, False)):  # 1.4^2 2 < 2^2 < 1.5^2 2
        arrival = Update(client=0, delta=vector(1.0, 1.0), x_start=vector(start, start))
        assert (server.step(vector(0.0, 0.0), [arrival]) == [moves / 2, moves / 2]).all()


def test_area():
    server = area(vector(2.0))
    x = server.step(vector(2.0), [update(0, 4.0, x_start=2.0)])  # y = (6, 2)
    assert x == pytest.approx(4.0)
    x = server.step(x, [update(0, 4.0, x_start=4.0), update(1, -2.0, x_start=2.0), update(0, 1.0, x_start=4.0)])
    assert x == pytest.approx(2.5)  # y = (5, 0)


def test_fednova():
    cohort = [update(0, 2.0, local_steps=1, num_samples=1), update(1, 9.0, local_steps=3, num_samples=3)]
    assert FedNova().step(vector(1.0), cohort) == pytest.approx(1 + 2.5 * 2.75)  # tau_eff 2.5; 1/4 2 + 3/4 3
    assert FedNova(eta=0.5, weights="uniform").step(vector(0.0), cohort) == pytest.approx(2.5)  # 1/2 2 (2 + 3)/2
    even = [update(0, 2.0, local_steps=4, multiplicity=2), update(1, 5.0, local_steps=4)]
    assert FedNova().step(vector(0.0), even) == pytest.approx(3.0)  # FedAvg


@pytest.mark.parametrize(
    ("options", "rates"),
    [
        ({"rule": "ratio"}, [0.1, 0.1, 0.2 / 3, 0.05]),
        ({"rule": "drop"}, [0.1, 0.1, 0.0, 0.0]),
        ({"rule": "koloskova", "smoothness": 0.5}, [0.1, 0.1, 0.1, 0.1]),  # 1 / (2 tau) > eta
        ({"rule": "koloskova", "smoothness": 2.5}, [0.1, 0.1, 0.1 / 3, 0.025]),
    ],
)
def test_delay_adaptive(options, rates):
    for tau, rate in zip((0, 2, 3, 4), rates, strict=True):
        server = DelayAdaptive(eta=0.1, c=2, **options)
        assert server.step(vector(1.0), [update(0, 3.0, staleness=tau)]) == pytest.approx(1 + 3 * rate)
        assert server.info.eta == pytest.approx(rate)


def test_fedfa():
    server, x = FedFa(window=2), vector(0.5)
    found = []
    for model in (1.0, 3.0, 8.0):
        x = server.step(x, [update(0, model - 0.25, x_start=0.25)])
        found.append(float(x[0]))
    assert found == pytest.approx([0.5, 2.0, 5.5])
    assert FedFa(window=1).step(vector(7.0), [update(0, 1.0, x_start=2.0)]) == pytest.approx(3.0)


def test_port():
    server = PORT()
    x = server.step(vector(0.0, 0.0), [Update(client=0, delta=vector(1.0, 0.0), x_start=vector(0.0, 0.0))])
    np.testing.assert_allclose(x, [1.0, 0.0])  # the last step is (1, 0)
    fresh = Update(client=0, delta=vector(5.0, 0.0), x_start=x, num_samples=100)
    stale = Update(client=1, delta=vector(0.0, 5.0), x_start=x, num_samples=300, staleness=10)
    x = server.step(x, [fresh, stale])
    np.testing.assert_allclose(x, [3.0, 3.0])  # 100 (1 + 3), 300 (1/2 + 3/2): 0.4, 0.6
    # the last step is now (2, 3): cos 3 / sqrt 13
    cosine = 3 / np.sqrt(13)
    p = 0.5 * (cosine + 1) + 1.5
    np.testing.assert_allclose(server.step(x, [fresh, stale])[1] - x[1], 5 * 300 * p / (400 + 300 * p))
