"""Numbers of numpy.random in traced code would be constants of the program: they are refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxafl as afl
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


DURATIONS = afl.clock.uniform(1, 2)
MODEL = afl.models.from_functions(lambda key, batch: {"w": jnp.zeros(batch.x.shape[1])}, noisy_loss)
PARTS: dict[str, dict[str, Any]] = {
    "Client|training": {"client": afl.Client(noisy_optimizer, learning_rate=0.1, steps=1, batch_size=2)},
    "the server noisy_server": {"server": noisy_server()},
    "the duration noisy_times": {"clock": afl.clock.free_running(concurrency=2, durations=noisy_times())},
    "the clock noisy_clock": {"clock": noisy_clock(concurrency=2, durations=DURATIONS)},
    "the model": {"model": MODEL},
}


@pytest.mark.parametrize("words", PARTS)
def test_numbers_of_numpy_are_refused_where_jax_traces(words: str) -> None:
    problem = quadratic()
    client = afl.Client(optax.sgd, learning_rate=0.1, steps=1, batch_size=2)
    clock = afl.clock.free_running(concurrency=2, durations=DURATIONS)
    simulation = afl.Simulation(problem.data, problem.model, client, afl.server.fedasync(), clock)
    with pytest.raises(ValueError, match=rf"({words}).* draws from numpy\.random .* jax\.random"):
        dataclasses.replace(simulation, **PARTS[words]).run(2)
