from __future__ import annotations

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx

from jaxafl.models import Batch, Outputs, from_functions, from_linen, from_nnx, mlp
from tests.variants import slow_but

FEATURES, CLASSES = 6, 3
KEY = jax.random.key(0)


def toy_batch(size=48, seed=0):
    """Classes told apart by the largest of their first inputs."""
    x = np.random.default_rng(seed).normal(size=(size, FEATURES)).astype(np.float32)
    return Batch(jnp.asarray(x), jnp.asarray(x[:, :CLASSES].argmax(1), jnp.int32), jnp.ones(size, bool))


class LinenNet(nn.Module):
    """Dropout and batch normalisation that leaves padding out."""

    rate: float = 0.2

    @nn.compact
    def __call__(self, x, train: bool, mask=None):
        x = nn.Dense(16)(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.8)(x, mask=None if mask is None else mask[:, None])
        return nn.Dense(CLASSES)(nn.Dropout(self.rate, deterministic=not train)(nn.relu(x)))


class NnxNet(nnx.Module):
    def __init__(self, rngs, rate=0.2):
        self.layers = nnx.List([nnx.Linear(FEATURES, 16, rngs=rngs), nnx.Linear(16, CLASSES, rngs=rngs)])
        self.norm = nnx.BatchNorm(16, momentum=0.8, rngs=rngs)
        self.dropout = nnx.Dropout(rate, rngs=rngs)

    def __call__(self, x, mask=None):
        x = self.norm(self.layers[0](x), mask=None if mask is None else mask[:, None])
        return self.layers[1](self.dropout(nnx.relu(x)))


def functions():
    def init(key, batch):
        return {"w": 0.1 * jax.random.normal(key, (batch.x.shape[-1], CLASSES)), "b": jnp.zeros(CLASSES)}

    def loss(params, batch, key):
        logits = batch.x @ params["w"] + params["b"]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.y)
        return Outputs(losses, {"accuracy": (logits.argmax(-1) == batch.y).astype(jnp.float32)})

    return init, loss


MODELS = {
    "linen": from_linen(LinenNet()),
    "nnx": from_nnx(NnxNet),
    "functions": from_functions(*functions()),
    "mlp": mlp(CLASSES, hidden=(16,)),
}


@functools.cache
def compiled(model):
    return jax.jit(model.apply, static_argnums=4)


def mean_loss(params, model, state, batch, key, train=True):
    outputs, state = model.apply(params, state, batch, key, train)
    return jnp.sum(outputs.loss) / jnp.sum(batch.mask), state


@pytest.mark.parametrize("name", slow_but(MODELS, "mlp"))
def test_gradient_descent_learns(name):
    model, batch = MODELS[name], toy_batch()
    params, state = model.init(KEY, jax.tree.map(lambda leaf: leaf[:1], batch))

    @jax.jit
    def train(params, state):
        def step(carry, key):
            params, state = carry
            gradient, state = jax.grad(mean_loss, has_aux=True)(params, model, state, batch, key)
            return (jax.tree.map(lambda p, g: p - 0.5 * g, params, gradient), state), None

        return jax.lax.scan(step, (params, state), jax.random.split(KEY, 60))[0]

    before, _ = compiled(model)(params, state, batch, KEY, False)
    params, new_state = train(params, state)
    after, unchanged = compiled(model)(params, new_state, batch, KEY, False)
    assert after.loss.shape == batch.mask.shape
    assert after.loss.mean() < 0.5 * before.loss.mean()
    assert after.metrics["accuracy"].mean() > 0.85
    assert jax.tree.structure(new_state) == jax.tree.structure(state)
    jax.tree.map(np.testing.assert_array_equal, new_state, unchanged)


@pytest.mark.parametrize("name", slow_but(["linen", "nnx"], "linen"))
def test_state_is_updated_in_training_and_used_in_evaluation(name):
    model, batch = MODELS[name], toy_batch()
    params, state = model.init(KEY, batch)
    _, trained = compiled(model)(params, state, batch, KEY, True)
    moved = [float(jnp.abs(old - new).max()) for old, new in zip(*map(jax.tree.leaves, (state, trained)), strict=True)]
    assert len(moved) == 2  # a mean and a variance
    assert min(moved) > 1e-3
    old, _ = compiled(model)(params, state, batch, KEY, False)
    new, _ = compiled(model)(params, trained, batch, KEY, False)
    assert not np.allclose(old.loss, new.loss, atol=1e-4)


@pytest.mark.parametrize("name", ["linen", "nnx"])
def test_dropout_follows_the_key_in_training_only(name):
    model, batch = MODELS[name], toy_batch()
    params, state = model.init(KEY, batch)

    def losses(key, train):
        return np.asarray(compiled(model)(params, state, batch, jax.random.key(key), train)[0].loss)

    np.testing.assert_array_equal(losses(1, True), losses(1, True))
    assert not np.allclose(losses(1, True), losses(2, True), atol=1e-4)
    np.testing.assert_array_equal(losses(1, False), losses(2, False))


@pytest.mark.parametrize("name", slow_but(MODELS, "mlp"))
def test_padding_influences_nothing(name):
    model = {"linen": from_linen(LinenNet(rate=0.0)), "nnx": from_nnx(lambda rngs: NnxNet(rngs, rate=0.0))}.get(
        name, MODELS[name]
    )
    full = toy_batch(8)
    params, state = model.init(KEY, full)

    def padded(filler):
        x = jnp.concatenate([full.x, jnp.full((3, FEATURES), filler)])
        return Batch(x, jnp.concatenate([full.y, jnp.full(3, 2, jnp.int32)]), jnp.arange(11) < 8)

    value_and_gradient = jax.jit(jax.value_and_grad(mean_loss, has_aux=True), static_argnums=1)
    expected = value_and_gradient(params, model, state, full, KEY)
    for filler in (0.0, 1e3):
        actual = value_and_gradient(params, model, state, padded(filler), KEY)
        jax.tree.map(lambda a, e: np.testing.assert_allclose(a, e, rtol=1e-3, atol=1e-5), actual, expected)
        outputs, _ = compiled(model)(params, state, padded(filler), KEY, True)
        np.testing.assert_array_equal(outputs.loss[8:], 0.0)
        np.testing.assert_array_equal(outputs.metrics["accuracy"][8:], 0.0)


@pytest.mark.parametrize("name", MODELS)
def test_initial_parameters_are_a_function_of_the_key(name):
    model, batch = MODELS[name], toy_batch(1)
    first, again = model.init(KEY, batch)[0], model.init(KEY, batch)[0]
    jax.tree.map(np.testing.assert_array_equal, first, again)
    other = model.init(jax.random.key(1), batch)[0]
    assert any(not np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (first, other)), strict=True))


@pytest.mark.parametrize("name", slow_but(MODELS, "mlp"))
def test_clients_can_be_vectorised(name):
    model = MODELS[name]
    batches = jax.tree.map(lambda *leaves: jnp.stack(leaves), toy_batch(4, 1), toy_batch(4, 2))
    params, state = model.init(KEY, toy_batch(1))
    keys = jax.random.split(KEY, 2)
    together, _ = jax.jit(jax.vmap(lambda batch, key: model.apply(params, state, batch, key, True)))(batches, keys)
    for client in range(2):
        batch = jax.tree.map(lambda leaf, client=client: leaf[client], batches)
        alone, _ = compiled(model)(params, state, batch, keys[client], True)
        np.testing.assert_allclose(together.loss[client], alone.loss, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_descriptions_are_json(name):
    assert "network" in json.loads(json.dumps(MODELS[name].description))


def test_options_of_a_module_are_described():
    assert from_linen(LinenNet(rate=0.4)).description == {"network": "LinenNet", "rate": 0.4}
    assert from_linen(nn.Dense(3), name="probe").description["kernel_init"] == "variance_scaling.<locals>.init"


def test_a_model_is_named_as_its_module_or_as_given():
    assert from_linen(nn.Dense(3)).name == "Dense"
    assert from_linen(nn.Dense(3), name="probe").name == "probe"
    assert from_nnx(NnxNet).name == "NnxNet"
    assert from_functions(*functions()).name == "loss"


def test_a_loss_of_ones_own():
    def squared_error(predictions, batch):
        return jnp.square(predictions[:, 0] - batch.y)

    model = from_linen(nn.Dense(1, kernel_init=nn.initializers.zeros_init()), loss=squared_error)
    batch = Batch(jnp.ones((2, 3)), jnp.asarray([2.0, -1.0]), jnp.ones(2, bool))
    params, state = model.init(KEY, batch)
    outputs, _ = compiled(model)(params, state, batch, KEY, True)
    np.testing.assert_allclose(outputs.loss, [4.0, 1.0])
    assert outputs.metrics == {}


class NeedsMore(nn.Module):
    @nn.compact
    def __call__(self, x, temperature):
        return nn.Dense(CLASSES)(x) / temperature


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: from_linen(nn.Dense), TypeError, "instance, got the class Dense"),
        (lambda: from_linen(NeedsMore()), TypeError, "requires 'temperature'"),
        (lambda: from_nnx(lambda rngs: jnp.ones(3)), TypeError, "makes an nnx.Module"),
        (lambda: from_functions(None, functions()[1]), TypeError, "function as init, got a NoneType"),
    ],
)
def test_wrong_networks(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    "model",
    [
        from_functions(functions()[0], lambda params, batch, key: jnp.mean(batch.x @ params["w"])),
        from_linen(nn.Dense(1), loss=lambda predictions, batch: predictions),
        from_nnx(NnxNet, loss=lambda predictions, batch: predictions.mean()),
    ],
)
def test_a_loss_that_is_not_per_example_is_refused_at_initialisation(model):
    with pytest.raises(ValueError, match=r"loss per example, of shape \(4,\)"):
        model.init(KEY, toy_batch(4))


def test_a_model_says_in_short_what_it_is():
    assert repr(mlp(3, hidden=(7,))) == "Model(name=mlp, network=MLP, num_classes=3, hidden=[7])"
    assert "<th>num_classes</th><td>3</td>" in mlp(3)._repr_html_()
