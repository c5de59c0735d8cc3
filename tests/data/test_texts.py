"""Texts as tokens: windows, what is held out, tokenizers, the plays of the package, a run that learns."""

from __future__ import annotations

import numpy as np
import optax
import pytest

import jaxafl as afl
from jaxafl.data import from_texts, shakespeare_plays


def test_windows_hold_every_token_once_and_the_label_is_the_next():
    texts = {"b": "".join(map(chr, range(40))), "a": ["0123456789" * 2, "é" * 10]}
    data = from_texts(texts, length=5, test_fraction=0.3)
    assert data.client_names.tolist() == ["a", "b"] and data.num_classes == 256
    rows, x, y = data.rows(), data.arrays["x"], data.arrays["y"]
    np.testing.assert_array_equal(x[rows[1]], np.arange(25).reshape(5, 5))  # of 28, whose last three are a rest
    np.testing.assert_array_equal(y[rows[1]], np.arange(25).reshape(5, 5) + 1)
    np.testing.assert_array_equal(x[rows[0]].ravel(), [*b"01234567890123", *"é".encode() * 7][:25])
    np.testing.assert_array_equal(data.x_test[2], [*b"45678"])
    assert data.test_clients.tolist() == [1, 1, 0, 0]
    with pytest.raises(ValueError, match=r"no client has 29 tokens"):
        from_texts({"a": texts["b"]}, length=28, test_fraction=0.3)


def test_a_tokenizer_gives_its_tokens_without_special_ones():
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"to": 0, "be": 1, "or": 2, "[CLS]": 3}, unk_token="or"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.enable_truncation(2)
    data = from_texts({"a": "to be or not to be " * 4}, length=6, tokenizer=words, test_fraction=0.4)
    assert data.num_classes == 4
    np.testing.assert_array_equal(data.arrays["x"], [[0, 1, 2, 2, 0, 1]] * 2)
    np.testing.assert_array_equal(data.arrays["y"], [[1, 2, 2, 0, 1, 0]] * 2)


@pytest.mark.slow
def test_a_decoder_learns_the_plays_of_the_package_and_records_perplexity_per_token():
    data = shakespeare_plays(length=16)
    assert "Hamlet" in data.client_names and data.num_clients == 6 and shakespeare_plays("role").num_clients > 60
    model = afl.models.decoder(width=8, layers=1, heads=1)
    client = afl.Client(optax.adam, learning_rate=0.01, steps=60, batch_size=8)
    sim = afl.Simulation(data, model, client, afl.server.fedavg(), afl.clock.synchronous(), precision="bfloat16")
    result = sim.run(2, eval_every=2, diagnostics="per_client")
    np.testing.assert_allclose(result.perplexity, np.exp(result.loss), rtol=1e-5)
    np.testing.assert_allclose(result.client_perplexity, np.exp(result.client_loss), rtol=1e-5)
    assert result.perplexity[0] > 200 and result.perplexity[-1] < 30 and result.perplexity.attrs["better"] == "lower"
