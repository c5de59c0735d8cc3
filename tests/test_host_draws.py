"""Random numbers of NumPy or Python in traced code would be constants of the program: they are refused."""

from __future__ import annotations

import dataclasses
import random
from random import gauss
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxafl as afl
from jaxafl.engine.outcome import outcome_of
from jaxafl.server import Arrivals, Outcome, Server, mean_delta
from tests.problems import quadratic


def noisy_optimizer(learning_rate: float) -> optax.GradientTransformation:
    noise = optax.stateless(lambda updates, _: jax.tree.map(lambda u: u + np.random.normal(size=u.shape), updates))
    return optax.chain(noise, optax.scale(-learning_rate))


class noisy_server(Server):
    """x ← x + D + noise."""

    def update(self, params: Any, state: Any, arrivals: Arrivals) -> Outcome:
        step = mean_delta(arrivals)
        return Outcome(jax.tree.map(lambda x, d: x + d + np.random.normal(size=x.shape), params, step), state)


class noisy_times(afl.clock.Duration):
    """NumPy's uniform times."""

    def draw(self, prepared: Any, run: Any) -> Any:
        return afl.clock.worked(jnp.float64(np.random.uniform(1, 2)))


class noisy_clock(afl.clock.free_running):
    """Waits for some time at each step."""

    def next(self, state: Any, workload: Any) -> Any:
        state, step = super().next(state, workload)
        return state, step._replace(time=step.time + np.random.uniform())


def noisy_loss(params: Any, batch: Any, key: Any) -> Any:
    return jnp.square(batch.x @ params["w"] - np.random.normal())


class noisy_upload(afl.upload.VectorUpload):
    """Adds NumPy's numbers."""

    def of_vector(self, v: Any, sent: Any) -> Any:
        return v + np.random.normal(size=v.shape)


class noisy_attack(afl.attack.Attack):
    """Sends NumPy's numbers."""

    def forge(self, delta: Any, sent: Any) -> Any:
        return delta + np.random.normal(size=delta.shape)


class noisy_mean(afl.aggregate.Center):
    """Adds NumPy's numbers."""

    def center(self, points: Any, times: Any, weights: Any, state: Any) -> Any:
        return points.mean(axis=0) + np.random.normal(size=points.shape[1]), state, {}


GENERATOR = np.random.default_rng(0)


def from_module() -> float:
    return float(GENERATOR.normal())


def another_by_hand(own: Any = np.random.RandomState(0)) -> float:  # noqa: B008
    return float(own.normal())


class drawing(Server):
    """x ← x + D + a number of a function.

    Args:
        draw: the function.
    """

    draw: Any = afl.options.static()

    def update(self, params: Any, state: Any, arrivals: Arrivals) -> Outcome:
        step = mean_delta(arrivals)
        return Outcome(jax.tree.map(lambda x, d: x + d + self.draw(), params, step), state)


DURATIONS = afl.clock.uniform(1, 2)
MODEL = afl.models.from_functions(lambda key, batch: {"w": jnp.zeros(batch.x.shape[1])}, noisy_loss)
PARTS: dict[str, dict[str, Any]] = {
    "Client|training": {"client": afl.Client(noisy_optimizer, learning_rate=0.1, steps=1, batch_size=2)},
    "the server noisy_server": {"server": noisy_server()},
    "the duration noisy_times": {"clock": afl.clock.free_running(concurrency=2, durations=noisy_times())},
    "the clock noisy_clock": {"clock": noisy_clock(concurrency=2, durations=DURATIONS)},
    "the model": {"model": MODEL},
    "the upload noisy_upload": {"client": afl.Client(learning_rate=0.1, steps=1, batch_size=2, upload=noisy_upload())},
    "the attack noisy_attack": {"attack": noisy_attack(clients=[0])},
    "the aggregate noisy_mean": {
        "server": afl.server.fedbuff(aggregate=noisy_mean()),
        "clock": afl.clock.free_running(concurrency=3, buffer=2, durations=DURATIONS),
    },
}


@pytest.mark.parametrize("words", PARTS)
def test_numbers_of_numpy_are_refused_where_jax_traces(words: str) -> None:
    problem = quadratic()
    client = afl.Client(optax.sgd, learning_rate=0.1, steps=1, batch_size=2)
    clock = afl.clock.free_running(concurrency=2, durations=DURATIONS)
    simulation = afl.Simulation(problem.data, problem.model, client, afl.server.fedasync(), clock)
    with pytest.raises(ValueError, match=rf"({words}).* draws from numpy\.random .* jax\.random"):
        dataclasses.replace(simulation, **PARTS[words]).run(2)


def closed_over() -> Any:
    own = random.Random(0)
    return lambda: own.random()


@pytest.mark.parametrize(
    ("draw", "name"),
    [
        (from_module, r"a random number generator \(Generator\)"),
        (another_by_hand, r"a random number generator \(RandomState\)"),
        (closed_over(), r"a random number generator \(Random\)"),
        (lambda: random.random(), "random"),
        (lambda: gauss(0.0, 1.0), r"a random number generator \(Random\)"),
    ],
)
def test_other_generators_that_traced_code_names_are_seen(draw: Any, name: str) -> None:
    arrays = {"w": jnp.zeros(2)}
    one, none = jnp.ones(1), jnp.zeros(1, int)
    delta = {"w": jnp.ones((1, 2))}
    arrivals = Arrivals(one > 0, none, none, none, delta, None, none, one, none, one, none[0], one[0])
    with pytest.raises(ValueError, match=f"the server drawing draws from {name} while"):
        outcome_of(drawing(draw), arrays, (), arrivals)
    random.random()  # of other code, between two calls
    assert outcome_of(drawing(lambda: 1.0), arrays, (), arrivals).params["w"].tolist() == [1.0, 1.0]


def test_what_is_observed_is_not_drawn_on_the_host() -> None:
    problem = quadratic()
    client, clock = afl.Client(learning_rate=0.1, steps=1), afl.clock.free_running(concurrency=2, durations=DURATIONS)
    simulation = afl.Simulation(problem.data, problem.model, client, afl.server.fedasync(), clock)
    with pytest.raises(ValueError, match=r"observe draws from numpy\.random"):
        simulation.run(2, observe=lambda params: {"noisy": params["w"][0] + np.random.normal()})
