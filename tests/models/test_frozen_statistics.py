"""Batch statistics of frozen layers belong to them: they neither move nor are sent, and training normalises by them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from flax import linen, nnx

import jaxafl as afl
from tests.variants import slow_but


class Encoder(linen.Module):
    @linen.compact
    def __call__(self, x: Any, train: bool) -> Any:
        x = linen.Dense(4)(x.reshape(len(x), -1))
        return linen.BatchNorm(use_running_average=not train)(x)


class Net(linen.Module):
    @linen.compact
    def __call__(self, x: Any, train: bool, mask: Any = None) -> Any:
        x = Encoder(name="encoder")(x, train)
        x = linen.BatchNorm(use_running_average=not train, use_scale=False, use_bias=False, name="outer")(x, mask=None)
        return linen.Dense(2, name="head")(x)


class NNXNet(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.encoder = nnx.Sequential(nnx.Linear(3, 4, rngs=rngs), nnx.BatchNorm(4, rngs=rngs))
        self.outer = nnx.BatchNorm(4, use_bias=False, use_scale=False, rngs=rngs)
        self.head = nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.head(self.outer(self.encoder(x)))


ADAPTERS: dict[str, Any] = {
    "linen": lambda frozen=None: afl.models.from_linen(Net(), frozen=frozen),
    "nnx": lambda frozen=None: afl.models.from_nnx(NNXNet, frozen=frozen),
}


def encoder(path: str) -> bool:
    return path.startswith("encoder/")


def simulation(model: Any) -> Any:
    rng = np.random.default_rng(0)
    x, y, clients = rng.normal(3, 2, (32, 3)).astype(np.float32), rng.integers(0, 2, 32), np.repeat(np.arange(4), 8)
    data = afl.data.from_arrays(x, y, clients, test_fraction=0.25)
    client = afl.Client(steps=2, batch_size=4, learning_rate=0.1)
    return afl.Simulation(data, model, client, afl.server.fedavg(), afl.clock.synchronous())


@pytest.mark.slow
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_statistics_of_frozen_layers_neither_move_nor_are_sent(adapter: str) -> None:
    sim = simulation(ADAPTERS[adapter](encoder))
    trained = sim.train(3, eval_every=3)
    moved = jax.tree.leaves(trained.model_state)
    assert [leaf.shape for leaf in moved] == [(4,), (4,)]  # mean and variance of the outer layer
    assert np.abs(moved[0]).max() > 0.01
    sent = 4 * (4 * 2 + 2 + 8)  # the head, and statistics of 4 features
    assert set(sim.run(1, eval_every=1).bytes_up.values) == {4 * sent}


@pytest.mark.parametrize("adapter", slow_but(ADAPTERS, "linen"))
def test_training_of_a_frozen_layer_normalises_by_its_statistics(adapter: str) -> None:
    sim = simulation(ADAPTERS[adapter](encoder))
    batch = afl.models.Batch(sim.data.x_test[:4], sim.data.y_test[:4], np.ones(4, bool))
    key = jax.random.key(0)
    params, state = sim.model.init(key, batch)
    held = sim.model.held(batch)
    new = sim.model.apply(params, state, batch, key, True, held)[1]
    assert jax.tree.structure(new) == jax.tree.structure(state)
    whitened = (np.asarray(batch.x).reshape(4, -1) @ _kernel(held)) / np.sqrt(1 + 1e-5)
    leaf = jax.tree.leaves(new)[0]
    np.testing.assert_allclose(leaf, 0.01 * whitened.mean(0), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_frozen_statistics_are_those_of_the_model_that_it_starts_from(adapter: str) -> None:
    whole = simulation(ADAPTERS[adapter]()).train(3, eval_every=3)
    model = afl.models.initialised(ADAPTERS[adapter](encoder), whole.params, whole.model_state)
    sim = simulation(model)
    batch = afl.models.Batch(sim.data.x_test[:4], sim.data.y_test[:4], np.ones(4, bool))
    kept = jax.tree.leaves(model.held(batch).state)
    every = [np.asarray(leaf) for leaf in jax.tree.leaves(whole.model_state)]
    assert all(any(np.array_equal(leaf, other) for other in every) for leaf in kept)
    before = simulation(afl.models.initialised(ADAPTERS[adapter](), whole.params, whole.model_state)).run(1)
    np.testing.assert_allclose(sim.run(1).loss[0], before.loss[0], rtol=1e-6)


def _kernel(held: Any) -> np.ndarray:
    return next(np.asarray(leaf) for leaf in jax.tree.leaves(held.params) if leaf.ndim == 2)
