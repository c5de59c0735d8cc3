"""Models from Linen, NNX and plain functions: modes, padding, random streams, frozen layers, wrong options."""

from __future__ import annotations

import functools
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

import jaxafl as afl
from jaxafl.models import Batch, Outputs, from_functions, from_linen, from_nnx, mlp, softmax_cross_entropy
from tests.variants import slow_but

FEATURES, CLASSES, KEY = 6, 3, jax.random.key(0)
TRAINING = ("train", "training", "is_training")
EVALUATION = ("deterministic", "inference", "use_running_average")


def batch_of(size: int = 48, seed: int = 0) -> Batch:
    """Classes told apart by the largest of their first inputs."""
    x = np.random.default_rng(seed).normal(size=(size, FEATURES)).astype(np.float32)
    return Batch(jnp.asarray(x), jnp.asarray(x[:, :CLASSES].argmax(1), jnp.int32), jnp.ones(size, bool))


class LinenNet(nn.Module):
    """Dropout and batch normalisation that leaves padding out."""

    rate: float = 0.2

    @nn.compact
    def __call__(self, x: Any, train: bool, mask: Any = None) -> Any:
        x = nn.Dense(16)(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.8)(x, mask=None if mask is None else mask[:, None])
        return nn.Dense(CLASSES)(nn.Dropout(self.rate, deterministic=not train)(nn.relu(x)))


class NnxNet(nnx.Module):
    def __init__(self, rngs: Any, rate: float = 0.2) -> None:
        self.layers = nnx.List([nnx.Linear(FEATURES, 16, rngs=rngs), nnx.Linear(16, CLASSES, rngs=rngs)])
        self.norm, self.dropout = nnx.BatchNorm(16, momentum=0.8, rngs=rngs), nnx.Dropout(rate, rngs=rngs)

    def __call__(self, x: Any, mask: Any = None) -> Any:
        x = self.norm(self.layers[0](x), mask=None if mask is None else mask[:, None])
        return self.layers[1](self.dropout(nnx.relu(x)))


def start(key: Any, batch: Batch) -> Any:
    return {"w": 0.1 * jax.random.normal(key, (batch.x.shape[-1], CLASSES)), "scale": 1.0}


def loss(params: Any, batch: Batch, key: Any) -> Outputs:
    return softmax_cross_entropy(batch.x @ params["w"] * params["scale"], batch)


MODELS = {
    "linen": from_linen(LinenNet()),
    "nnx": from_nnx(NnxNet),
    "functions": from_functions(start, loss),
    "mlp": mlp(CLASSES, hidden=(16,)),
}
STILL = MODELS | {"linen": from_linen(LinenNet(rate=0.0)), "nnx": from_nnx(lambda rngs: NnxNet(rngs, rate=0.0))}


def mean_loss(params: Any, model: Any, state: Any, batch: Batch, key: Any) -> Any:
    outputs, state = model.apply(params, state, batch, key, True)
    return jnp.sum(outputs.loss) / jnp.sum(batch.mask), state


@pytest.mark.parametrize("name", slow_but(MODELS, "mlp"))
def test_gradient_descent_learns(name: str) -> None:
    model, batch = MODELS[name], batch_of()
    params, state = model.init(KEY, jax.tree.map(lambda leaf: leaf[:1], batch))

    def step(carry: Any, key: Any) -> Any:
        gradient, state = jax.grad(mean_loss, has_aux=True)(carry[0], model, carry[1], batch, key)
        return (jax.tree.map(lambda p, g: p - 0.5 * g, carry[0], gradient), state), None

    trained, new = jax.jit(lambda *start: jax.lax.scan(step, start, jax.random.split(KEY, 60))[0])(params, state)
    apply = jax.jit(model.apply, static_argnums=4)
    before, (after, same) = (apply(*one, batch, KEY, False) for one in ((params, state), (trained, new)))
    assert after.loss.mean() < 0.5 * before[0].loss.mean() and after.metrics["accuracy"].mean() > 0.85
    jax.tree.map(np.testing.assert_array_equal, new, same)


@pytest.mark.parametrize("name", slow_but(MODELS, "mlp"))
def test_padding_influences_nothing(name: str) -> None:
    model, full = STILL[name], batch_of(8)
    params, state = model.init(KEY, full)
    gradient = jax.jit(jax.value_and_grad(mean_loss, has_aux=True), static_argnums=1)
    apply = jax.jit(model.apply, static_argnums=4)
    expected = gradient(params, model, state, full, KEY)
    for filler in (0.0, 1e3):
        x = jnp.concatenate([full.x, jnp.full((3, FEATURES), filler)])
        padded = Batch(x, jnp.concatenate([full.y, jnp.full(3, 2, jnp.int32)]), jnp.arange(11) < 8)
        actual = gradient(params, model, state, padded, KEY)
        jax.tree.map(lambda a, e: np.testing.assert_allclose(a, e, rtol=1e-3, atol=1e-5), actual, expected)
        outputs, _ = apply(params, state, padded, KEY, True)
        assert not outputs.loss[8:].any() and not outputs.metrics["accuracy"][8:].any()


@pytest.mark.parametrize("name", MODELS)
def test_initial_parameters_follow_the_key_and_descriptions_are_json(name: str) -> None:
    model, batch = MODELS[name], batch_of(1)
    init = jax.jit(model.init)
    first, again, other = (init(jax.random.key(seed), batch)[0] for seed in (0, 0, 1))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert any(not np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (first, other)), strict=True))
    assert "network" in json.loads(json.dumps(model.description))
    assert {leaf.dtype for leaf in jax.tree.leaves(first)} == {np.dtype(np.float32)}
    with jax.enable_x64(True):
        wide = jax.eval_shape(model.init, KEY, batch)[0]
    assert {leaf.dtype for leaf in jax.tree.leaves(wide)} == {np.dtype(np.float64)}


def test_names_options_and_losses_of_the_user() -> None:
    assert from_linen(LinenNet(rate=0.4)).description == {"network": "LinenNet", "rate": 0.4}
    assert from_linen(nn.Dense(3), name="probe").name == "probe" and MODELS["functions"].name == "loss"
    assert repr(mlp(3, hidden=(7,))) == "Model(name=mlp, network=MLP, num_classes=3, hidden=[7])"
    zeros = nn.Dense(1, kernel_init=nn.initializers.zeros_init())
    model = from_linen(zeros, loss=lambda predictions, batch: jnp.square(predictions[:, 0] - batch.y))
    batch = Batch(jnp.ones((2, 3)), jnp.asarray([2.0, -1.0]), jnp.ones(2, bool))
    outputs, _ = model.apply(*model.init(KEY, batch), batch, KEY, True)
    np.testing.assert_allclose(outputs.loss, [4.0, 1.0])
    assert outputs.metrics == {}


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: from_linen(nn.Dense), TypeError, "from_linen.*Dense"),
        (lambda: from_nnx(lambda rngs: jnp.ones(3)), TypeError, "from_nnx"),
        (lambda: from_linen(nn.Dense(3), 3), ValueError, "loss"),
        (lambda: from_linen(nn.Dense(3), "hubert"), ValueError, "did you mean 'huber'"),
        (lambda: from_linen(nn.Dense(3), frozen=lambda path: False), ValueError, "frozen selects none"),
        (lambda: from_linen(Hard(), training={"determinstic": False}), ValueError, "did you mean 'deterministic'"),
        (lambda: from_nnx(NnxNet, training={"determinstic": False}), ValueError, "did you mean 'deterministic'"),
        (lambda: from_linen(Own()), TypeError, "phase"),
        (lambda: from_linen(nn.Dense(1), lambda predictions, batch: predictions), ValueError, "loss.*per example"),
        (lambda: from_functions(start, lambda *_: jnp.zeros(())), ValueError, "loss.*per example"),
    ],
)
def test_wrong_options(make: Any, error: Any, message: str) -> None:
    batch = batch_of(4)
    with pytest.raises(error, match=message) as raised:
        model = make()
        params, state = model.init(KEY, batch)
        model.bound(model.held(batch))(params, state, batch, KEY, True)
    notes = getattr(raised.value, "__notes__", [])
    assert "from_" in str(raised.value) or any(note.startswith("raised in the model") for note in notes)


def body(self: Any, x: Any, train: bool) -> Any:
    x = nn.BatchNorm(use_running_average=not train, momentum=0.5)(nn.Dense(8)(x))
    return nn.Dense(CLASSES)(nn.Dropout(0.5, deterministic=not train)(x))


def flagged(name: str, default: str, how: str) -> nn.Module:
    """A network with one flag, an argument of its call (by position or by keyword) or an attribute."""
    value, made = ("not " * (name in EVALUATION)) + f"bool({name})", {"body": body, "nn": nn}
    if how == "attribute":
        code = f"class Net(nn.Module):\n  {name}: bool | None{default or '=None'}\n  @nn.compact\n"
        code += f"  def __call__(self, x): return body(self, x, {value.replace(name, 'self.' + name)})"
    else:
        star = "*, " if how == "keyword" else ""
        code = f"class Net(nn.Module):\n  @nn.compact\n  def __call__(self, x, {star}{name}{default}): "
        code += f"return body(self, x, {value})"
    exec(f"from __future__ import annotations\n{code}", made)
    return made["Net"]()


def check_modes(model: Any, statistics: bool = True) -> None:
    """Dropout follows the key and batch statistics move, both in training only."""
    params, state = model.init(KEY, batch_of(1))
    apply = functools.partial(jax.jit(model.apply, static_argnums=4), params, state, batch_of(5))
    (one, moved), (other, _), (again, _) = (apply(jax.random.key(seed), True) for seed in (1, 2, 1))
    assert not np.allclose(one.loss, other.loss, atol=1e-4) and np.array_equal(one.loss, again.loss)
    (one, kept), (other, _) = apply(jax.random.key(1), False), apply(jax.random.key(2), False)
    np.testing.assert_array_equal(one.loss, other.loss)
    jax.tree.map(np.testing.assert_array_equal, kept, state)
    if statistics:
        assert all(not np.allclose(a, b) for a, b in zip(*map(jax.tree.leaves, (state, moved)), strict=True))


@pytest.mark.parametrize("how", slow_but(("argument", "keyword", "attribute"), "argument", "attribute"))
@pytest.mark.parametrize("name", slow_but(TRAINING + EVALUATION, "deterministic"))
def test_flags_of_linen_modules_are_known_by_their_names(name: str, how: str) -> None:
    for default in ("=True",) if name == "deterministic" else ("=False", "=True", "=None", ""):
        check_modes(from_linen(flagged(name, default, how)))


class Block(nn.Module):
    """Takes its flag from its caller."""

    @nn.compact
    def __call__(self, x: Any, deterministic: bool | None = None) -> Any:
        return nn.Dropout(0.5)(nn.Dense(8)(x), deterministic=deterministic)


class Several(nn.Module):
    """Layers that are told by nobody, or remade by a transform."""

    @nn.compact
    def __call__(self, x: Any, **options: Any) -> Any:
        return nn.Dense(CLASSES)(nn.remat(Block)()(Block()(x)))


class Own(nn.Module):
    """Nothing that is known says which mode it is in."""

    @nn.compact
    def __call__(self, x: Any, phase: str) -> Any:
        return body(self, x, phase == "learn")


class Hard(nn.Module):
    """Parts that stay as they are, and one that is called as it is by default."""

    @nn.compact
    def __call__(self, x: Any, train: bool = True) -> Any:
        x = nn.BatchNorm(use_running_average=True, momentum=0.5)(nn.Dense(8)(x))
        return nn.Dense(CLASSES)(nn.Dropout(0.5, deterministic=True)(x))


class Streams(nn.Module):
    """Draws from two streams with other names than dropout."""

    @nn.compact
    def __call__(self, x: Any, train: bool) -> Any:
        y = nn.Dense(CLASSES)(x)
        if train:
            y += jax.random.normal(self.make_rng("noise"), y.shape) * jax.random.uniform(self.make_rng("gate"), y.shape)
        return y


SEQUENCE = nn.Sequential([nn.Dense(8), nn.BatchNorm(), nn.Dropout(0.5), nn.Dense(CLASSES)])
PATTERNS = {"*/deterministic": False, "BatchNorm_?/use_running_average": False}, {"*/deterministic": True}
BOTH = {"deterministic": False, "use_running_average": False}, {"deterministic": True, "use_running_average": True}


@pytest.mark.parametrize(
    ("module", "told", "statistics"),
    [
        (SEQUENCE, ({}, {}), True),
        pytest.param(Several(), ({}, {}), False, marks=pytest.mark.slow),
        (Streams(), ({}, {}), False),
        (Own(), ({"phase": "learn"}, {"phase": "test"}), True),
        (Hard(), BOTH, True),
        (Hard(), PATTERNS, True),
    ],
)
def test_submodules_get_their_flags_by_name_or_from_the_user(module: nn.Module, told: Any, statistics: bool) -> None:
    check_modes(from_linen(module, training=told[0], evaluation=told[1]), statistics)


@pytest.mark.slow
def test_a_constant_flag_stays_and_the_users_module_is_not_changed() -> None:
    model = from_linen(Hard())
    params, state = model.init(KEY, batch_of(1))
    jax.tree.map(np.testing.assert_array_equal, state, model.apply(params, state, batch_of(5), KEY, True)[1])
    check_modes(from_linen(Hard(), training=BOTH[0], evaluation=BOTH[1]))
    assert SEQUENCE.layers[2].deterministic is None and SEQUENCE.layers[1].use_running_average is None


class Told(nnx.Module):
    """Told by a flag of its call, by an attribute, or by `train()` and `eval()` alone."""

    def __init__(self, rngs: Any) -> None:
        self.first, self.last = nnx.Linear(FEATURES, 8, rngs=rngs), nnx.Linear(8, CLASSES, rngs=rngs)
        self.norm, self.dropout = nnx.BatchNorm(8, momentum=0.5, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)
        self.is_training = False

    def told(self, x: Any, train: bool) -> Any:
        x = self.norm(self.first(x), use_running_average=not train)
        return self.last(self.dropout(x, deterministic=not train))


class NnxDeterministic(Told):
    def __call__(self, x: Any, *, deterministic: bool = True) -> Any:
        return self.told(x, not deterministic)


class NnxAttribute(Told):
    def __call__(self, x: Any) -> Any:
        return self.told(x, self.is_training)


class NnxOwn(Told):
    def __call__(self, x: Any, phase: str) -> Any:
        return self.told(x, phase == "learn")


class NnxStreams(nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.layer, self.dropout = nnx.Linear(FEATURES, CLASSES, rngs=rngs), nnx.Dropout(0.5)

    def __call__(self, x: Any, *, rngs: Any) -> Any:
        return self.dropout(self.layer(x), rngs=rngs)


def nnx_sequence(rngs: Any) -> Any:
    layers = nnx.BatchNorm(FEATURES, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)
    return nnx.Sequential(*layers, nnx.Linear(FEATURES, CLASSES, rngs=rngs))


NNX = [NnxNet, NnxDeterministic, NnxAttribute, NnxOwn, NnxStreams, nnx_sequence]


@pytest.mark.parametrize("module", slow_but(NNX, NnxDeterministic, NnxOwn))
def test_flags_of_nnx_modules_are_known_by_their_names_or_given(module: Any) -> None:
    told = {"training": {"phase": "learn"}, "evaluation": {"phase": "test"}} if module is NnxOwn else {}
    check_modes(from_nnx(module, **told), module is not NnxStreams)


@pytest.mark.slow
def test_a_mask_of_attention_is_no_mask_of_samples() -> None:
    class AttentionMask(nn.Module):
        @nn.compact
        def __call__(self, x: Any, mask: Any = None) -> Any:
            y = nn.MultiHeadDotProductAttention(2)(x[:, :, None] * jnp.ones(4), mask=mask)
            return nn.Dense(CLASSES)(y.reshape(len(x), -1))

    model = from_linen(AttentionMask())
    params, state = model.init(KEY, batch_of(1))
    outputs, _ = model.apply(params, state, batch_of(5)._replace(mask=jnp.arange(5) < 3), KEY, True)
    assert outputs.loss[:3].all() and not outputs.loss[3:].any()


class Encoder(nn.Module):
    @nn.compact
    def __call__(self, x: Any, train: bool) -> Any:
        return nn.BatchNorm(use_running_average=not train)(nn.Dense(4)(x))


class Encoded(nn.Module):
    @nn.compact
    def __call__(self, x: Any, train: bool, mask: Any = None) -> Any:
        x = Encoder(name="encoder")(x, train)
        x = nn.BatchNorm(use_running_average=not train, use_scale=False, use_bias=False, name="outer")(x)
        return nn.Dense(2, name="head")(x)


class NnxEncoded(nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.encoder = nnx.Sequential(nnx.Linear(3, 4, rngs=rngs), nnx.BatchNorm(4, rngs=rngs))
        self.outer = nnx.BatchNorm(4, use_bias=False, use_scale=False, rngs=rngs)
        self.head = nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.head(self.outer(self.encoder(x)))


ENCODED: dict[str, Any] = {
    "linen": lambda frozen=None: from_linen(Encoded(), frozen=frozen),
    "nnx": lambda frozen=None: from_nnx(NnxEncoded, frozen=frozen),
}


def encoder(path: str) -> bool:
    return path.startswith("encoder/")


def simulation(model: Any) -> Any:
    rng = np.random.default_rng(0)
    x, y, clients = rng.normal(3, 2, (32, 3)).astype(np.float32), rng.integers(0, 2, 32), np.repeat(np.arange(4), 8)
    data = afl.data.from_arrays(x, y, clients, test_fraction=0.25)
    client = afl.Client(steps=2, batch_size=4, learning_rate=0.1)
    return afl.Simulation(data, model, client, afl.server.fedavg(), afl.clock.synchronous())


@pytest.mark.parametrize("adapter", slow_but(ENCODED, "linen"))
def test_training_of_a_frozen_layer_normalises_by_its_statistics(adapter: str) -> None:
    sim = simulation(ENCODED[adapter](encoder))
    batch = Batch(sim.data.x_test[:4], sim.data.y_test[:4], np.ones(4, bool))
    (params, state), held = sim.model.init(KEY, batch), sim.model.held(batch)
    new = sim.model.apply(params, state, batch, KEY, True, held)[1]
    assert jax.tree.structure(new) == jax.tree.structure(state)
    kernel = next(np.asarray(leaf) for leaf in jax.tree.leaves(held.params) if leaf.ndim == 2)
    whitened = (np.asarray(batch.x) @ kernel) / np.sqrt(1 + 1e-5)
    np.testing.assert_allclose(jax.tree.leaves(new)[0], 0.01 * whitened.mean(0), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("adapter", ENCODED)
def test_statistics_of_frozen_layers_neither_move_nor_are_sent_and_can_be_given(adapter: str) -> None:
    sim = simulation(ENCODED[adapter](encoder))
    moved = jax.tree.leaves(sim.train(3, eval_every=3).model_state)
    assert [leaf.shape for leaf in moved] == [(4,), (4,)] and np.abs(moved[0]).max() > 0.01  # of the outer layer
    assert set(sim.run(1, eval_every=1).bytes_up.values) == {4 * 4 * (4 * 2 + 2 + 8)}  # the head and 4 features
    whole = simulation(ENCODED[adapter]()).train(3, eval_every=3)
    starts = [afl.models.initialised(ENCODED[adapter](one), whole.params, whole.model_state) for one in (encoder, None)]
    losses = [simulation(model).run(1).loss[0] for model in starts]
    np.testing.assert_allclose(*losses, rtol=1e-6)


def test_a_network_with_too_few_outputs_is_refused_before_compilation() -> None:
    client, clock = afl.Client(learning_rate=0.1, steps=1, batch_size=4), afl.clock.synchronous(cohort=2)
    x, y = np.zeros((8, 3), np.float32), np.arange(8) % 4  # the test set lacks the largest labels
    data = afl.data.from_arrays(x, y, np.arange(8) // 4, x_test=x[:2], y_test=y[:2])
    for one in (data, data.with_validation(0.25)):
        with pytest.raises(ValueError, match="2 classes"):
            afl.Simulation(one, from_linen(nn.Dense(2)), client, afl.server.fedavg(), clock).check()

    def coarse(logits: Any, batch: Batch) -> Any:  # a loss that changes the labels may
        return softmax_cross_entropy(logits, batch._replace(y=batch.y // 2))

    afl.Simulation(data, from_linen(nn.Dense(2), coarse), client, afl.server.fedavg(), clock).check()
