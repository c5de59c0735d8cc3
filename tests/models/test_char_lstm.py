"""The LSTM and `char_lstm` against a slow NumPy loop, PyTorch and finite differences."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from jaxafl import data
from jaxafl.models import Batch
from jaxafl.models.recurrent import LSTM, char_lstm

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


@pytest.mark.slow
def test_derivatives_are_those_of_finite_differences():
    with jax.enable_x64(True):
        layer = LSTM(3)
        x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 2, 4)))
        variables = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), layer.init(KEY, x))
        assert layer.apply(variables, x).dtype == jnp.float64
        check_grads(jax.jit(layer.apply), (variables, x), order=1, modes=["rev"], atol=1e-6, rtol=1e-6)


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


@pytest.mark.slow
@pytest.mark.extras
def test_parameters_may_start_as_those_of_pytorch_do():
    torch = pytest.importorskip("torch")
    params, _ = char_lstm(initialisation="torch").init(KEY, batch_of(1, 80, 80))
    torch.manual_seed(0)
    lstm, dense, embedding = torch.nn.LSTM(8, 256, 2), torch.nn.Linear(256, 80), torch.nn.Embedding(80, 8)

    def alike(found, *expected):
        """The same spread and the same extremes, up to chance."""
        expected = sum(values.detach().numpy() for values in expected)
        assert np.std(found) == pytest.approx(np.std(expected), rel=0.1)
        assert np.abs(found).max() == pytest.approx(np.abs(expected).max(), rel=0.15)

    for layer in (0, 1):
        own = params[f"LSTM_{layer}"]
        alike(own["kernel"], getattr(lstm, f"weight_hh_l{layer}"))
        alike(own["bias"], getattr(lstm, f"bias_ih_l{layer}"), getattr(lstm, f"bias_hh_l{layer}"))
    alike(params["Dense_0"]["kernel"], dense.weight)
    assert 0 < np.abs(params["Dense_0"]["bias"]).max() <= 1 / 16
    assert np.std(params["Embed_0"]["embedding"]) == pytest.approx(np.std(embedding.weight.detach().numpy()), rel=0.1)


def test_options_are_described():
    assert char_lstm(hidden=32).at("bfloat16").description == {
        "network": "CharLSTM",
        "num_classes": 80,
        "embedding": 8,
        "hidden": 32,
        "layers": 2,
        "initialisation": "leaf",
        "precision": "bfloat16",
    }


@pytest.mark.slow
def test_bfloat16_is_close_and_keeps_parameters_and_gradients_in_float32():
    (model, params), batch = made(), batch_of()
    half = char_lstm(**SMALL).at("bfloat16")
    shapes, _ = jax.eval_shape(half.init, KEY, batch)
    gradient, losses = gradient_and_losses(params, half, batch)
    for tree in (shapes, gradient, losses):
        assert {leaf.dtype for leaf in jax.tree.leaves(tree)} == {jnp.dtype(jnp.float32)}
    exact, exact_losses = gradient_and_losses(params, model, batch)
    assert not np.array_equal(losses, exact_losses)
    np.testing.assert_allclose(losses, exact_losses, rtol=0.02)
    for own, reference in zip(jax.tree.leaves(gradient), jax.tree.leaves(exact), strict=True):
        assert np.linalg.norm(own - reference) < 0.05 * np.linalg.norm(reference)


def test_padding_influences_nothing():
    model, params = made()
    first, second = batch_of(seed=1), batch_of(seed=2)
    mask = jnp.arange(5) < 3
    other = first._replace(
        x=jnp.where(mask[:, None], first.x, second.x), y=jnp.where(mask, first.y, second.y), mask=mask
    )
    gradient, losses = gradient_and_losses(params, model, first._replace(mask=mask))
    again, padded = gradient_and_losses(params, model, other)
    np.testing.assert_array_equal(losses[3:], 0)
    np.testing.assert_array_equal(losses, padded)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), again, gradient)


@pytest.mark.slow
def test_clients_with_weights_of_their_own_are_vectorised():
    (model, one), (_, two) = made(), made(seed=3)
    batches = [batch_of(seed=1), batch_of(seed=2)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), (one, batches[0]), (two, batches[1]))
    gradient = jax.grad(lambda params, batch: mean_loss(params, model, batch)[0])
    together = jax.jit(jax.vmap(gradient))(*stacked)
    for client, params in enumerate((one, two)):
        alone, _ = gradient_and_losses(params, model, batches[client])
        own = jax.tree.map(lambda leaf, client=client: leaf[client], together)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), own, alone)


@pytest.mark.slow
def test_characters_may_be_integers_of_any_kind():
    (model, params), batch = made(), batch_of()
    small = batch._replace(x=jnp.asarray(np.asarray(batch.x).astype(np.uint8)))
    np.testing.assert_array_equal(
        gradient_and_losses(params, model, small)[1], gradient_and_losses(params, model, batch)[1]
    )


@pytest.mark.parametrize("character", [-1, 11, 200])
def test_a_character_outside_the_vocabulary_is_not_taken_for_another(character):
    (model, params), batch = made(), batch_of()
    _, losses = gradient_and_losses(params, model, batch._replace(x=batch.x.at[2, 0].set(character)))
    np.testing.assert_array_equal(np.isnan(losses), np.arange(5) == 2)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((2, 28, 28, 1), np.float32), r"\[2, 28, 28, 1\] and dtype float32"),
        (np.zeros((2, 80), np.float32), r"\[2, 80\] and dtype float32"),
        (np.zeros((2, 28, 28, 1), np.uint8), r"\[2, 28, 28, 1\] and dtype uint8"),
    ],
)
def test_other_inputs_than_text_are_refused_before_compilation(x, message):
    batch = Batch(jnp.asarray(x), jnp.zeros(2, jnp.int32), jnp.ones(2, bool))
    with pytest.raises(ValueError, match=rf"char_lstm reads characters as integers \[batch, length\].*{message}"):
        char_lstm().init(KEY, batch)


def test_own_bytes_turned_into_floats_say_how_to_keep_them():
    """What `from_arrays` does to uint8 by default, and the option that the error names."""
    rng = np.random.default_rng(0)
    arrays = rng.integers(0, 11, (6, 9)).astype(np.uint8), rng.integers(0, 11, 6), np.repeat([0, 1], 3)
    model, options = char_lstm(**SMALL), {"test_fraction": 0.4, "num_classes": 11}
    x, y = data.from_arrays(*arrays, **options).example
    with pytest.raises(ValueError, match=r"from_arrays .*preprocessing=jaxafl\.data\.as_is\(\)"):
        model.init(KEY, Batch(x, y, jnp.ones(len(y), bool)))
    x, y = data.from_arrays(*arrays, **options, preprocessing=data.as_is()).example
    model.init(KEY, Batch(x, y, jnp.ones(len(y), bool)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_classes": 0}, "num_classes must be at least 1, got 0"),
        ({"embedding": 1.5}, "embedding .* got 1.5"),
        ({"hidden": -2}, "hidden .* got -2"),
        ({"layers": 0}, "layers .* got 0"),
        ({"initialisation": "keras"}, "initialisation must be .*'leaf', 'torch'.* got 'keras'"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        char_lstm(**options)
