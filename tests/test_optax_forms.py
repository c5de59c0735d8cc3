"""Optimisers that ask for more than a gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import optax
import pytest

import jaxafl as afl
from tests.problems import START, classifier, descent, observe_w, quadratic
from tests.variants import slow_but

pytestmark = pytest.mark.filterwarnings("ignore")


def loss_of(client: afl.Client, server: Any = None, steps: int = 3) -> tuple[float, float]:
    clock = afl.clock.synchronous(cohort=4, durations=afl.clock.constant(1.0))
    sim = classifier(client=client, server=server or afl.server.fedavg(), clock=clock)
    loss = sim.run(steps, eval_every=steps).loss.values
    return loss[0], loss[-1]


def multi_steps(learning_rate: Any) -> Any:
    return optax.MultiSteps(optax.sgd(learning_rate), 2)


def plateau(learning_rate: Any) -> Any:
    return optax.chain(optax.sgd(learning_rate), optax.contrib.reduce_on_plateau())


def decayed(learning_rate: Any) -> Any:
    return optax.chain(optax.add_decayed_weights(0.1), optax.sgd(learning_rate))


def aware(learning_rate: Any) -> Any:
    return optax.contrib.sam(optax.sgd(learning_rate), optax.sgd(0.01), opaque_mode=True)


CASES: dict[str, dict[str, Any]] = {
    "lbfgs": {"optimizer": optax.lbfgs, "memory_size": 5},
    "polyak": {"optimizer": optax.polyak_sgd, "max_learning_rate": 0.1},
    "plateau": {"optimizer": plateau, "learning_rate": 0.1},
    "multi steps": {"optimizer": multi_steps, "learning_rate": 0.1},
    "sam": {"optimizer": aware, "learning_rate": 0.1},
    "sophia": {"optimizer": optax.contrib.sophia, "learning_rate": 0.01},
}


@pytest.mark.parametrize("name", slow_but(CASES, "polyak"))
def test_a_client_gives_its_optimiser_what_it_asks_for(name: str) -> None:
    first, last = loss_of(afl.Client(**({"steps": 4, "batch_size": 8} | CASES[name])))
    assert last < first


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [plateau, multi_steps, decayed, optax.polyak_sgd])
def test_a_server_gives_its_optimiser_what_it_has(optimizer: Any) -> None:
    def with_rate(learning_rate: Any) -> Any:
        return optimizer(learning_rate)

    first, last = loss_of(afl.Client(learning_rate=0.1, steps=4, batch_size=8), afl.server.fedopt(with_rate, 0.5))
    assert last < first


@pytest.mark.slow
def test_polyaks_step_is_that_of_the_objective_with_its_regularisers() -> None:
    """Two full-batch steps of one client against the formula f / ‖∇f‖², f with weight decay."""
    of = quadratic(1)
    client = afl.Client(optax.polyak_sgd, max_learning_rate=1e9, weight_decay=0.5, steps=2, batch_size=None)
    clock = afl.clock.synchronous(cohort=1, durations=afl.clock.constant(1.0))
    sim = descent(data=of.data, client=client, server=afl.server.fedavg(), clock=clock)
    one, w = of.clients[0], np.asarray(START)
    for _ in range(2):
        value = one.loss(w) + 0.25 * (w**2).sum()
        gradient = one.gradient(w) + 0.5 * w
        w = w - value / (gradient**2).sum() * gradient
    np.testing.assert_allclose(sim.run(1, observe=observe_w).observe_w.values[1], w, rtol=1e-5)
