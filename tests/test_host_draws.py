"""Random numbers of NumPy or Python in traced code would be constants of the program: they are refused."""

from __future__ import annotations

import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxafl as afl
from jaxafl.server import Arrivals, Outcome, Server, mean_delta
from tests.problems import descent


def noisy_optimizer(learning_rate: float) -> optax.GradientTransformation:
    noise = optax.stateless(lambda updates, _: jax.tree.map(lambda u: u + np.random.normal(size=u.shape), updates))
    return optax.chain(noise, optax.scale(-learning_rate))


class noisy_server(Server):
    def update(self, params: Any, state: Any, arrivals: Arrivals) -> Outcome:
        step = mean_delta(arrivals)
        return Outcome(jax.tree.map(lambda x, d: x + d + random.random(), params, step), state)


class noisy_times(afl.clock.Duration):
    def draw(self, prepared: Any, run: Any) -> Any:
        return afl.clock.worked(jnp.float64(np.random.uniform(1, 2)))


def noisy_loss(params: Any, batch: Any, key: Any) -> Any:
    return jnp.square(batch.x @ params["w"] - np.random.normal())


class noisy_upload(afl.upload.VectorUpload):
    def of_vector(self, v: Any, sent: Any) -> Any:
        return v + np.random.normal(size=v.shape)


class noisy_attack(afl.attack.Attack):
    def forge(self, delta: Any, sent: Any) -> Any:
        return delta + np.random.normal(size=delta.shape)


DURATIONS = afl.clock.uniform(1, 2)
MODEL = afl.models.from_functions(lambda key, batch: {"w": jnp.zeros(batch.x.shape[1])}, noisy_loss)
PARTS: dict[str, dict[str, Any]] = {
    "optimiser": {"client": afl.Client(noisy_optimizer, learning_rate=0.1, steps=1, batch_size=2)},
    "server": {"server": noisy_server()},
    "duration": {"clock": afl.clock.free_running(concurrency=2, durations=noisy_times())},
    "model": {"model": MODEL},
    "upload": {"client": afl.Client(learning_rate=0.1, steps=1, batch_size=2, upload=noisy_upload())},
    "attack": {"attack": noisy_attack(clients=[0])},
}


@pytest.mark.parametrize("part", PARTS)
def test_numbers_of_the_host_are_refused_where_jax_traces(part: str) -> None:
    clock = afl.clock.free_running(concurrency=2, durations=DURATIONS)
    with pytest.raises(ValueError, match=r"(numpy\.random|random)"):
        descent(**{"server": afl.server.fedasync(), "clock": clock} | PARTS[part]).run(2)
