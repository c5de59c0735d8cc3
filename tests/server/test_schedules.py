"""Numbers of servers that follow Optax schedules of server steps, against the slow references with a rate per step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxafl as afl
from jaxafl import server
from jaxafl.clock import free_running, uniform
from jaxafl.options import Number, number
from jaxafl.server import Outcome, Server, mean_delta
from tests.oracle import server as oracle
from tests.problems import assert_same, descent, quadratic, record, reference, simulate
from tests.server.test_conformance import GRADIENT, ORACLE_GRADIENT, SAMPLES, ticks
from tests.server.test_conformance import STEPS as TICKS
from tests.variants import slow_but

STEPS = 10
DECAY = optax.exponential_decay(0.8, 1, 0.9)  # 0.8 · 0.9^t, in single precision


def has_rate(constructor: Any) -> bool:
    return "learning_rate" in [field.name for field in dataclasses.fields(constructor)]


def decay(step: Any) -> Any:
    """0.8 · 0.9^t."""
    return 0.8 * 0.9**step


class PerStep:
    """A reference whose rate is 0.8 · 0.9^t at its t-th step."""

    def __init__(self, reference: Any, name: str = "eta") -> None:
        self.reference, self.name, self.rates = reference, name, list[float]()

    def step(self, x: np.ndarray, updates: Any) -> np.ndarray:
        self.rates.append(0.8 * 0.9 ** len(self.rates))
        setattr(self.reference, self.name, self.rates[-1])
        return self.reference.step(x, updates)

    @property
    def info(self) -> Any:
        return self.reference.info


FREE: dict[str, tuple[Server, Callable[[], PerStep], int]] = {
    "fedbuff": (
        server.fedbuff(decay, momentum=0.4),
        lambda: PerStep(oracle.FedBuff(eta=1, discount=lambda tau: (1 + tau) ** -0.5, momentum=0.4)),
        2,
    ),
    "fedopt": (server.fedopt(optax.sgd, decay, "none"), lambda: PerStep(oracle.FedBuff(eta=1)), 2),
    "fadas": (
        server.fadas(decay, delay_scaling="eq77", tau_c=1),
        lambda: PerStep(oracle.FADAS(eta=1, delay_scaling="eq77", tau_c=1)),
        2,
    ),
    "fedasync": (server.fedasync(decay, "constant"), lambda: PerStep(oracle.FedAsync(alpha=1), "alpha"), 1),
}


@pytest.mark.parametrize("name", slow_but(FREE, "fedbuff"))
def test_a_server_follows_its_schedule(name: str) -> None:
    mine, theirs, buffer = FREE[name]
    recorded = record(3, 6, STEPS, "ties", concurrency=4, buffer=buffer)
    followed = theirs()
    expected = reference(quadratic(), followed, recorded.oracle(STEPS))
    with jax.enable_x64(True):
        result = simulate(quadratic(), mine, recorded.clock(), STEPS)
    assert_same(result, expected, 1e-9)
    rates = result.server_rate.values
    applied = [one.info.eta for one in expected.records] if name == "fadas" else followed.rates
    np.testing.assert_allclose(rates[:, 0] if rates.ndim == 2 else rates, applied, rtol=1e-12)


def test_empty_steps_count() -> None:
    clock, steps = ticks(0, "real")
    followed = PerStep(oracle.PSURDG(eta=1, num_samples=SAMPLES, dim=3))
    expected = reference(quadratic(), followed, steps, ORACLE_GRADIENT)
    with jax.enable_x64(True):
        result = simulate(quadratic(), server.psurdg(decay), clock, TICKS, GRADIENT)
    assert_same(result, expected, 1e-9)
    np.testing.assert_allclose(result.server_rate, followed.rates)


@pytest.mark.slow
def test_an_online_clock_advances_the_schedule() -> None:
    clock = free_running(concurrency=4, durations=uniform(1, 5))
    client = afl.Client(learning_rate=0.1, steps=3, batch_size=None)
    mine = server.asyncfeded(DECAY, eps=1.0)
    result = simulate(quadratic(), mine, clock, STEPS, client)
    np.testing.assert_allclose(result.server_rate * (result.gamma + 1), 0.8 * 0.9 ** np.arange(STEPS), rtol=1e-5)
    sim = descent(client=client, server=mine, clock=clock)
    ((_, records),) = sim.iterate(STEPS, every=STEPS)
    np.testing.assert_allclose(records["server_rate"], result.server_rate, rtol=1e-5)


@pytest.mark.slow
def test_a_sweep_has_schedules_and_numbers_on_one_axis() -> None:
    axis = [0.5, DECAY, optax.constant_schedule(0.5)]
    sim = descent(server=server.fedbuff(DECAY))
    swept = afl.sweep(sim, {"server.learning_rate": axis, "seed": [0, 1]}, 4, eval_every=4)
    assert swept["server.learning_rate"].values.tolist() == ["0.5", "schedule", "<lambda>"]
    np.testing.assert_array_equal(swept.loss[0], swept.loss[2])
    single = sim.run(4, eval_every=4, seed=1)
    np.testing.assert_array_equal(swept.isel({"server.learning_rate": 1}).loss[1], single.loss)
    np.testing.assert_allclose(single.server_rate, 0.8 * 0.9 ** np.arange(4), rtol=1e-6)


EVERY = [getattr(server, name) for name in server.__all__ if isinstance(getattr(server, name), type)]


@pytest.mark.parametrize("make", [one for one in EVERY if issubclass(one, Server) and has_rate(one)])
def test_every_server_with_a_rate_takes_a_schedule(make: Any) -> None:
    assert float(make(learning_rate=decay).at_step(3).learning_rate) == pytest.approx(0.8 * 0.9**3)
    assert make(learning_rate=0.5).at_step(3).learning_rate == 0.5


@pytest.mark.slow
def test_a_servers_own_numbers_may_be_schedules_too() -> None:
    class shrinking(Server):
        learning_rate: Number = number(default=1.0, least=0)
        shrink: Number = number(default=0.0, least=0)

        def update(self, params: Any, state: Any, arrivals: Any) -> Outcome:
            step = mean_delta(arrivals)
            new = jax.tree.map(lambda x, d: (1 - self.shrink) * x + self.learning_rate * d, params, step)
            return Outcome(new, state, {"shrink": jnp.asarray(self.shrink)})

    result = descent(server=shrinking(DECAY, shrink=lambda t: 0.01 * t)).run(3)
    np.testing.assert_allclose(result.shrink, [0, 0.01, 0.02], rtol=1e-6)
    np.testing.assert_allclose(result.server_rate, [0.8, 0.72, 0.648], rtol=1e-6)


@pytest.mark.parametrize(
    "mine",
    [
        server.fedbuff(lambda t: -0.1),
        server.fedbuff(lambda t: jnp.ones(3)),
        server.fedbuff(lambda t: 1.0 if t < 3 else 0.1),
        server.fedbuff(lambda: 1.0),
        server.fedbuff(lambda t: None),
        server.fedopt(optax.inject_hyperparams(optax.adam), DECAY),
        server.fedopt(optax.adam(0.1), DECAY),
    ],
)
def test_invalid_schedules_raise_before_anything_runs(mine: Server) -> None:
    with pytest.raises((ValueError, TypeError), match=rf"{mine.name}.*(learning_rate|optimiser)"):
        descent(server=mine).check()
