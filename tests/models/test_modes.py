"""Training and evaluation: whatever a network calls its flags, dropout and batch statistics are of training alone."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx

import jaxafl as afl
from jaxafl.models import Batch, from_functions, from_linen, from_nnx
from tests.variants import slow_but

FEATURES, CLASSES, KEY = 6, 3, jax.random.key(0)
TRAINING = ("train", "training", "is_training")
EVALUATION = ("deterministic", "inference", "use_running_average")


def batch(size: int = 5) -> Batch:
    x = np.random.default_rng(0).normal(size=(size, FEATURES)).astype(np.float32)
    return Batch(jnp.asarray(x), jnp.asarray(x[:, :CLASSES].argmax(1), jnp.int32), jnp.ones(size, bool))


def body(self: Any, x: Any, train: bool) -> Any:
    x = nn.BatchNorm(use_running_average=not train, momentum=0.5)(nn.Dense(8)(x))
    return nn.Dense(CLASSES)(nn.Dropout(0.5, deterministic=not train)(x))


def flagged(name: str, default: str, how: str = "argument") -> nn.Module:
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
    params, state = model.init(KEY, batch(1))
    apply = functools.partial(jax.jit(model.apply, static_argnums=4), params, state, batch())
    (one, moved), (other, _) = apply(jax.random.key(1), True), apply(jax.random.key(2), True)
    assert not np.allclose(one.loss, other.loss, atol=1e-4)
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


class Attention(nn.Module):
    @nn.compact
    def __call__(self, x: Any, train: bool) -> Any:
        y = nn.MultiHeadDotProductAttention(2, dropout_rate=0.5, deterministic=not train)(x[:, :, None] * jnp.ones(4))
        return nn.Dense(CLASSES)(y.reshape(len(x), -1))


class Several(nn.Module):
    """Layers that are told by nobody, or remade by a transform."""

    @nn.compact
    def __call__(self, x: Any, **options: Any) -> Any:
        x = nn.remat(Block)()(Block()(x))
        return nn.Dense(CLASSES)(x)


class InSetup(nn.Module):
    deterministic: bool = True

    def setup(self) -> None:
        self.layers = [nn.Dense(8), nn.Dropout(0.5, deterministic=self.deterministic), nn.Dense(CLASSES)]

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize(
    ("module", "statistics"),
    [
        (nn.Sequential([nn.Dense(8), nn.BatchNorm(), nn.Dropout(0.5), nn.Dense(CLASSES)]), True),
        pytest.param(nn.Sequential([Block(), nn.Dense(CLASSES)]), False, marks=pytest.mark.slow),
        pytest.param(Attention(), False, marks=pytest.mark.slow),
        pytest.param(Several(), False, marks=pytest.mark.slow),
        pytest.param(InSetup(), False, marks=pytest.mark.slow),
    ],
    ids=["sequential", "block", "attention", "transformed", "setup"],
)
def test_submodules_that_are_not_told_are_told(module: nn.Module, statistics: bool) -> None:
    check_modes(from_linen(module), statistics)


class Own(nn.Module):
    """Nothing that is known says which mode it is in."""

    @nn.compact
    def __call__(self, x: Any, phase: str) -> Any:
        return body(self, x, phase == "learn")


class Hard(nn.Module):
    """Parts that stay as they are."""

    of_dropout: bool = True
    of_statistics: bool = True

    @nn.compact
    def __call__(self, x: Any, train: bool = True) -> Any:
        x = nn.BatchNorm(use_running_average=self.of_statistics, momentum=0.5)(nn.Dense(8)(x))
        return nn.Dense(CLASSES)(nn.Dropout(0.5, deterministic=self.of_dropout)(x))


class Unasked(nn.Module):
    """Calls a block as it is by default."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        class Inner(nn.Module):
            @nn.compact
            def __call__(self, x: Any, train: bool = False) -> Any:
                return body(self, x, train)

        return Inner(name="inner")(x)


BOTH = {"deterministic": False, "use_running_average": False}, {"deterministic": True, "use_running_average": True}


def test_a_flag_of_another_name_is_asked_for_and_given() -> None:
    with pytest.raises(TypeError, match=r"requires 'phase'.*training={'phase': ...} and evaluation"):
        from_linen(Own())
    check_modes(from_linen(Own(), training={"phase": "learn"}, evaluation={"phase": "test"}))


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (Hard(), BOTH),
        (Hard(), ({"*/deterministic": False, "BatchNorm_?/use_running_average": False}, {"*/deterministic": True})),
        pytest.param(Unasked(), ({"train": True}, {"train": False}), marks=pytest.mark.slow),
        (Unasked(), ({"inner/train": True}, {})),
    ],
)
def test_parts_that_stay_as_they_are_can_be_told(module: nn.Module, told: Any) -> None:
    check_modes(from_linen(module, training=told[0], evaluation=told[1]))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            Hard(of_statistics=False),
            r"Dropout_0 \(Dropout\) \(rate=0.5\) is never .* deterministic is True.*training=",
        ),
        (
            Hard(of_dropout=False, of_statistics=None),
            r"dropout of Dropout_0 .* applied in evaluation too: deterministic is False",
        ),
        (
            Hard(of_dropout=None),
            r"batch statistics BatchNorm_0/mean .* never move in training: use_running_a.* True",
        ),
        (Hard(of_dropout=None, of_statistics=False), r"BatchNorm_0/mean .* of the batch in evaluation too"),
        (Unasked(), r"inner/Dropout_0 .Dropout.*: train is False in inner .Inner.*{'inner/train': True}"),
    ],
)
def test_parts_that_no_mode_reaches_are_refused_by_name(module: nn.Module, message: str) -> None:
    sim = afl.Simulation(
        afl.data.synthetic(1.0, 1.0, clients=4, max_size=40),
        from_linen(module),
        afl.Client(learning_rate=0.1, steps=2, batch_size=4),
        afl.server.fedbuff(),
        afl.clock.free_running(concurrency=2, buffer=1, durations=afl.clock.exponential(1.0)),
    )
    with pytest.raises(ValueError, match=message):
        sim.check()


@pytest.mark.slow
def test_what_is_meant_so_is_said_and_stays() -> None:
    kept = {"use_running_average": True, "deterministic": True}
    model = from_linen(Hard(), training=kept, evaluation=kept)
    params, state = model.init(KEY, batch(1))
    _, after = model.apply(params, state, batch(), KEY, True)
    jax.tree.map(np.testing.assert_array_equal, state, after)


class Path(nn.Module):
    """Leaves out some samples, by a rate and a stream that do not say so."""

    share: float = 0.5
    deterministic: bool = True

    @nn.compact
    def __call__(self, x: Any) -> Any:
        if self.deterministic or not self.share:
            return x
        return x * jax.random.bernoulli(self.make_rng("path"), 1 - self.share, (x.shape[0], 1))


class DropPath(nn.Module):
    """Its flag has a name that is not known."""

    rate: Any = 0.5
    active: bool = False

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return x * jax.random.bernoulli(self.make_rng("path"), 0.5, x.shape) if self.active else x


class Fixed(nn.Module):
    """Statistics that depend on nothing."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return x - self.variable("batch_stats", "mean", jnp.zeros, x.shape[-1]).value


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            Path(),
            r"dropout of layers_0 \(Path\) is never applied .* deterministic is True.*{'layers_0/deterministic': Fa",
        ),
        (
            Path(deterministic=False),
            r"dropout of layers_0 \(Path\) is applied in evaluation too: deterministic is False",
        ),
        (
            DropPath(),
            r"DropPath\) \(rate=0.5\) is never applied in training. No flag of a known name.*give it a rate of 0",
        ),
        (DropPath(np.float32(0.5)), r"DropPath\) \(rate=0.5\) is never applied"),
        (Fixed(), r"statistics layers_0/mean of layers_0 .Fixed. never move in training. No flag of a known name"),
    ],
)
def test_parts_of_ones_own_are_refused_too(module: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_linen(nn.Sequential([module, nn.Dense(CLASSES)])).init(KEY, batch(1))


@pytest.mark.parametrize(
    "make", [lambda told: from_linen(Hard(), training=told), lambda told: from_nnx(Nnx, training=told)]
)
def test_names_that_nothing_takes_are_refused(make: Any) -> None:
    with pytest.raises(TypeError, match="must be a dict"):
        make("deterministic")
    with pytest.raises(TypeError, match=r"takes 'determinstic'.*did you mean 'deterministic'"):
        make({**BOTH[0], "determinstic": False}).init(KEY, batch(1))


class Nnx(nnx.Module):
    """Told by a flag of its call, by an attribute, or by `train()` and `eval()` alone."""

    def __init__(self, rngs: Any, rate: float = 0.5) -> None:
        self.first, self.last = nnx.Linear(FEATURES, 8, rngs=rngs), nnx.Linear(8, CLASSES, rngs=rngs)
        self.norm, self.dropout = nnx.BatchNorm(8, momentum=0.5, rngs=rngs), nnx.Dropout(rate, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.last(self.dropout(self.norm(self.first(x))))

    def told(self, x: Any, train: bool) -> Any:
        x = self.norm(self.first(x), use_running_average=not train)
        return self.last(self.dropout(x, deterministic=not train))


class NnxTraining(Nnx):
    def __call__(self, x: Any, training: bool = False) -> Any:
        return self.told(x, training)


class NnxDeterministic(Nnx):
    def __call__(self, x: Any, *, deterministic: bool = True) -> Any:
        return self.told(x, not deterministic)


class NnxAttribute(Nnx):
    def __init__(self, rngs: Any) -> None:
        super().__init__(rngs)
        self.is_training = False

    def __call__(self, x: Any) -> Any:
        return self.told(x, self.is_training)


class NnxOwn(Nnx):
    def __call__(self, x: Any, phase: str) -> Any:
        return self.told(x, phase == "learn")


class NnxHard(Nnx):
    def __call__(self, x: Any) -> Any:
        return self.told(x, False)


class NnxWild(Nnx):
    def __call__(self, x: Any) -> Any:
        return self.told(x, True)


class NnxStreams(nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.layer, self.dropout = nnx.Linear(FEATURES, CLASSES, rngs=rngs), nnx.Dropout(0.5)

    def __call__(self, x: Any, *, rngs: Any) -> Any:
        return self.dropout(self.layer(x), rngs=rngs)


@pytest.mark.parametrize(
    "module", slow_but([Nnx, NnxTraining, NnxDeterministic, NnxAttribute, NnxStreams], NnxDeterministic)
)
def test_flags_of_nnx_modules_are_known_by_their_names(module: Any) -> None:
    check_modes(from_nnx(module), module is not NnxStreams)


@pytest.mark.slow
def test_an_nnx_sequence_and_copies_of_a_module_have_random_streams() -> None:
    def sequence(rngs: Any) -> Any:
        layers = nnx.BatchNorm(FEATURES, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)
        return nnx.Sequential(*layers, nnx.Linear(FEATURES, CLASSES, rngs=rngs))

    class Copies(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            made = nnx.split_rngs(splits=2)(nnx.vmap(lambda rngs: nnx.Dropout(0.5, rngs=rngs), in_axes=0))
            self.layers, self.last = made(rngs), nnx.Linear(FEATURES, CLASSES, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            scan = nnx.scan(lambda x, layer: layer(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
            return self.last(scan(x, self.layers))

    check_modes(from_nnx(sequence))
    check_modes(from_nnx(Copies), statistics=False)


def test_functions_that_cannot_be_called_as_they_will_be_are_refused() -> None:
    module = nnx.Linear(FEATURES, CLASSES, rngs=nnx.Rngs(0))
    for make, message in (
        (lambda: from_nnx(module), r"made already; give a function .* lambda rngs: Linear"),
        (lambda: from_linen(nn.Dense(3), 3), "needs a function as loss"),
        (lambda: from_linen(nn.Dense(3), "hubert"), "did you mean 'huber'"),
        (lambda: from_linen(nn.Dense(3), lambda logits: logits), r"loss\(predictions, batch\), but"),
        (lambda: from_linen(nn.Dense(3), optax.losses.make_fenchel_young_loss), r"loss\(predictions, targets\), but"),
        (lambda: from_nnx(lambda: module), r"called as make_module\(rngs\), but <lambda> takes \(\)"),
        (lambda: from_functions(lambda key: {}, lambda params, batch, key: 0.0), r"init\(key, batch\), but .* \(key\)"),
        (lambda: from_functions(lambda key, batch: {}, lambda params, batch: 0.0), r"loss\(params, batch, key\), but"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            make()


def test_nnx_modules_are_told_what_they_ask_for_or_refused_by_name() -> None:
    check_modes(from_nnx(NnxOwn, training={"phase": "learn"}, evaluation={"phase": "test"}))
    with pytest.raises(TypeError, match="requires 'phase'"):
        from_nnx(NnxOwn)
    for module, message in ((NnxHard, "dropout of dropout .*never applied in training"), (NnxWild, "evaluation too")):
        with pytest.raises(ValueError, match=message):
            from_nnx(module).init(KEY, batch(1))
    with pytest.raises(ValueError, match=r"batch statistics norm/mean of norm .BatchNorm. never move"):
        from_nnx(lambda rngs: NnxHard(rngs, rate=0.0)).init(KEY, batch(1))


class Streams(nn.Module):
    """Draws from two streams that have names of their own."""

    @nn.compact
    def __call__(self, x: Any, train: bool) -> Any:
        y = nn.Dense(CLASSES)(x)
        if train:
            y += jax.random.normal(self.make_rng("noise"), y.shape) * jax.random.uniform(self.make_rng("gate"), y.shape)
        return y


def test_random_streams_of_all_names_are_given() -> None:
    check_modes(from_linen(Streams()), statistics=False)


class AttentionMask(nn.Module):
    """Its mask is no mask of samples."""

    @nn.compact
    def __call__(self, x: Any, mask: Any = None) -> Any:
        y = nn.MultiHeadDotProductAttention(2)(x[:, :, None] * jnp.ones(4), mask=mask)
        return nn.Dense(CLASSES)(y.reshape(len(x), -1))


@pytest.mark.slow
def test_a_mask_of_attention_is_no_mask_of_samples() -> None:
    model = from_linen(AttentionMask())
    params, state = model.init(KEY, batch(1))
    padded = batch()._replace(mask=jnp.arange(5) < 3)
    outputs, _ = model.apply(params, state, padded, KEY, True)
    whole, _ = model.apply(params, state, batch(), KEY, True)
    np.testing.assert_array_equal(outputs.loss[:3], whole.loss[:3])


def test_a_loss_of_ones_own_is_told_the_mode_if_it_asks() -> None:
    def loss(params: Any, batch: Batch, key: Any, train: bool) -> Any:
        x = jnp.where(jax.random.bernoulli(key, 0.5, batch.x.shape), batch.x, 0) if train else batch.x
        return afl.models.softmax_cross_entropy(x @ params, batch)

    check_modes(from_functions(lambda key, batch: jnp.ones((FEATURES, CLASSES)) * jnp.arange(3), loss), False)
