"""`char_lstm` and its gradients against loops over time."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxafl.models import Batch
from jaxafl.models.networks.recurrent import char_lstm

KEY = jax.random.key(0)
SMALL = {"num_classes": 11, "embedding": 4, "hidden": 6, "layers": 2}


def batch_of(size=5, length=9, classes=11, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, classes, (size, length)).astype(np.int32)
    return Batch(jnp.asarray(x), jnp.asarray(rng.integers(0, classes, size), jnp.int32), jnp.ones(size, bool))


@functools.cache
def made(seed=0, **options):
    """A model, and parameters with biases away from their start, so that they count."""
    model = char_lstm(**(SMALL | options))
    params, _ = model.init(jax.random.key(seed), batch_of(1))
    rng = np.random.default_rng(seed)
    return model, jax.tree.map(lambda leaf: leaf + (0.2 * rng.normal(size=leaf.shape) if leaf.ndim == 1 else 0), params)


def mean_loss(params, model, batch):
    losses = model.bound(None)(params, {}, batch, KEY, True)[0].loss
    return losses.sum() / batch.mask.sum(), losses


gradient_and_losses = jax.jit(jax.grad(mean_loss, has_aux=True), static_argnums=1)


def losses_by_loops(params, batch):
    """The network's formula, over one time after another."""
    x = params["Embed_0"]["embedding"][batch.x]
    for layer in ("LSTM_0", "LSTM_1"):
        kernel, bias = params[layer]["kernel"], params[layer]["bias"]
        h = c = jnp.zeros((len(x), len(bias) // 4))
        outputs = []
        for inputs in jnp.moveaxis(x, 1, 0):
            i, f, g, o = jnp.split(jnp.concatenate([inputs, h], 1) @ kernel + bias, 4, axis=1)
            c = c / (1 + jnp.exp(-f)) + jnp.tanh(g) / (1 + jnp.exp(-i))
            h = jnp.tanh(c) / (1 + jnp.exp(-o))
            outputs.append(h)
        x = jnp.stack(outputs, 1)
    scores = jnp.exp(x[:, -1] @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"])
    return -jnp.log(scores[jnp.arange(len(x)), batch.y] / scores.sum(1))


@pytest.mark.slow
def test_losses_and_all_gradients_are_those_of_the_formula():
    (model, params), batch = made(), batch_of()
    gradient, losses = gradient_and_losses(params, model, batch)
    np.testing.assert_allclose(losses, losses_by_loops(params, batch), rtol=1e-5)
    expected = jax.grad(lambda params: losses_by_loops(params, batch).mean())(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6), gradient, expected)


def test_parameters_and_how_they_start():
    params, state = char_lstm().init(KEY, batch_of(1, 80, 80))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 817_872
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.float32)}
    assert state == {}
    for layer, width in ((0, 8), (1, 256)):
        lstm = params[f"LSTM_{layer}"]
        np.testing.assert_array_equal(lstm["bias"].reshape(4, 256), np.array([0.0, 1, 0, 0])[:, None] * np.ones(256))
        limit = np.sqrt(6 / (width + 256 + 1024))
        assert 0.99 * limit < np.abs(lstm["kernel"]).max() <= limit
    np.testing.assert_array_equal(params["Dense_0"]["bias"], 0)


@pytest.mark.parametrize("character", [-1, 11, 200])
def test_a_character_outside_the_vocabulary_is_not_taken_for_another(character):
    (model, params), batch = made(), batch_of()
    _, losses = gradient_and_losses(params, model, batch._replace(x=batch.x.at[2, 0].set(character)))
    np.testing.assert_array_equal(np.isnan(losses), np.arange(5) == 2)


def test_characters_as_floats_are_refused():
    with pytest.raises(ValueError, match="must be integers, got float32; data of uint8"):
        char_lstm(**SMALL).init(KEY, batch_of()._replace(x=jnp.zeros((5, 9))))


def test_parameters_may_start_as_those_of_pytorch_do():
    """Embeddings are normal, all else is uniform within ±1/√256; the bias of a gate is the sum of two such numbers."""
    params, _ = char_lstm(initialisation="torch").init(KEY, batch_of(1, 80, 80))
    assert np.std(params["Embed_0"]["embedding"]) == pytest.approx(1, rel=0.1)
    for one in ("LSTM_0", "LSTM_1"):
        assert 0.99 / 16 < np.abs(params[one]["kernel"]).max() <= 1 / 16
        assert np.std(params[one]["bias"]) == pytest.approx(np.sqrt(2 / 3) / 16, rel=0.1)
    assert 0.9 / 16 < np.abs(params["Dense_0"]["bias"]).max() <= 1 / 16
