"""`decoder`: against its formula in NumPy, causality, parameters, perplexity per token of a run."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxafl as afl
from jaxafl.models import Batch

KEY = jax.random.key(0)
SMALL = {"num_classes": 11, "width": 8, "layers": 2, "heads": 2, "length": 7}
TOKENS = np.random.default_rng(0).integers(0, 11, (3, 7)).astype(np.int32)
BATCH = Batch(jnp.asarray(TOKENS), jnp.asarray(np.roll(TOKENS, -1, 1)), jnp.ones(3, bool))
FORMS = [("rms", "rotary"), ("layer", "learned")]


@functools.cache
def made(norm, positions):
    """A model with parameters away from their start, so that scales and biases count and attention is not flat."""
    model = afl.models.decoder(**SMALL, norm=norm, positions=positions)
    params, _ = model.init(KEY, BATCH)
    rng = np.random.default_rng(1)
    return model, jax.tree.map(lambda leaf: leaf + rng.normal(0, 0.4, leaf.shape).astype(np.float32), params)


def losses(model, params, batch):
    return jax.jit(lambda params, batch: model.apply(params, {}, batch, KEY, False)[0].loss)(params, batch)


def logits_by_loops(params, tokens, norm, positions):
    """Logits [L, V] of one text, one head, one place and one pair of numbers after another, in float64."""
    w = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)

    def normed(x, name):
        x = x - x.mean(1, keepdims=True) if norm == "layer" else x
        return x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-6) * w[name]["scale"] + w[name].get("bias", 0)

    def turned(head):
        out = np.zeros_like(head)
        for place, row in enumerate(head):
            for i in range(2):  # of d / 2 = 2 pairs
                turn = np.exp(1j * place * 10_000 ** (-2 * i / 4)) * (row[i] + 1j * row[i + 2])
                out[place, i], out[place, i + 2] = turn.real, turn.imag
        return out

    x = w["embedding"][tokens] + (w["positions"][: len(tokens)] if positions == "learned" else 0)
    for layer in range(2):
        y = normed(x, f"attention_norm_{layer}")
        found = np.zeros_like(x)
        for head in (slice(0, 4), slice(4, 8)):
            q, k, v = (y @ w[f"{one}_{layer}"]["kernel"][:, head] for one in ("query", "key", "value"))
            q, k = (turned(q), turned(k)) if positions == "rotary" else (q, k)
            for place in range(len(x)):
                weights = np.exp(k[: place + 1] @ q[place] / 2)
                found[place, head] = weights @ v[: place + 1] / weights.sum()
        x = x + found @ w[f"attention_{layer}"]["kernel"]
        y = normed(x, f"perceptron_norm_{layer}") @ w[f"expand_{layer}"]["kernel"]
        y = y / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
        x = x + y @ w[f"contract_{layer}"]["kernel"]
    return normed(x, "norm") @ w["embedding"].T


@pytest.mark.parametrize(("norm", "positions"), FORMS)
def test_logits_and_losses_are_those_of_the_formula(norm, positions):
    model, params = made(norm, positions)
    expected = np.stack([logits_by_loops(params, text, norm, positions) for text in TOKENS])
    np.testing.assert_allclose(model.outputs(params, BATCH.x), expected, rtol=1e-3, atol=1e-3)
    probability = np.exp(expected) / np.exp(expected).sum(-1, keepdims=True)
    of_next = np.take_along_axis(probability, np.asarray(BATCH.y)[..., None], 2)[..., 0]
    np.testing.assert_allclose(losses(model, params, BATCH), -np.log(of_next).mean(1), rtol=1e-3)


@pytest.mark.parametrize(("norm", "positions"), FORMS)
def test_a_later_token_changes_no_earlier_output(norm, positions):
    model, params = made(norm, positions)
    changed = TOKENS.copy()
    changed[:, 4] = (changed[:, 4] + 1) % 11
    before, after = model.outputs(params, BATCH.x), model.outputs(params, jnp.asarray(changed))
    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert np.abs(before - after).max(-1)[:, 4:].min() > 1e-3


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 256 * 256 + 4 * (12 * 256**2 + 2 * 256) + 256),
        ({"norm": "layer", "positions": "learned"}, 256 * 256 + 4 * (12 * 256**2 + 4 * 256) + 512 + 1024 * 256),
        ({"num_classes": 8192, "width": 512, "layers": 8}, 29_368_832),
    ],
)
def test_parameters_are_as_many_as_by_hand(options, expected):
    params, _ = jax.eval_shape(afl.models.decoder(**options).init, KEY, BATCH)
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == expected


def test_a_token_outside_the_vocabulary_is_not_taken_for_another():
    model, params = made("rms", "rotary")
    assert np.isnan(losses(model, params, BATCH._replace(x=BATCH.x.at[1, 0].set(-1)))).tolist() == [False, True, False]


def test_bfloat16_is_close_and_differs():
    model, params = made("rms", "rotary")
    exact, rounded = (one.outputs(params, BATCH.x) for one in (model, model.at("bfloat16")))
    np.testing.assert_array_equal(rounded, rounded.astype(jnp.bfloat16))
    assert 0 < np.abs(rounded - exact).max() < 0.1 * np.abs(exact).max()


@pytest.mark.parametrize("options", [{"norm": "batch"}, {"positions": "sines"}, {"width": 6}, {"layers": 0}])
def test_wrong_options(options):
    with pytest.raises(ValueError, match=f"decoder.*{next(iter(options))}"):
        afl.models.decoder(**(SMALL | options))


@pytest.mark.slow
def test_a_run_records_the_perplexity_of_all_tokens_together():
    x, y = (np.tile(np.asarray(part), (4, 1)) for part in (BATCH.x, BATCH.y))
    data = afl.data.from_arrays(x, y, np.arange(12) % 4, x_test=x[:5], y_test=y[:5], test_client_ids=[0, 1, 2, 3, 0])
    client = afl.Client(learning_rate=0.5, steps=3, batch_size=2)
    sim = afl.Simulation(data, made("rms", "rotary")[0], client, afl.server.fedbuff(), afl.clock.synchronous())
    result = sim.run(6, eval_every=3, diagnostics="per_client")
    np.testing.assert_allclose(result.perplexity, np.exp(result.loss), rtol=1e-5)
    np.testing.assert_allclose(result.client_perplexity, np.exp(result.client_loss), rtol=1e-5)
    assert result.perplexity[-1] < result.perplexity[0] < 12 and result.perplexity.attrs["better"] == "lower"
