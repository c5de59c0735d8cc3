"""The LSTM and `char_lstm` against a slow NumPy loop, PyTorch and finite differences."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxafl.models import Batch
from jaxafl.models.networks.recurrent import LSTM, char_lstm

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


def test_the_layer_is_its_formula():
    """A loop over time in float64 NumPy."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(7, 3, 5))
    layer = LSTM(4)
    variables = layer.init(KEY, jnp.asarray(x, jnp.float32))
    kernel, bias = (np.asarray(variables["params"][name], np.float64) for name in ("kernel", "bias"))
    h = c = np.zeros((3, 4))
    expected = []
    for inputs in x:
        i, f, g, o = np.split(np.concatenate([inputs, h], 1) @ kernel + bias, 4, axis=1)
        c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
        h = np.tanh(c) / (1 + np.exp(-o))
        expected.append(h)
    actual = jax.jit(layer.apply)(variables, jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(actual, np.stack(expected), rtol=1e-5, atol=1e-6)


def torch_network(torch, params, classes, embedding, hidden, layers):
    """Embedding, LSTM and dense layer of PyTorch with the weights of a Linen network."""
    network = torch.nn.ModuleDict(
        {
            "embedding": torch.nn.Embedding(classes, embedding),
            "lstm": torch.nn.LSTM(embedding, hidden, layers, batch_first=True),
            "dense": torch.nn.Linear(hidden, classes),
        }
    )

    def put(target, values):
        target.copy_(torch.tensor(np.ascontiguousarray(values)))

    with torch.no_grad():
        put(network["embedding"].weight, params["Embed_0"]["embedding"])
        for layer in range(layers):
            kernel, width = np.asarray(params[f"LSTM_{layer}"]["kernel"]), hidden if layer else embedding
            put(getattr(network["lstm"], f"weight_ih_l{layer}"), kernel[:width].T)
            put(getattr(network["lstm"], f"weight_hh_l{layer}"), kernel[width:].T)
            put(getattr(network["lstm"], f"bias_ih_l{layer}"), params[f"LSTM_{layer}"]["bias"])
            getattr(network["lstm"], f"bias_hh_l{layer}").zero_()
        put(network["dense"].weight, np.asarray(params["Dense_0"]["kernel"]).T)
        put(network["dense"].bias, params["Dense_0"]["bias"])
    return network


@pytest.mark.slow
@pytest.mark.extras
@pytest.mark.parametrize(
    ("options", "size", "length"),
    [(SMALL, 5, 9), ({"num_classes": 80, "embedding": 8, "hidden": 256, "layers": 2}, 4, 80)],
)
def test_losses_and_all_gradients_are_those_of_pytorch(options, size, length):
    torch = pytest.importorskip("torch")
    model, params = made(**options)
    batch = batch_of(size, length, options["num_classes"])
    network = torch_network(torch, params, *options.values())
    embedded = network["embedding"](torch.tensor(np.asarray(batch.x), dtype=torch.long))
    logits = network["dense"](network["lstm"](embedded)[0][:, -1])
    labels = torch.tensor(np.asarray(batch.y), dtype=torch.long)
    expected = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    expected.mean().backward()
    gradient, actual = gradient_and_losses(params, model, batch)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
    close(actual, expected.detach().numpy())
    tight = functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-6)
    tight(gradient["Embed_0"]["embedding"], network["embedding"].weight.grad)
    for layer in range(options["layers"]):
        lstm, own = network["lstm"], gradient[f"LSTM_{layer}"]
        kernel = [getattr(lstm, f"weight_{part}_l{layer}").grad.numpy().T for part in ("ih", "hh")]
        tight(own["kernel"], np.concatenate(kernel))
        tight(own["bias"], getattr(lstm, f"bias_ih_l{layer}").grad)
    tight(gradient["Dense_0"]["kernel"], network["dense"].weight.grad.numpy().T)
    tight(gradient["Dense_0"]["bias"], network["dense"].bias.grad)


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
    with pytest.raises(ValueError, match="must be an integer"):
        char_lstm(**SMALL).init(KEY, batch_of()._replace(x=jnp.zeros((5, 9))))


def test_parameters_may_start_as_those_of_pytorch_do():
    """Embeddings are normal, all else is uniform within ±1/√256; the bias of a gate is the sum of two such numbers."""
    params, _ = char_lstm(initialisation="torch").init(KEY, batch_of(1, 80, 80))
    assert np.std(params["Embed_0"]["embedding"]) == pytest.approx(1, rel=0.1)
    for one in ("LSTM_0", "LSTM_1"):
        assert 0.99 / 16 < np.abs(params[one]["kernel"]).max() <= 1 / 16
        assert np.std(params[one]["bias"]) == pytest.approx(np.sqrt(2 / 3) / 16, rel=0.1)
    assert 0.9 / 16 < np.abs(params["Dense_0"]["bias"]).max() <= 1 / 16
