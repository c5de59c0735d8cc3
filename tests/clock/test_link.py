"""Transfers of the bytes that runs send."""

from __future__ import annotations

from typing import Any

import numpy as np
import optax
import pytest

import jaxafl as afl
from jaxafl import clock
from jaxafl.clock import schedule as run_clock
from tests.problems import quadratic


def simulation(durations: Any, upload: Any = None, **options: Any) -> afl.Simulation:
    problem = quadratic()
    client = afl.Client(optax.sgd, learning_rate=0.1, steps=1, batch_size=None, upload=upload)
    made = clock.free_running(concurrency=6, durations=durations, **options)
    return afl.Simulation(problem.data, problem.model, client, afl.server.fedasync(), made)


def test_transfers_are_of_the_bytes_that_are_sent() -> None:
    up = np.array([1.0, 2, 4, 8, 16, 32])
    sim = simulation(3 + clock.link(up, down=4.0))
    size = int(sim.run(1).bytes_up[0])  # of one update
    found = sim.schedule(20)
    seconds = (found.arrived - found.started)[:, 0]
    np.testing.assert_allclose(seconds, 3 + size / up[found.client[:, 0]] + size / 4)
    short = simulation(clock.link(2.0, down=4.0), afl.upload.top_k(count=1)).schedule(1)
    assert short.time[0] == pytest.approx(5 / 2 + size / 4)  # 34 bits up
    assert simulation(clock.sessions(clock.link(2.0), clock.constant(1e9), off=clock.constant(1.0))).schedule(1).time[
        0
    ] == pytest.approx(size)
    inner = clock.warm_up(clock.free_running(concurrency=6, durations=clock.link(2.0)))
    problem = quadratic()
    parts = problem.data, problem.model, sim.client, afl.server.fedasync(), inner
    assert afl.Simulation(*parts).schedule(1).time[0] == pytest.approx(size)


def test_speed_is_that_of_the_mean_transfer() -> None:
    made = clock.free_running(concurrency=1, durations=clock.link(2.0, 4.0, 0.5, bytes=8.0))
    found = run_clock(made, 1, 1, 20_000)
    assert found.time[-1] / 20_000 == pytest.approx(6.0, rel=0.02)
    seconds = np.diff(found.time, prepend=0)
    assert seconds.std() == pytest.approx(np.sqrt((4**2 + 2**2) * np.expm1(0.25)), rel=0.05)


def test_wrong_links_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown without a model"):
        run_clock(clock.free_running(concurrency=1, durations=clock.link(1.0)), 2, 1, 3)
    for options, text in (({"up": 0.0}, "up must be > 0"), ({"up": np.ones(3)}, "one number per client")):
        with pytest.raises(ValueError, match=text):
            simulation(clock.link(**options)).schedule(3)
