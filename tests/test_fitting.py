"""Models that do not fit the data, or that would learn from padding, are refused before anything is compiled."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxafl as afl
from tests.problems import Normalised

CLOCK = afl.clock.free_running(concurrency=2, buffer=2, durations=afl.clock.uniform(1, 2))
STEPS = {"steps": 2, "batch_size": 4}
EPOCHS = {"epochs": 1, "batch_size": 4}


def arrays(x: Any, **options: Any) -> afl.data.FederatedData:
    labels = np.arange(len(x)) % 3
    given = {"x_test": x[:3], "y_test": labels[:3], "num_classes": 3} | options
    return afl.data.from_arrays(x, labels, np.arange(len(x)) % 2, **given)


IMAGES = np.random.default_rng(0).normal(size=(18, 20, 20, 1)).astype(np.float32)


def simulation(model: afl.models.Model, data: Any = None, training: Any = STEPS) -> afl.Simulation:
    client = afl.Client(optax.sgd, learning_rate=0.1, **training)
    return afl.Simulation(arrays(IMAGES) if data is None else data, model, client, afl.server.fedbuff(), CLOCK)


class Untold(nn.Module):
    """Batch normalisation that is not told of padding."""

    @nn.compact
    def __call__(self, x: Any, train: bool) -> Any:
        return nn.Dense(3)(nn.BatchNorm(use_running_average=not train)(x.reshape(len(x), -1)))


class NormalisedNNX(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm, self.out = nnx.BatchNorm(400, rngs=rngs), nnx.Linear(400, 3, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.out(self.norm(x.reshape(len(x), -1)))


@pytest.mark.parametrize(
    "model", [afl.models.from_linen(Untold()), pytest.param(afl.models.from_nnx(NormalisedNNX), marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "training",
    [
        EPOCHS,
        pytest.param({"steps": 1, "batch_size": None}, marks=pytest.mark.slow),
        pytest.param(STEPS | {"micro_batch": 3}, marks=pytest.mark.slow),
    ],
)
def test_batch_statistics_of_padding_are_refused(model: Any, training: Any) -> None:
    with pytest.raises(ValueError, match=r"takes no mask.*count the padding.*BatchNorm"):
        simulation(model, training=training).check()
    simulation(model).check()  # mini-batches without padding
    simulation(model, training={"epochs": 1, "batch_size": 3}).check()  # both clients hold 9 samples
    simulation(afl.models.from_linen(Normalised(3)), training=training).check()
    simulation(afl.models.mlp(3), training=training).check()


def test_samples_that_are_not_for_the_model_are_described() -> None:
    tokens = {"input_ids": np.ones((6, 5), np.int32), "attention_mask": np.ones((6, 5), np.int32)}
    dataset = afl.data.Dataset("text", tokens, np.arange(6) % 3, tokens, np.arange(6) % 3, 3, afl.data.as_is())
    with pytest.raises(AttributeError) as caught:
        simulation(afl.models.mlp(3), dataset.partition(afl.data.iid(2))).check()
    assert any("`a local step` of the model mlp" in note for note in caught.value.__notes__)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", (np.int64, np.float64))
def test_samples_of_64_bits_are_seen_as_the_device_holds_them(dtype: Any) -> None:
    x, labels = (np.arange(216) % 5 % 3).reshape(18, 12).astype(dtype), np.arange(18) % 3
    dataset = afl.data.Dataset("text", x, labels, x, labels, 3, afl.data.as_is())
    model = afl.models.mlp(3) if dtype is np.float64 else afl.models.char_lstm(num_classes=3, hidden=4, layers=1)
    for data in (arrays(x), dataset.partition(afl.data.iid(2))):
        result = simulation(model, data).run(1)
        assert np.isfinite(result.loss).all()


@pytest.mark.parametrize("test", [np.zeros((3, 20, 16, 1), np.float32), np.zeros((3, 20, 20, 1), np.uint8)])
def test_training_and_test_samples_are_alike(test: Any) -> None:
    with pytest.raises(ValueError, match=r"x is float32\[20, 20, 1\] and x_test"):
        arrays(IMAGES, x_test=test, y_test=np.zeros(3, int))


@pytest.mark.slow
def test_fewer_outputs_than_labels_are_found_by_the_initial_loss() -> None:
    too_few = afl.models.from_functions(
        lambda key, batch: jnp.zeros((400, 2)),
        lambda w, batch, key: optax.softmax_cross_entropy_with_integer_labels(batch.x.reshape(-1, 400) @ w, batch.y),
    )
    with pytest.raises(ValueError, match=r"loss of the initial model .* not finite \(nan\): a label is outside"):
        simulation(too_few).run(2)


@pytest.mark.slow
def test_an_accuracy_in_percent_is_refused() -> None:
    def loss(w: Any, batch: Any, key: Any) -> afl.models.Outputs:
        found = afl.models.softmax_cross_entropy(batch.x.reshape(-1, 400) @ w, batch)
        return afl.models.Outputs(found.loss, {"accuracy": 100 * found.metrics["accuracy"]})

    model = afl.models.from_functions(lambda key, batch: jnp.zeros((400, 3)), loss)
    with pytest.raises(ValueError, match=r"accuracy is \d.*, and an accuracy is a share of samples, from 0 to 1"):
        simulation(model).run(2)
