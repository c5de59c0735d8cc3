"""BERT from safetensors folders: the numbers of independent encoders, what is trained and what is one shared copy."""

from __future__ import annotations

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("safetensors", reason="safetensors is not installed (the bert extra)")

from jaxafl.device.compilation import equations
from jaxafl.models.networks.bert import BertConfig, BertEncoder, bert, read_config
from tests import tiny_bert
from tests.tiny_bert import batch_of, losses, made, started, tokens

LORA_AND_HEAD = 2 * 2 * (16 + 16) + (16 + 1) * 2  # layers x (query, value) x (A, B), then the head


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    return tiny_bert.write(tmp_path_factory.mktemp("checkpoint") / "tiny")


def encoded(model, config: BertConfig, x):
    encoder = BertEncoder(config)
    return jax.jit(encoder.apply)(
        {"params": model.frozen["encoder"]}, x["input_ids"], x["token_type_ids"], x["attention_mask"] == 1
    )


def test_hidden_states_are_those_of_a_slow_encoder_over_the_real_tokens(folder):
    weights, x = tiny_bert.tensors(), tokens()
    states = encoded(made(folder), read_config(folder), x)
    assert len(states) == 3
    for row in range(3):
        expected = tiny_bert.hidden_states(weights, *(x[name][row] for name in x))
        for layer in range(3):
            np.testing.assert_allclose(states[layer][row], expected[layer], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("act", ["gelu", "gelu_new", "relu"])
def test_hidden_states_are_those_of_transformers(tmp_path, act):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    x = tokens(4, 12)
    model = bert(str(tiny_bert.write(tmp_path / "tiny", hidden_act=act)))
    with torch.no_grad():
        reference = transformers.BertModel.from_pretrained(tmp_path / "tiny").eval()
        expected = reference(**{name: torch.tensor(leaf) for name, leaf in x.items()}, output_hidden_states=True)
    states = encoded(model, read_config(tmp_path / "tiny"), x)
    for state, other in zip(states, expected.hidden_states, strict=True):
        np.testing.assert_allclose(state, other.numpy(), rtol=1e-4, atol=1e-5)


def test_only_lora_and_the_head_are_trained(folder):
    params, state = jax.eval_shape(made(folder).init, jax.random.key(0), batch_of(tokens()))
    assert state == {}
    assert set(params) == {"encoder", "classifier"}
    assert {name: set(layer) for name, layer in params["encoder"].items()} == {
        f"layer_{index}": {"query", "value"} for index in (0, 1)
    }
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == LORA_AND_HEAD
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.float32)}
    head_alone, _ = jax.eval_shape(made(folder, num_classes=3, r=0).init, jax.random.key(0), batch_of(tokens()))
    assert jax.tree.map(jnp.shape, head_alone) == {"classifier": {"kernel": (16, 3), "bias": (3,)}}


@pytest.mark.slow
def test_dropout_acts_in_training_only_at_the_rate_of_the_checkpoint(folder):
    batch = batch_of(tokens())
    calm = losses(made(folder), started(made(folder), batch), batch)
    for model, drops in [(made(folder, None), True), (made(folder), False)]:
        params = started(model, batch)
        np.testing.assert_allclose(losses(model, params, batch), calm, rtol=1e-6)
        first, second = (losses(model, params, batch, train=True, key=key) for key in (1, 2))
        assert bool(jnp.any(first != calm)) == bool(jnp.any(first != second)) == drops
    assert made(folder, None).description["hidden_dropout_prob"] == 0.1
    description = made(folder, 0.25).description
    assert description["hidden_dropout_prob"] == description["attention_probs_dropout_prob"] == 0.25


def test_a_token_outside_the_vocabulary_is_not_taken_for_another(folder):
    x = tokens()
    x["input_ids"][1, 0] = 40
    model, batch = made(folder), batch_of(x)
    found = losses(model, started(model, batch), batch)
    assert np.isnan(found).tolist() == [False, True, False]


def test_under_vmap_over_clients_the_base_is_one_copy_in_shared_products(folder):
    """But for the kernels of query and value, no array of the program is as large as a kernel per client, and no
    product has the client axis as a batch axis beside a kernel of the base, which is no constant of the program."""
    clients, model = 5, made(folder)
    batch = batch_of(tokens(3, 7))
    params = jax.tree.map(lambda leaf: jnp.stack([leaf] * clients), started(model, batch))
    batches = jax.tree.map(lambda leaf: jnp.stack([leaf] * clients), batch)

    def gradient(params, batch, frozen):
        def loss(params):
            return model.apply(params, {}, batch, jax.random.key(0), True, frozen)[0].loss.sum()

        return jax.grad(loss)(params)

    traced = jax.make_jaxpr(jax.vmap(gradient, in_axes=(0, 0, None)))(params, batches, model.frozen)
    assert max((np.size(constant) for constant in traced.consts), default=0) <= 1
    products = 0
    for equation in equations(traced.jaxpr):
        shapes = [variable.aval.shape for variable in (*equation.invars, *equation.outvars)]
        assert not any(shape in ((clients, 16, 24), (clients, 40, 16)) for shape in shapes)
        if equation.primitive.name == "dot_general" and {(16, 16), (16, 24), (24, 16)} & set(shapes[:2]):
            products += 1
            assert equation.params["dimension_numbers"][1] == ((), ())
    assert products >= 2 * 6 + 1  # forward alone: six a layer and the pooler
