"""Clients drawn in proportion to weights, against cumulated sums."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import optax
import pytest

import jaxafl as afl
from jaxafl import clock
from jaxafl.clock import schedule as run_clock
from jaxafl.clock import trees
from tests.problems import quadratic
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


def test_the_tree_draws_as_a_list_of_sums_does() -> None:
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        weigh, draw = jax.jit(trees.weigh, static_argnums=1), jax.jit(trees.weighted, static_argnums=1)
        weights = rng.integers(0, 4, 70).astype(float)
        tree = trees.weights_of(weights)
        for _ in range(200):
            client, weight, where = int(rng.integers(70)), float(rng.integers(4)), bool(rng.integers(2))
            weights[client] = weight if where else weights[client]
            tree = weigh(tree, 70, client, weight, where)
            share = float(rng.choice([0.0, 1 - 2.0**-53, rng.random()]))
            expected = np.searchsorted(weights.cumsum(), share * weights.sum(), side="right")
            assert draw(tree, 70, share) == min(expected, np.flatnonzero(weights)[-1])


FREE = clock.free_running(concurrency=2, durations=clock.uniform(1, 2))
DRAWING: dict[str, tuple[Any, Any]] = {
    "free_running": (afl.server.fedasync(), FREE),
    "synchronous": (afl.server.fedavg(), clock.synchronous(cohort=2)),
}


def clients_drawn(server: Any, made: Any) -> np.ndarray:
    problem = quadratic()
    client = afl.Client(optax.sgd, learning_rate=0.1, steps=1, batch_size=None)
    return afl.Simulation(problem.data, problem.model, client, server, made).schedule(30).client


@pytest.mark.parametrize("name", slow_but(DRAWING, "synchronous"))
def test_samples_of_the_data_are_weights(name: str) -> None:
    server, made = DRAWING[name]
    options: list[dict[str, Any]] = [{"select": "samples"}, {"weights": quadratic().data.counts}]
    np.testing.assert_array_equal(*[clients_drawn(server, dataclasses.replace(made, **one)) for one in options])


@pytest.mark.slow
def test_a_protocol_after_a_warm_up_draws_by_samples() -> None:
    made = clock.warm_up(dataclasses.replace(FREE, select="samples"))
    assert (clients_drawn(afl.server.fedasync(), made) < quadratic().num_clients).all()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"select": "samples"}, "run the clock in a Simulation"),
        ({"select": "samples", "weights": np.ones(5)}, "give weights or select='samples', not both"),
        ({"weights": np.array([1.0, 0, 0, 0, 0])}, "only 1 of 5 clients have a weight above 0, and 2 are drawn"),
        ({"weights": np.ones(4)}, "one number per client"),
        ({"weights": -np.ones(5)}, "weights must be >= 0"),
        ({"select": "size"}, "'samples'"),
    ],
)
def test_wrong_weights_are_refused(options: dict[str, Any], text: str) -> None:
    for made in (
        clock.synchronous(cohort=2, **options),
        clock.free_running(concurrency=2, durations=clock.uniform(1, 2), **options),
    ):
        with pytest.raises(ValueError, match=text):
            run_clock(made, 5, 1, 3)


def test_weights_without_effect_are_refused() -> None:
    for made in (
        clock.synchronous(select="samples"),
        clock.free_running(concurrency=5, durations=clock.uniform(1, 2), weights=np.ones(5)),
    ):
        with pytest.raises(ValueError, match="select and weights have no effect"):
            run_clock(made, 5, 1, 3)
