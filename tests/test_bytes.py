"""What is sent: layers that the model freezes are not."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax.traverse_util import flatten_dict

import jaxafl as afl
from tests.problems import classifier


class Net(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(10, name="head")(nn.relu(nn.Dense(16, name="encoder")(x)))


def simulation(model: Any) -> afl.Simulation:
    return classifier(
        model=model,
        client=afl.Client(learning_rate=0.05, steps=3, batch_size=4),
        server=afl.server.fedopt(optax.adamw, 0.1, weight_decay=0.1),  # would change frozen parameters
        clock=afl.clock.free_running(concurrency=3, buffer=2, durations=afl.clock.uniform(1, 5)),
    )


@pytest.mark.slow
def test_models_of_functions_freeze_by_path() -> None:
    def init(key: Any, batch: Any) -> Any:
        w = 0.1 * jax.random.normal(key, (60, 16))
        return {"encoder": (w, np.zeros(16, np.float32)), "head": [np.zeros((16, 10), np.float32), np.zeros(10)]}

    def loss(params: Any, batch: Any, key: Any) -> Any:
        (w, b), (v, c) = params["encoder"], params["head"]
        return afl.models.softmax_cross_entropy(jax.nn.relu(batch.x @ w + b) @ v + c, batch)

    model = afl.models.from_functions(init, loss, frozen=lambda path: path.startswith("encoder/"))
    trained = simulation(model).train(4, eval_every=4)
    assert sum(leaf.size for leaf in jax.tree.leaves(trained.params)) == 16 * 10 + 10


def test_frozen_parameters_are_those_that_are_given() -> None:
    whole = simulation(afl.models.from_linen(Net())).train(2, eval_every=2)
    batch = afl.models.Batch(np.ones((1, 60), np.float32), np.zeros(1, np.int32), np.ones(1, bool))
    values = flatten_dict({"encoder": whole.params["encoder"]}, sep="/")
    given = afl.models.from_linen(Net(), frozen=values.get)
    by_path = afl.models.from_linen(Net(), frozen=lambda path: path.startswith("encoder/"))
    loaded = afl.models.initialised(by_path, whole.params)
    for model in (given, loaded):
        held = model.held(batch)["encoder"]
        jax.tree.map(np.testing.assert_array_equal, held, whole.params["encoder"])
    params, _ = loaded.init(jax.random.key(3), batch)
    jax.tree.map(np.testing.assert_array_equal, params["head"], whole.params["head"])
