from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxafl as afl
from jaxafl import models
from jaxafl.device import equations
from jaxafl.engine.planned import planned
from jaxafl.engine.problem import Speed
from jaxafl.models import Batch
from jaxafl.models.resnet import ResNet
from tests.models.test_resnet import filled
from tests.variants import slow_but

KEY = jax.random.key(0)
FLOAT32 = {jnp.dtype(jnp.float32)}
NETWORKS = {
    "logistic": functools.partial(models.logistic, 10),
    "mlp": functools.partial(models.mlp, 10, hidden=(20,)),
    "cnn_small": models.cnn_small,
    "cnn_over": models.cnn_over,
    "cnn_afl": models.cnn_afl,
    "cnn_defedavg": models.cnn_defedavg,
    "cnn_asyncfeded": functools.partial(models.cnn_asyncfeded, 10, features=(4, 8)),
    "resnet20, batch": functools.partial(models.resnet20, width=2),
    "resnet18, batch": functools.partial(models.resnet18, width=2),
    "resnet20, group": functools.partial(models.resnet20, norm="group", width=2),
}
COMPARED = {
    **{name: NETWORKS[name] for name in ("logistic", "cnn_small", "cnn_afl", "cnn_asyncfeded")},
    "two stages": lambda: models.from_linen(ResNet(10, (4, 8), 1, "project", "batch", 2)),
}


def images(size=4):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(size, 16, 16, 1)).astype(np.float32)
    return Batch(jnp.asarray(x), jnp.asarray(rng.integers(0, 10, size), jnp.int32), jnp.ones(size, bool))


def losses_and_gradient(model, params, state, batch):
    def mean_loss(params):
        outputs, new_state = model.bound(None)(params, state, batch, KEY, True)
        return outputs.loss.mean(), (outputs.loss, new_state)

    gradient, (losses, new_state) = jax.grad(mean_loss, has_aux=True)(params)
    return losses, new_state, gradient


@pytest.mark.parametrize("name", slow_but(NETWORKS, *(name for name in NETWORKS if "resnet" not in name)))
def test_parameters_gradients_losses_and_state_are_float32(name):
    model, batch = NETWORKS[name]().at("bfloat16"), images()
    params, state = jax.eval_shape(model.init, KEY, batch)
    made = jax.eval_shape(lambda p, s: losses_and_gradient(model, p, s, batch), params, state)
    assert {leaf.dtype for leaf in jax.tree.leaves((params, state, made))} == FLOAT32
    exact = jax.eval_shape(NETWORKS[name]().init, KEY, batch)
    assert jax.tree.map(lambda leaf: leaf.shape, (params, state)) == jax.tree.map(lambda leaf: leaf.shape, exact)
    assert model.description["precision"] == "bfloat16"


@pytest.mark.parametrize("name", slow_but(NETWORKS, *(name for name in NETWORKS if "resnet" not in name)))
def test_images_pass_through_the_network_in_bfloat16(name):
    """Every product is one of bfloat16: no float32 is left over between the layers."""
    model, batch = NETWORKS[name]().at("bfloat16"), images()
    params, state = jax.eval_shape(model.init, KEY, batch)
    jaxpr = jax.make_jaxpr(lambda p, s: model.bound(None)(p, s, batch, KEY, True))(params, state)
    products = [equation for equation in equations(jaxpr.jaxpr) if equation.primitive.name == "dot_general"]
    assert len(products) >= sum(leaf.ndim > 1 for leaf in jax.tree.leaves(params))
    assert {atom.aval.dtype for equation in products for atom in equation.invars} == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPARED)
def test_losses_and_gradients_are_near_those_of_float32(name):
    batch = images()
    low, exact = COMPARED[name]().at("bfloat16"), COMPARED[name]()
    params, state = filled(jax.eval_shape(exact.init, KEY, batch))

    def both(params):
        return losses_and_gradient(low, params, state, batch), losses_and_gradient(exact, params, state, batch)

    (mine, my_state, my_gradient), (expected, expected_state, expected_gradient) = jax.jit(both)(params)
    assert 0 < np.abs(mine - expected).max() < 0.1 * np.abs(expected).max()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0.05, atol=0.05), my_state, expected_state)
    norm = optax.tree.norm(expected_gradient)
    assert optax.tree.norm(jax.tree.map(jnp.subtract, my_gradient, expected_gradient)) < 0.2 * norm


@pytest.mark.parametrize("precision", ["float16", "bf16", None])
def test_other_precisions_are_refused(precision):
    with pytest.raises(ValueError, match="precision must be one of 'float32', 'tf32', 'bfloat16'"):
        simulation(precision)


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="GPUs have TF32")
def test_tf32_is_of_gpus():
    with pytest.raises(ValueError, match='precision="tf32" is of NVIDIA GPUs, JAX computes on cpu'):
        simulation("tf32")


def test_a_model_in_a_precision_is_one_object():
    """Of which a compiled program is kept."""
    model = models.logistic(4)
    assert model.at("float32") is model
    assert model.at("bfloat16") is model.at("bfloat16") is model.at("bfloat16").at("bfloat16")
    with pytest.raises(ValueError, match="logistic was rounded to bfloat16; take the one that it was made of"):
        model.at("bfloat16").at("float32")


def test_large_dense_kernels_add_up_in_float32():
    """The gradient of a kernel from several samples is that of a product, not a sum in bfloat16."""
    x, kernel = jnp.full((16, 600), 1.0, jnp.bfloat16), jnp.zeros((600, 500), jnp.bfloat16)
    weights = jnp.linspace(1.0, 1.1, 16, dtype=jnp.bfloat16)[:, None]
    of_kernel = jax.grad(lambda kernel: jnp.sum(weights * models.Dense(500, use_bias=False).apply(
        {"params": {"kernel": kernel}}, x)))(kernel)  # fmt: skip
    assert of_kernel[0, 0] == jnp.sum(weights.astype(jnp.float32)).astype(jnp.bfloat16)


def simulation(precision):
    """Four classes told apart by which quarter of the image is bright."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 240)
    x = 0.5 * rng.normal(size=(240, 2, 8, 2, 8, 1)).astype(np.float32)
    x[np.arange(240), y // 2, :, y % 2] += 1
    x = x.reshape(240, 16, 16, 1)
    return afl.Simulation(
        data=afl.data.from_arrays(x[40:], y[40:], np.arange(200) % 5, x_test=x[:40], y_test=y[:40], num_classes=4),
        model=models.cnn_small(4),
        client=afl.Client(optax.sgd, learning_rate=0.1, steps=4, batch_size=10),
        server=afl.server.fadas(learning_rate=0.003),
        clock=afl.clock.free_running(concurrency=4, buffer=2, durations=afl.clock.uniform(1, 2)),
        precision=precision,
    )


@pytest.mark.slow
def test_a_run_in_bfloat16_learns_and_keeps_its_state_in_float32():
    sim = simulation("bfloat16")
    driver = planned([sim.problem(seed=0)], sim.schedule(25), 25, Speed())
    before = driver.evaluate()
    driver.advance(0, 25)
    held = (driver.state.model, driver.state.ring, driver.state.server, driver.state.store, driver.state.lanes.params)
    floating = [leaf for leaf in jax.tree.leaves(held) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    assert len(floating) > 5 * 8  # the network's eight arrays: model, ring, moments, updates, lanes
    assert {leaf.dtype for leaf in floating} == FLOAT32
    after = driver.evaluate()
    assert before["accuracy"] < 0.6 < 0.9 < after["accuracy"]
