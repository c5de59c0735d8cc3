"""Models from PyTorch modules against PyTorch itself, step by step."""

from __future__ import annotations

import copy
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxafl as afl
from jaxafl.models import Batch
from tests.models import torch_networks

if missing := [one for one in ("torch", "torchax") if importlib.util.find_spec(one) is None]:
    pytest.skip(f"needs {missing[0]}, which the extra torch installs", allow_module_level=True)

import torch
import torch.nn.functional as F
from torch import nn

from tests.variants import slow_but

pytestmark = pytest.mark.extras
KEY = jax.random.key(0)
RATE = 0.1


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.embedding = nn.Embedding(11, 5)
        self.cells = kind(5, 6, 2, batch_first=True, **options)
        self.head = nn.LazyLinear(11)
        self(torch.zeros(1, 2, dtype=torch.long))

    def forward(self, x):
        return self.head(self.cells(self.embedding(x))[0])


class Transformer(nn.Module):
    """Its head shares the embedding, which has a row without gradient."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8, padding_idx=0)
        self.register_buffer("position", torch.sin(torch.arange(7.0)[:, None] * torch.arange(8.0)))
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        causal = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.encoder(self.embedding(x) + self.position, mask=causal))


def frozen_body():
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))
    net[1].requires_grad_(False)
    return net


IMAGES = ((28, 28, 1), 10)
TOKENS = ((7,), 11)
NETWORKS = {
    "mlp": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.GELU(), nn.Linear(16, 10)), IMAGES),
    "resnet": (lambda: torch_networks.network(torch, "resnet20"), ((8, 8, 3), 10)),
    "lstm": (lambda: Recurrent(nn.LSTM, bidirectional=True), TOKENS),
    "gru": (lambda: Recurrent(nn.GRU), TOKENS),
    "rnn": (lambda: Recurrent(nn.RNN, bias=False), TOKENS),
    "transformer": (Transformer, TOKENS),
    "frozen": (frozen_body, IMAGES),
}


def network(name):
    torch.manual_seed(0)
    make, (shape, classes) = NETWORKS[name]
    return make(), shape, classes


def batches(shape, classes, steps=4, size=6, seed=0):
    rng = np.random.default_rng(seed)
    tokens = len(shape) == 1
    for _ in range(steps):
        x = rng.integers(0, classes, (size, *shape)) if tokens else rng.normal(size=(size, *shape)).astype("f")
        yield Batch(
            jnp.asarray(x), jnp.asarray(rng.integers(0, classes, x.shape if tokens else size)), jnp.ones(size, bool)
        )


def in_torch(x):
    values = torch.tensor(np.asarray(x))
    return values.permute(0, 3, 1, 2).contiguous() if values.ndim == 4 else values


def steps_in_torch(net, given):
    """Returns losses of steps of SGD and the trained parameters, frozen ones, and buffers, by PyTorch."""
    net = copy.deepcopy(net).train()
    optimizer = torch.optim.SGD([one for one in net.parameters() if one.requires_grad], RATE)
    losses = []
    for batch in given:
        optimizer.zero_grad()
        logits = net(in_torch(batch.x))
        labels = torch.tensor(np.asarray(batch.y)).long()
        loss = F.cross_entropy(logits.flatten(0, -2), labels.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, net


def steps_in_jax(model, given):
    given = list(given)
    params, state = model.init(KEY, jax.tree.map(lambda leaf: leaf[:1], given[0]))
    apply = model.bound(model.held(given[0]))

    @jax.jit
    def step(params, state, batch):
        def mean(params):
            outputs, new = apply(params, state, batch, KEY, True)
            return outputs.loss.sum() / batch.mask.sum(), new

        (loss, state), gradient = jax.value_and_grad(mean, has_aux=True)(params)
        return jax.tree.map(lambda one, slope: one - RATE * slope, params, gradient), state, loss

    losses = []
    for batch in given:
        params, state, loss = step(params, state, batch)
        losses.append(float(loss))
    return losses, params, state, jax.jit(apply, static_argnums=4)


@pytest.mark.parametrize("name", slow_but(NETWORKS, "frozen"))
def test_losses_parameters_and_statistics_are_those_of_pytorch_step_by_step(name):
    net, shape, classes = network(name)
    model = afl.models.from_torch(net, reset=False)
    losses, params, state, apply = steps_in_jax(model, batches(shape, classes))
    expected, trained = steps_in_torch(net, batches(shape, classes))
    np.testing.assert_allclose(losses, expected, rtol=2e-5)
    tensors = trained.state_dict()
    for path, value in (params | state).items():
        np.testing.assert_allclose(value, tensors[path].numpy(), rtol=2e-3, atol=3e-5, err_msg=path)
    assert set(params) == {path for path, one in net.named_parameters() if one.requires_grad}
    assert set(state) == {path for path, _ in net.named_buffers() if path.endswith(("running_mean", "running_var"))}
    batch = next(batches(shape, classes, seed=1))
    with torch.no_grad():
        logits = trained.eval()(in_torch(batch.x)).flatten(0, -2)
    slow = F.cross_entropy(logits, torch.tensor(np.asarray(batch.y)).long().flatten(), reduction="none").numpy()
    outputs, same = apply(params, state, batch, KEY, False)
    np.testing.assert_allclose(outputs.loss, slow.reshape(len(batch.mask), -1).mean(1), rtol=1e-3, atol=1e-4)
    assert all(np.array_equal(same[path], state[path]) for path in state)
    predictions = model.outputs(params, batch.x, state)
    np.testing.assert_allclose(np.asarray(predictions).reshape(logits.shape), logits, atol=1e-3)


@pytest.mark.parametrize("name", [pytest.param("resnet", marks=pytest.mark.slow), "frozen"])
def test_padding_changes_neither_gradients_nor_statistics(name):
    net, shape, classes = network(name)
    model = afl.models.from_torch(net, reset=False)
    given = next(batches(shape, classes, size=4))
    padded = Batch(*(jnp.concatenate([leaf, leaf[:2]]) for leaf in given[:2]), jnp.arange(6) < 4)
    plain, other = (steps_in_jax(model, [one])[:3] for one in (given, padded))
    for mine, theirs in zip(jax.tree.leaves(plain), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)


class Made(nn.Module):
    """A module whose forward is given, with a few parts for it."""

    def __init__(self, forward):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(3))
        self.constant = torch.tensor([1.0, 2.0, 3.0])
        self.made = forward

    def forward(self, x):
        return self.made(self, x)


ROWS = Batch(
    jnp.asarray(np.random.default_rng(3).normal(size=(6, 3)).astype("f")), jnp.arange(6) % 3, jnp.ones(6, bool)
)


def moving_mean(net, x):
    with torch.no_grad():
        net.mean.mul_(0.5).add_(0.5 * x.mean(0))
    return net.linear(x - net.mean)


def without_gradient(net, x):
    with torch.no_grad():
        features = net.linear(x)
        rows = net.linear.weight[0]
    return net.linear(features) + rows


def clamped(net, x):
    features = net.linear(x)
    with torch.no_grad():
        features.clamp_(min=0)
    return features * features


def filled(net, x):
    rows = net.linear(x)
    rows[0].zero_()
    rows[1].fill_(0.5)
    rows[:, 2] = net.linear(x)[:, 1]
    return rows


ORDINARY = {
    "tensors made in forward": lambda net, x: net.linear(x) + torch.zeros(3) + torch.arange(3) + net.constant,
    "device": lambda net, x: net.linear(x.to("cpu")) + torch.ones(3, device=x.device),
    "no_grad": without_gradient,
    "in place": lambda net, x: net.linear(x).mul_(2).add_(1),
    "in place without gradient": clamped,
    "cosine": lambda net, x: F.cosine_similarity(net.linear(x)[:, None], net.linear.weight[None], dim=2),
    "mean of a bag": lambda net, x: F.embedding_bag((x > 0).long(), net.linear.weight, mode="mean", padding_idx=0),
    "maximum of a bag": lambda net, x: F.embedding_bag((x > 0).long(), net.linear.weight, mode="max", padding_idx=1),
    "moving buffer": moving_mean,
    "if on a constant": lambda net, x: net.linear(x) if (net.mean == 0).all() and torch.ones(2).sum() > 1 else x,
    "write into a view": lambda net, x: net.linear(x).clone().index_fill_(1, torch.tensor([0]), 0.5),
    "fill a view": filled,
    "where": lambda net, x: torch.where(net.linear(x) > 0, net.linear(x), 0.1 * x),
}


@pytest.mark.parametrize("name", slow_but(ORDINARY, "moving buffer", "fill a view", "where"))
def test_gradients_of_ordinary_code_are_those_of_pytorch(name):
    net = Made(ORDINARY[name])
    losses, params, state, _ = steps_in_jax(afl.models.from_torch(net, reset=False), [ROWS] * 3)
    expected, trained = steps_in_torch(net, [ROWS] * 3)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for path, value in (params | state).items():
        np.testing.assert_allclose(value, trained.state_dict()[path].detach().numpy(), rtol=1e-4, atol=1e-6)
    assert set(state) == ({"mean"} if name == "moving buffer" else set())


@pytest.mark.slow
def test_dropout_and_noise_follow_the_key_in_training_only():
    net = Made(
        lambda net, x: F.dropout(net.linear(x), 0.5, net.training) + (torch.rand(3) if net.training else 0)
    )  # which PyTorch would draw from its own stream
    model = afl.models.from_torch(net)
    params, state = model.init(KEY, ROWS)
    apply = model.bound(model.held(ROWS))
    one, again, other = (apply(params, state, ROWS, jax.random.key(seed), True)[0].loss for seed in (0, 0, 1))
    assert np.array_equal(one, again) and not np.allclose(one, other)
    still, too = (apply(params, state, ROWS, jax.random.key(seed), False)[0].loss for seed in (0, 1))
    assert np.array_equal(still, too)


@pytest.mark.slow
def test_every_seed_draws_by_reset_parameters_or_keeps_the_values_of_the_module():
    net = nn.Sequential(nn.Linear(50, 40), nn.LayerNorm(40), nn.Linear(40, 3, bias=False))
    net.scale = nn.Parameter(torch.full((3,), 2.0))
    given = Batch(jnp.ones((1, 50)), jnp.zeros(1, int), jnp.ones(1, bool))
    model = afl.models.from_torch(net)
    one, again, other = (model.init(jax.random.key(seed), given)[0] for seed in (0, 0, 1))
    assert all(np.array_equal(one[path], again[path]) for path in one)
    assert not np.array_equal(one["0.weight"], other["0.weight"]) and not np.array_equal(one["0.bias"], other["0.bias"])
    assert 0.98 * 50**-0.5 < np.abs(one["0.weight"]).max() <= 50**-0.5
    np.testing.assert_array_equal(one["1.weight"], np.ones(40))
    np.testing.assert_array_equal(one["scale"], [2, 2, 2])
    assert "1 of 6 parameters of the module, for every seed" in model.description["initial"]
    before = net[0].weight.detach().clone()
    kept = afl.models.from_torch(net, reset=False)
    with torch.no_grad():
        net[0].weight.zero_()
    np.testing.assert_array_equal(kept.init(KEY, given)[0]["0.weight"], before)
    embedding = afl.models.from_torch(nn.Embedding(30, 20, padding_idx=0))
    rows = embedding.init(KEY, given._replace(x=jnp.zeros((1, 2), int)))[0]["weight"]
    assert not rows[0].any() and rows[1:].all()


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.sign(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def counted(net, x):
    net.count += 1
    return net.linear(x)


def changed_weight(net, x):
    with torch.no_grad():
        net.linear.weight.mul_(0.9)
    return net.linear(x)


IMPOSSIBLE = {
    "if on a tensor": (lambda net, x: net.linear(x) if x.sum() > 0 else x, "concrete value"),
    "generator": (lambda net, x: net.linear(x) + torch.rand(3, generator=torch.Generator()), "torch.Generator"),
    "backward": (lambda net, x: Sign.apply(net.linear(x)), "autograd.Function"),
    "average at the end": (
        lambda net, x: F.avg_pool1d(net.linear(x)[:, None], 2, 2, ceil_mode=True)[:, 0],
        "ceil_mode",
    ),
    "whole buffer": (counted, "buffer count of int64"),
    "parameter": (changed_weight, "changes its parameter linear.weight"),
    "batch": (lambda net, x: F.batch_norm(x.reshape(-1, 1), None, None, training=True).reshape(-1, 3), "18 rows"),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_cannot_be_compiled_is_an_error_with_the_name_of_the_module(name):
    forward, message = IMPOSSIBLE[name]
    model = afl.models.from_torch(Made(forward), reset=False)
    with pytest.raises(Exception, match=message) as raised:
        model.init(KEY, ROWS)
    assert "raised in the model Made, which JAX traces" in raised.value.__notes__


def with_hook():
    layer = nn.Linear(2, 2)
    layer.weight.register_hook(lambda gradient: 0 * gradient)
    return layer


def trained_layer():
    layer = nn.Linear(60, 40)
    nn.init.kaiming_normal_(layer.weight)
    return layer


@pytest.mark.parametrize(
    ("module", "options", "error", "message"),
    [
        (nn.Linear, {}, TypeError, "from_torch: got Linear"),
        (nn.Linear(2, 2), {"images": "CHW"}, ValueError, "images"),
        (nn.Linear(2, 2).requires_grad_(False), {}, ValueError, "no parameter of Linear"),
        (nn.Embedding(2, 2, scale_grad_by_freq=True), {}, ValueError, "Embedding.*scale_grad_by_freq"),
        (with_hook(), {}, ValueError, "Linear has hooks on gradients"),
        (nn.Sequential(nn.BatchNorm1d(2, momentum=None)), {}, ValueError, "layer 0 .*momentum=None"),
        (nn.InstanceNorm1d(2, affine=True, track_running_stats=True), {}, ValueError, "track_running_stats"),
        (trained_layer(), {}, ValueError, "values of weight of Linear are not draws.* reset=False"),
    ],
)
def test_wrong_arguments_are_errors_at_construction(module, options, error, message):
    with pytest.raises(error, match=message):
        afl.models.from_torch(module, **options)


class Two(nn.Module):
    """Its weights are computed from others, and it takes two inputs."""

    def __init__(self):
        super().__init__()
        self.linear = nn.utils.weight_norm(nn.Linear(3, 1))

    def forward(self, left, right):
        return self.linear(left + right)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("loss", ["squared_error", optax.squared_error])
def test_inputs_by_name_or_position_and_computed_weights(loss):
    net, y = Two(), jnp.arange(6.0)
    for x in ({"left": ROWS.x, "right": ROWS.x}, (ROWS.x, ROWS.x)):
        batch = Batch(x, y, ROWS.mask)
        model = afl.models.from_torch(net, loss, reset=False, name="two")
        found = model.apply(*model.init(KEY, batch), batch, KEY, True)[0].loss
        expected = (net(torch.tensor(np.array(2 * ROWS.x)), torch.zeros(3)).detach().numpy()[:, 0] - y) ** 2
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        assert model.name == "two"
