from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxafl as afl
from jaxafl import models
from jaxafl.models.networks.resnet import ResNet
from tests.models.test_networks import filled, images
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


def losses_and_gradient(model, params, state, batch):
    def mean_loss(params):
        outputs, new_state = model.bound(None)(params, state, batch, KEY, True)
        return outputs.loss.mean(), (outputs.loss, new_state)

    gradient, (losses, new_state) = jax.grad(mean_loss, has_aux=True)(params)
    return losses, new_state, gradient


@pytest.mark.parametrize("name", slow_but(NETWORKS, *(name for name in NETWORKS if "resnet" not in name)))
def test_parameters_gradients_losses_and_state_are_float32(name):
    model, batch = NETWORKS[name]().at("bfloat16"), images((16, 16, 1), 4)
    params, state = jax.eval_shape(model.init, KEY, batch)
    made = jax.eval_shape(lambda p, s: losses_and_gradient(model, p, s, batch), params, state)
    assert {leaf.dtype for leaf in jax.tree.leaves((params, state, made))} == FLOAT32
    exact = jax.eval_shape(NETWORKS[name]().init, KEY, batch)
    assert jax.tree.map(lambda leaf: leaf.shape, (params, state)) == jax.tree.map(lambda leaf: leaf.shape, exact)
    assert model.description["precision"] == "bfloat16"


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPARED)
def test_losses_and_gradients_are_near_those_of_float32(name):
    batch = images((16, 16, 1), 4)
    low, exact = COMPARED[name]().at("bfloat16"), COMPARED[name]()
    params, state = filled(jax.eval_shape(exact.init, KEY, batch))

    def both(params):
        return losses_and_gradient(low, params, state, batch), losses_and_gradient(exact, params, state, batch)

    (mine, my_state, my_gradient), (expected, expected_state, expected_gradient) = jax.jit(both)(params)
    assert 0 < np.abs(mine - expected).max() < 0.1 * np.abs(expected).max()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0.05, atol=0.05), my_state, expected_state)
    norm = optax.tree.norm(expected_gradient)
    assert optax.tree.norm(jax.tree.map(jnp.subtract, my_gradient, expected_gradient)) < 0.2 * norm


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


def test_parameters_of_a_network_in_bfloat16_are_trained_in_float32():
    """Otherwise updates of less than 2^-8 of a parameter vanish. The network computes with its own type."""
    dense, batch = models.Dense(2, dtype=jnp.bfloat16, param_dtype=jnp.bfloat16), images((4, 4, 1), 2)
    model = models.from_linen(dense, loss=lambda out, batch: jnp.full(2, out.dtype == jnp.bfloat16, out.dtype))
    params, _ = model.init(KEY, batch)
    outputs, (found, _) = model.outputs(params, batch.x), model.bound(None)(params, {}, batch, KEY, False)
    assert {leaf.dtype for leaf in (*params.values(), outputs, found.loss)} == FLOAT32  # sums in bfloat16 end at 256
    assert found.loss.tolist() == [1, 1]


def test_frozen_arrays_of_a_network_are_rounded_and_may_come_from_training():
    frozen = models.from_linen(models.Dense(2, param_dtype=jnp.bfloat16), frozen=lambda path: path == "kernel")
    given = models.initialised(frozen, {"kernel": np.full((1, 2), 1 / 3, np.float32), "bias": np.zeros(2, np.float32)})
    for model in (given, frozen.at("bfloat16"), models.lora(models.logistic(2), 1).at("bfloat16")):
        batch = images((4, 4, 1), 2)
        held = model.held(jax.eval_shape(lambda batch=batch: batch)), model.held(batch)
        assert {leaf.dtype for leaf in jax.tree.leaves(held)} == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="GPUs have TF32")
@pytest.mark.parametrize("precision", ["float16", None, "tf32"])
def test_other_precisions_are_refused(precision):
    with pytest.raises(ValueError, match="precision"):
        models.logistic(4).at(precision)


@pytest.mark.slow
def test_a_run_in_bfloat16_learns_and_returns_float32():
    data, client = afl.data.synthetic(1.0, 1.0, clients=8), afl.Client(learning_rate=0.03, steps=10, batch_size=10)
    parts = models.logistic(10), client, afl.server.fedavg(), afl.clock.synchronous()
    sim, how = afl.Simulation(data, *parts, precision="bfloat16"), {"observe": lambda params: {"b": jnp.bfloat16(1)}}
    trained = sim.train(40, eval_every=40, **how)
    assert {leaf.dtype for leaf in (*jax.tree.leaves(trained.params), trained.dataset.observe_b)} == FLOAT32
    assert trained.evaluations["accuracy"][0] < 0.3 < 0.6 < trained.evaluations["accuracy"][1]
