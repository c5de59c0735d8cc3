"""Clients drawn in proportion to weights, against cumulated sums."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import jaxafl as afl
from jaxafl import clock
from jaxafl.clock import schedule as run_clock
from tests.problems import descent, quadratic
from tests.problems_protocols import picks
from tests.variants import slow_but

ROUNDS = 12
WEIGHTS = np.array([3.0, 0, 1, 5, 2, 0, 1, 4, 1])


@pytest.mark.parametrize("replacement", [False, True])
def test_cohorts_are_drawn_one_after_another(replacement: bool) -> None:
    made = clock.synchronous(cohort=4, replacement=replacement, weights=WEIGHTS)
    found = run_clock(made, len(WEIGHTS), 1, ROUNDS, seed=3)
    pick = picks(3, WEIGHTS.tolist())
    for t in range(ROUNDS):
        idle = list(range(len(WEIGHTS)))
        drawn = []
        for place in range(4):
            drawn.append(pick(4 * t + place, idle))
            idle = idle if replacement else [client for client in idle if client != drawn[-1]]
        here = np.repeat(found.client[t][found.mask[t]], found.multiplicity[t][found.mask[t]])
        assert here.tolist() == sorted(drawn)


FREE = clock.free_running(concurrency=2, durations=clock.uniform(1, 2))
DRAWING: dict[str, tuple[Any, Any]] = {
    "free_running": (afl.server.fedasync(), FREE),
    "synchronous": (afl.server.fedavg(), clock.synchronous(cohort=2)),
}


@pytest.mark.parametrize("name", slow_but(DRAWING, "synchronous"))
def test_samples_of_the_data_are_weights(name: str) -> None:
    server, made = DRAWING[name]
    options: list[dict[str, Any]] = [{"select": "samples"}, {"weights": quadratic().data.counts}]
    sims = [descent(server=server, clock=dataclasses.replace(made, **one)) for one in options]
    np.testing.assert_array_equal(*[sim.schedule(30).client for sim in sims])
