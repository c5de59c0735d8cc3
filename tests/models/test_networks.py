from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxafl import models
from jaxafl.models import Batch
from tests.variants import slow_but


def example(shape, size=1):
    return Batch(jnp.zeros((size, *shape)), jnp.zeros(size, jnp.int32), jnp.ones(size, bool))


@pytest.mark.parametrize(
    ("model", "shape", "parameters"),
    [
        (models.logistic(10), (60,), 610),
        (models.logistic(10), (28, 28, 1), 7_850),
        (models.mlp(10), (28, 28, 1), 199_210),
        (models.mlp(3, hidden=()), (4,), 15),
        (models.mlp(3, hidden=[7]), (4,), 59),
        (models.cnn_small(), (28, 28, 1), 21_840),
        (models.cnn_over(), (28, 28, 1), 663_160),
        (models.cnn_afl(), (28, 28, 1), 19_146),
        (models.cnn_defedavg(), (28, 28, 1), 582_026),
        (models.cnn_defedavg(), (32, 32, 3), 878_538),
        (models.cnn_asyncfeded(62), (28, 28, 1), 590_270),
        (models.resnet20(norm="group"), (32, 32, 3), 269_722),
        pytest.param(models.resnet18(norm="group"), (32, 32, 3), 11_173_962, marks=pytest.mark.slow),
        (models.cnn_asyncfeded(62, features=(8, 16), kernel=5), (28, 28, 1), 208 + 3_216 + 100 * 16 * 62 + 62),
    ],
)
def test_parameter_counts(model, shape, parameters):
    params, state = jax.eval_shape(model.init, jax.random.key(0), example(shape))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == parameters
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.float32)}
    assert state == {}


@pytest.mark.parametrize(
    ("model", "parameters", "channels"),
    [
        (models.resnet20(), 269_722, 7 * 16 + 6 * 32 + 6 * 64),
        *(
            pytest.param(model, count, 5 * (64 + 128 + 256 + 512), marks=pytest.mark.slow)
            for model, count in ((models.resnet18(), 11_173_962), (models.resnet18(100), 11_220_132))
        ),
    ],
)
def test_running_statistics_are_state_and_not_counted(model, parameters, channels):
    params, state = jax.eval_shape(model.init, jax.random.key(0), example((32, 32, 3)))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == parameters
    assert list(state) == ["batch_stats"]
    assert sum(leaf.size for leaf in jax.tree.leaves(state)) == 2 * channels
    assert {leaf.dtype for leaf in jax.tree.leaves((params, state))} == {jnp.dtype(jnp.float32)}


SMALLEST = {"cnn_small": 16, "cnn_over": 16, "cnn_defedavg": 16, "cnn_afl": 3, "resnet20": 4, "resnet18": 8}


@pytest.mark.parametrize("name", slow_but(SMALLEST, *(SMALLEST.keys() - {"resnet18"})))
def test_smallest_image(name):
    side = SMALLEST[name]
    model = getattr(models, name)()
    jax.eval_shape(model.init, jax.random.key(0), example((side, side, 1)))
    for shape in ((side - 1, 28, 1), (28, 28), (784,)):
        with pytest.raises(ValueError, match=rf"needs images .* {side}x{side} .* {re.escape(str(list(shape)))}"):
            model.init(jax.random.key(0), example(shape))


def test_smallest_image_of_cnn_asyncfeded():
    model = models.cnn_asyncfeded(10, kernel=3)
    jax.eval_shape(model.init, jax.random.key(0), example((6, 6, 1)))
    with pytest.raises(ValueError, match=r"6x6 .* \[28, 28\]"):
        model.init(jax.random.key(0), example((28, 28)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: models.mlp(), "mlp: missing a required argument: 'num_classes'; its options are num_classes, hidden"),
        (lambda: models.logistic(0), "num_classes .* got 0"),
        (lambda: models.mlp(10, hidden=(20, -1)), "hidden .* got -1"),
        (lambda: models.mlp(10, hidden=5), r"hidden must be a list of widths, for example \(200, 200\), got 5"),
        (lambda: models.cnn_small(2.5), "num_classes .* got 2.5"),
        (lambda: models.cnn_defedavg("10"), "num_classes .* got '10'"),
        (lambda: models.cnn_asyncfeded(10, features=(32,)), "two numbers"),
        (lambda: models.cnn_asyncfeded(10, features=5), r"features must be two numbers, for example .* got 5"),
        (lambda: models.cnn_asyncfeded(10, features=(32, 0)), "features .* got 0"),
        (lambda: models.cnn_asyncfeded(10, kernel=0), "kernel .* got 0"),
        (lambda: models.cnn_over(0), "num_classes .* got 0"),
        (lambda: models.cnn_afl(True), "num_classes .* got True"),
        (lambda: models.resnet20(-1), "num_classes .* got -1"),
        (lambda: models.resnet20(width=0), "width .* got 0"),
        (lambda: models.resnet18(norm="layer"), "resnet18: norm must be one of 'batch', 'group', got 'layer'"),
        (lambda: models.resnet18(norm="group", groups=0), "groups .* got 0"),
        (lambda: models.resnet20(norm="group", groups=3), "groups must divide the 16 channels .* got 3"),
    ],
)
def test_wrong_options(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_description_names_the_options():
    description = models.cnn_asyncfeded(62, features=(8, 16)).description
    options = {"num_classes": 62, "features": [8, 16], "kernel": 3}
    assert description == {"network": "CNNAsyncFedED", **options}


def test_xavier_uniform_weights_of_cnn_afl():
    params, _ = models.cnn_afl().init(jax.random.key(0), example((28, 28, 1)))
    for name, fans in (("Conv_0", 9 + 288), ("Conv_1", 288 + 288), ("Conv_2", 288 + 288), ("Dense_0", 32 + 10)):
        bound = np.sqrt(6 / fans)
        largest = np.abs(params[name]["kernel"]).max()
        assert 0.9 * bound < largest <= bound
        np.testing.assert_array_equal(params[name]["bias"], 0)
