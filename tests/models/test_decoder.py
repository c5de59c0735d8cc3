"""`decoder`: against its formula in NumPy, causality, parameters."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxafl as afl
from jaxafl.models import Batch

KEY = jax.random.key(0)
TOKENS = np.random.default_rng(0).integers(0, 11, (3, 7)).astype(np.int32)
BATCH = Batch(jnp.asarray(TOKENS), jnp.asarray(np.roll(TOKENS, -1, 1)), jnp.ones(3, bool))
FORMS = [("rms", "rotary"), pytest.param("layer", "learned", marks=pytest.mark.slow)]


@functools.cache
def made(norm, positions):
    """A model with parameters away from their start, so that scales and biases count and attention is not flat."""
    model = afl.models.decoder(11, 8, 2, 2, norm=norm, positions=positions)
    params, _ = model.init(KEY, BATCH)
    rng = np.random.default_rng(1)
    return model, jax.tree.map(lambda leaf: leaf + rng.normal(0, 0.4, leaf.shape).astype(np.float32), params)


def losses(model, params, batch):
    return jax.jit(lambda params, batch: model.apply(params, {}, batch, KEY, False)[0].loss)(params, batch)


def logits_by_loops(params, tokens, norm, positions):
    """Logits [L, V] of one text, one head after another, with pairs of numbers as complex ones, in float64."""
    w = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)

    def normed(x, name):
        x = x - x.mean(1, keepdims=True) if norm == "layer" else x
        return x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-6) * w[name]["scale"] + w[name].get("bias", 0)

    def turned(head):
        turns = np.exp(1j * np.outer(np.arange(7), [1, 10_000**-0.5]))
        pairs = (head[:, :2] + 1j * head[:, 2:]) * turns
        return np.concatenate([pairs.real, pairs.imag], 1)

    x = w["embed"]["embedding"][tokens] + (w["positions"] if positions == "learned" else 0)
    for layer in range(2):
        y = normed(x, f"attention_norm_{layer}")
        found = np.zeros_like(x)
        for head in (slice(0, 4), slice(4, 8)):
            q, k, v = (y @ w[f"{one}_{layer}"]["kernel"][:, head] for one in ("query", "key", "value"))
            q, k = (turned(q), turned(k)) if positions == "rotary" else (q, k)
            weights = np.tril(np.exp(q @ k.T / 2))
            found[:, head] = weights @ v / weights.sum(1, keepdims=True)
        x = x + found @ w[f"attention_{layer}"]["kernel"]
        y = normed(x, f"perceptron_norm_{layer}") @ w[f"expand_{layer}"]["kernel"]
        y = y / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
        x = x + y @ w[f"contract_{layer}"]["kernel"]
    return normed(x, "norm") @ w["embed"]["embedding"].T


@pytest.mark.parametrize(("norm", "positions"), FORMS)
def test_logits_and_losses_are_those_of_the_formula(norm, positions):
    model, params = made(norm, positions)
    expected = np.stack([logits_by_loops(params, text, norm, positions) for text in TOKENS])
    np.testing.assert_allclose(model.outputs(params, BATCH.x), expected, rtol=1e-3, atol=1e-3)
    probability = np.exp(expected) / np.exp(expected).sum(-1, keepdims=True)
    of_next = np.take_along_axis(probability, np.asarray(BATCH.y)[..., None], 2)[..., 0]
    np.testing.assert_allclose(losses(model, params, BATCH), -np.log(of_next).mean(1), rtol=1e-3)
    outside = BATCH._replace(x=BATCH.x.at[1, 0].set(-1))
    assert np.isnan(losses(model, params, outside)).tolist() == [False, True, False]


@pytest.mark.parametrize(("norm", "positions"), FORMS)
def test_a_later_token_changes_no_earlier_output(norm, positions):
    model, params = made(norm, positions)
    changed = TOKENS.copy()
    changed[:, 4] = (changed[:, 4] + 1) % 11
    before, after = model.outputs(params, BATCH.x), model.outputs(params, jnp.asarray(changed))
    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert np.abs(before - after).max(-1)[:, 4:].min() > 1e-3


LARGER = {"norm": "layer", "positions": "learned"}, 256 * 256 + 4 * (12 * 256**2 + 4 * 256) + 512 + 7 * 256


@pytest.mark.parametrize(("options", "expected"), [({}, 256 * 256 + 4 * (12 * 256**2 + 2 * 256) + 256), LARGER])
def test_parameters_are_as_many_as_by_hand(options, expected):
    params, _ = jax.eval_shape(afl.models.decoder(**options).init, KEY, BATCH)
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == expected
