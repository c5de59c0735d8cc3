"""Optimisers that ask for more than a gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import optax
import pytest

import jaxafl as afl
from tests.problems import START, observe_w, quadratic

pytestmark = pytest.mark.filterwarnings("ignore")


def loss_of(client: afl.Client, server: Any = None, steps: int = 3) -> tuple[float, float]:
    sim = afl.Simulation(
        afl.data.synthetic(1.0, 1.0, clients=4, max_size=40),
        afl.models.logistic(10),
        client,
        server or afl.server.fedavg(),
        afl.clock.synchronous(cohort=4, durations=afl.clock.constant(1.0)),
    )
    loss = sim.run(steps, eval_every=steps).loss.values
    return loss[0], loss[-1]


def multi_steps(learning_rate: Any) -> Any:
    return optax.MultiSteps(optax.sgd(learning_rate), 2)


def plateau(learning_rate: Any) -> Any:
    return optax.chain(optax.sgd(learning_rate), optax.contrib.reduce_on_plateau())


def decayed(learning_rate: Any) -> Any:
    return optax.chain(optax.add_decayed_weights(0.1), optax.sgd(learning_rate))


def injected(learning_rate: Any) -> Any:
    return optax.inject_hyperparams(optax.sgd)(learning_rate=learning_rate)


def finite(learning_rate: Any) -> Any:
    return optax.apply_if_finite(optax.sgd(learning_rate), 3)


def aware(learning_rate: Any) -> Any:
    return optax.contrib.sam(optax.sgd(learning_rate), optax.sgd(0.01), opaque_mode=True)


def slow_and_fast(learning_rate: Any) -> Any:
    return optax.lookahead(optax.sgd(learning_rate), 5, 0.5)


CASES: dict[str, dict[str, Any]] = {
    "lbfgs": {"optimizer": optax.lbfgs, "memory_size": 5},
    "lbfgs, full batches": {"optimizer": optax.lbfgs, "batch_size": None},
    "polyak": {"optimizer": optax.polyak_sgd, "max_learning_rate": 0.1},
    "plateau": {"optimizer": plateau, "learning_rate": 0.1},
    "MultiSteps": {"optimizer": optax.MultiSteps, "opt": optax.sgd(0.1), "every_k_schedule": 2},
    "multi steps": {"optimizer": multi_steps, "learning_rate": 0.1},
    "schedule free": {"optimizer": optax.contrib.schedule_free_sgd, "learning_rate": 0.1},
    "decay": {"optimizer": decayed, "learning_rate": 0.1},
    "inject": {"optimizer": injected, "learning_rate": 0.1},
    "finite": {"optimizer": finite, "learning_rate": 0.1},
    "sam": {"optimizer": aware, "learning_rate": 0.1},
    "sophia": {"optimizer": optax.contrib.sophia, "learning_rate": 0.01},
}
QUICK = ("polyak",)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_a_client_gives_its_optimiser_what_it_asks_for(name: str) -> None:
    first, last = loss_of(afl.Client(**({"steps": 4, "batch_size": 8} | CASES[name])))
    assert last < first


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [plateau, multi_steps, decayed, injected, finite, optax.polyak_sgd])
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
    found = afl.Simulation(of.data, of.model, client, afl.server.fedavg(), clock).run(1, observe=observe_w).observe_w
    a, c, w = of.clients[0].a, of.clients[0].c, np.asarray(START)
    for _ in range(2):
        value = 0.5 * (a * (w - c) ** 2).sum(axis=1).mean() + 0.25 * (w**2).sum()
        gradient = (a * (w - c)).mean(axis=0) + 0.5 * w
        w = w - value / (gradient**2).sum() * gradient
    np.testing.assert_allclose(found.values[1], w, rtol=1e-5)


@pytest.mark.parametrize("server", [False, True])
def test_lookahead_is_refused_by_what_it_needs(server: bool) -> None:
    plain = afl.Client(learning_rate=0.1, steps=2, batch_size=8)
    ways = (
        (plain, afl.server.fedopt(slow_and_fast, 0.1))
        if server
        else (
            afl.Client(
                optax.lookahead, fast_optimizer=optax.sgd(0.1), sync_period=5, slow_step_size=0.5, steps=2, batch_size=8
            ),
            None,
        )
    )
    with pytest.raises((AttributeError, ValueError, TypeError)):
        loss_of(*ways)


@pytest.mark.slow
def test_a_servers_line_search_and_private_gradients_are_refused_by_name() -> None:
    plain = afl.Client(learning_rate=0.1, steps=2, batch_size=8)
    with pytest.raises(TypeError, match="value"):
        loss_of(plain, afl.server.fedopt(optax.lbfgs, 1.0))
    private = {"learning_rate": 0.1, "l2_norm_clip": 1.0, "noise_multiplier": 1.0, "seed": 0}
    with pytest.raises(ValueError, match="batch dimension"):
        loss_of(plain, afl.server.fedopt(optax.contrib.dpsgd, **private))


def test_an_invalid_transformation_raises() -> None:
    with pytest.raises(AttributeError, match="init"):
        loss_of(afl.Client(lambda learning_rate: learning_rate, learning_rate=0.1, steps=2))
