"""Models from PyTorch modules against PyTorch itself, step by step."""

from __future__ import annotations

import copy
import importlib.util
import random
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxafl as afl
from jaxafl.models import Batch
from jaxafl.options import UserError
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


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten()),
        )
        self.head = nn.Sequential(nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 10))

    def forward(self, x):
        return self.head(self.features(x))


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
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.register_buffer("position", torch.sin(torch.arange(7.0)[:, None] * torch.arange(8.0)))
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 11)

    def forward(self, x):
        causal = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.encoder(self.embedding(x) + self.position, mask=causal))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(torch.tanh(self.embedding(x)))


def frozen_body():
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))
    net[1].requires_grad_(False)
    return net


IMAGES = ((28, 28, 1), 10)
TOKENS = ((7,), 11)
NETWORKS = {
    "mlp": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.GELU(), nn.Linear(16, 10)), IMAGES),
    "lenet": (LeNet, IMAGES),
    "resnet": (lambda: torch_networks.network(torch, "resnet20"), ((8, 8, 3), 10)),
    "lstm": (lambda: Recurrent(nn.LSTM, bidirectional=True), TOKENS),
    "gru": (lambda: Recurrent(nn.GRU), TOKENS),
    "rnn": (lambda: Recurrent(nn.RNN, bias=False), TOKENS),
    "transformer": (Transformer, TOKENS),
    "tied": (Tied, TOKENS),
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


@pytest.mark.parametrize(
    "name", slow_but(NETWORKS, *(NETWORKS.keys() - {"resnet", "transformer", "gru", "lenet", "lstm", "rnn"}))
)
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


def test_shared_parameters_are_one_and_frozen_ones_are_not_sent():
    tied = afl.models.from_torch(Tied())
    given = next(batches(*TOKENS))
    assert list(tied.init(KEY, given)[0]) == ["embedding.weight"]
    net = frozen_body()
    model = afl.models.from_torch(net)
    given = next(batches(*IMAGES))
    params, _ = model.init(KEY, given)
    assert set(params) == {"2.weight", "2.bias", "4.weight", "4.bias"}
    np.testing.assert_array_equal(model.held(given)["1.weight"], net[1].weight.detach().numpy())


@pytest.mark.parametrize("name", [pytest.param("resnet", marks=pytest.mark.slow), "frozen"])
def test_padding_changes_neither_gradients_nor_statistics(name):
    net, shape, classes = network(name)
    model = afl.models.from_torch(net, reset=False)
    given = next(batches(shape, classes, size=4))
    padded = Batch(*(jnp.concatenate([leaf, leaf[:2]]) for leaf in given[:2]), jnp.arange(6) < 4)
    plain, other = (steps_in_jax(model, [one])[:3] for one in (given, padded))
    for mine, theirs in zip(jax.tree.leaves(plain), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_a_simulation_trains_a_module_and_gives_its_weights_back():
    data = afl.data.synthetic(1.0, 1.0, clients=5)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(60, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.1), nn.Linear(12, 10))
    client = afl.Client(learning_rate=0.01, epochs=1, batch_size=20)
    clock = afl.clock.free_running(concurrency=4, buffer=2, durations=afl.clock.exponential(1.0))
    sim = afl.Simulation(data, afl.models.from_torch(net), client, afl.server.fedbuff(), clock)
    trained = sim.train(server_steps=20, eval_every=10)
    assert trained.dataset.accuracy[-1] > trained.dataset.accuracy[0] + 0.1
    net.load_state_dict({**net.state_dict(), **{
        path: torch.tensor(np.asarray(one)) for path, one in (trained.params | trained.model_state).items()
    }})  # fmt: skip
    x, y = (np.asarray(leaf) for leaf in (data.x_test, data.y_test))
    with torch.no_grad():
        accuracy = (net.eval()(torch.tensor(x)).argmax(1).numpy() == y).mean()
    np.testing.assert_allclose(trained.dataset.accuracy[-1], accuracy, atol=2e-3)


@pytest.mark.slow
def test_every_seed_draws_by_reset_parameters_and_repeats_itself():
    net = nn.Sequential(nn.Linear(50, 40), nn.LayerNorm(40), nn.Embedding(30, 20), Transformer())
    model = afl.models.from_torch(net)
    assert model.description["initial"].startswith("drawn from the seed") and "drawn from the seed" in repr(model)
    net = nn.Sequential(nn.Linear(50, 40), nn.LayerNorm(40), nn.Linear(40, 3, bias=False))
    model = afl.models.from_torch(net)
    given = Batch(jnp.ones((1, 50)), jnp.zeros(1, int), jnp.ones(1, bool))
    one, again, other = (model.init(jax.random.key(seed), given)[0] for seed in (0, 0, 1))
    assert all(np.array_equal(one[path], again[path]) for path in one)
    assert not np.array_equal(one["0.weight"], other["0.weight"]) and not np.array_equal(one["0.bias"], other["0.bias"])
    bound = 50**-0.5
    assert 0.98 * bound < np.abs(one["0.weight"]).max() <= bound
    np.testing.assert_array_equal(one["1.weight"], np.ones(40))


def test_values_of_the_module_are_kept_for_every_seed_where_nothing_draws_them():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.full((3,), 2.0))
            self.linear = nn.Linear(4, 3)

        def forward(self, x):
            return self.scale * self.linear(x)

    net = Scaled()
    given = Batch(jnp.ones((1, 4)), jnp.zeros(1, int), jnp.ones(1, bool))
    model = afl.models.from_torch(net)
    assert "1 of 3 parameters of the module, for every seed" in model.description["initial"]
    params = model.init(jax.random.key(5), given)[0]
    np.testing.assert_array_equal(params["scale"], [2, 2, 2])
    kept = afl.models.from_torch(net, reset=False)
    assert "all parameters of the module, for every seed" in repr(kept)
    np.testing.assert_array_equal(kept.init(KEY, given)[0]["linear.weight"], net.linear.weight.detach())


def test_trained_values_are_not_silently_drawn_anew():
    net = nn.Linear(60, 40)
    nn.init.kaiming_normal_(net.weight)
    with pytest.raises(UserError, match=r"values of weight of Linear are not draws of reset_parameters.* reset=False"):
        afl.models.from_torch(net)
    assert "drawn" in afl.models.from_torch(net, reset=True).description["initial"]


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


def written(net, x):
    rows = torch.zeros(x.shape[0], 3, device=x.device)
    rows[:, :2] = net.linear(x)[:, 1:]
    return rows


ORDINARY = {
    "tensors made in forward": lambda net, x: net.linear(x) + torch.zeros(3) + torch.arange(3) + net.constant,
    "device": lambda net, x: net.linear(x.to("cpu")) + torch.ones(3, device=x.device),
    "no_grad": without_gradient,
    "detach": lambda net, x: net.linear(net.linear(x).detach()),
    "in place": lambda net, x: net.linear(x).mul_(2).add_(1),
    "in place without gradient": clamped,
    "cosine": lambda net, x: F.cosine_similarity(net.linear(x)[:, None], net.linear.weight[None], dim=2),
    "average at the end": lambda net, x: F.avg_pool1d(net.linear(x).repeat(1, 2)[:, None], 3, 2, ceil_mode=True)[:, 0],
    "average of padding": lambda net, x: F.avg_pool2d(
        net.linear(x).repeat(1, 8).view(-1, 1, 4, 6), (4, 2), 3, 1, True, count_include_pad=False
    )[:, 0, 0],
    "mean of a bag": lambda net, x: F.embedding_bag((x > 0).long(), net.linear.weight, mode="mean", padding_idx=0),
    "maximum of a bag": lambda net, x: F.embedding_bag((x > 0).long(), net.linear.weight, mode="max", padding_idx=1),
    "moving buffer": moving_mean,
    "if on a constant": lambda net, x: net.linear(x) if (net.mean == 0).all() and torch.ones(2).sum() > 1 else x,
    "write into zeros": written,
    "where": lambda net, x: torch.where(net.linear(x) > 0, net.linear(x), 0.1 * x),
}


@pytest.mark.parametrize("name", ORDINARY)
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


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_the_older_weight_norm_is_the_newer_one():
    torch.manual_seed(0)
    older = nn.utils.weight_norm(nn.Linear(3, 3))
    newer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
    newer.load_state_dict(older.state_dict())
    losses = [steps_in_jax(afl.models.from_torch(one, reset=False), [ROWS] * 3)[0] for one in (older, newer)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)
    np.testing.assert_allclose(losses[0], steps_in_torch(newer, [ROWS] * 3)[0], rtol=1e-5)


def with_hook():
    layer = nn.Linear(2, 2)
    layer.weight.register_hook(lambda gradient: 0 * gradient)
    return layer


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.sign(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@torch.library.custom_op("jaxafl_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def branch(net, x):
    return net.linear(x) if x.sum() > 0 else x


def counted(net, x):
    net.count += 1
    return net.linear(x)


def changed_weight(net, x):
    with torch.no_grad():
        net.linear.weight.mul_(0.9)
    return net.linear(x)


IMPOSSIBLE = {
    "if on a tensor": (
        branch,
        r"needs values of a tensor.*torch.py:\d+: return net.linear\(x\) if x.sum",
    ),
    "item": (lambda net, x: net.linear(x) * x.max().item(), "needs values of a tensor.*x.max"),
    "numpy": (lambda net, x: net.linear(x) + torch.tensor(x.numpy()), "needs values of a tensor"),
    "random": (lambda net, x: net.linear(x) * random.random(), "global random stream of random"),
    "numpy.random": (lambda net, x: net.linear(x) * np.random.rand(), r"global random stream of numpy.random"),
    "generator": (
        lambda net, x: net.linear(x) + torch.rand(3, generator=torch.Generator().manual_seed(1)),
        "torch.Generator would be equal in every step",
    ),
    "backward": (lambda net, x: Sign.apply(net.linear(x)), "autograd.Function has its own backward.*Sign.apply"),
    "operator": (lambda net, x: twice(net.linear(x)), "custom operator jaxafl_tests.*twice"),
    "whole buffer": (counted, r"changes its buffer count of int64; expected floats"),
    "parameter": (changed_weight, r"forward of Made changes its parameter linear.weight"),
    "shape": (lambda net, x: net.linear(x[:, :2]), r"in linear \(Linear\).*net.linear\(x\[:, :2\]\)"),
    "batch": (
        lambda net, x: F.batch_norm(net.linear(x).reshape(-1, 1), None, None, training=True).reshape(-1, 3),
        "batch norm of 39 rows cannot tell",
    ),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_cannot_be_compiled_is_an_error_with_the_line_of_the_module(name):
    forward, message = IMPOSSIBLE[name]
    with pytest.raises(UserError, match=f"from_torch: .*{message}"):
        afl.models.from_torch(Made(forward)).init(KEY, ROWS)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_module_that_cannot_be_compiled_is_an_error_where_the_simulation_is_constructed(precision):
    x = np.zeros((12, 3), np.float32)
    data = afl.data.from_arrays(x, np.arange(12) % 3, np.arange(12) % 2, test_fraction=0.5)
    clock = afl.clock.free_running(concurrency=1, durations=afl.clock.exponential(1.0))
    parts = afl.Client(learning_rate=0.1, steps=1), afl.server.fedbuff(), clock
    model = afl.models.from_torch(Made(branch))
    with pytest.raises(UserError, match=r"needs values of a tensor.*torch.py:\d+: return net.linear\(x\) if x.sum"):
        afl.Simulation(data, model, *parts, precision=precision)
    afl.Simulation(data, afl.models.from_torch(nn.Linear(3, 3)), *parts, precision=precision)


@pytest.mark.parametrize(
    ("module", "options", "error", "message"),
    [
        (nn.Linear, {}, TypeError, r"got the class Linear. Give an instance, such as Net\(\)"),
        (nn.Linear(2, 2), {"loss": nn.MSELoss()}, TypeError, "MSELoss of PyTorch; expected a name, such as 'squared"),
        (nn.Linear(2, 2), {"loss": nn.MSELoss}, TypeError, "the loss is MSELoss of PyTorch; expected a name"),
        (nn.Linear(2, 2), {"loss": F.cross_entropy}, TypeError, "the loss is cross_entropy of PyTorch"),
        (nn.Linear(2, 2), {"images": "CHW"}, ValueError, "images"),
        (nn.Linear(2, 2).requires_grad_(False), {}, ValueError, "nothing is left to train"),
        (nn.LazyLinear(2), {}, ValueError, "lazy parameters"),
        (nn.Embedding(2, 2, scale_grad_by_freq=True), {}, ValueError, "scale_grad_by_freq=True, which changes grad"),
        (with_hook(), {}, ValueError, "is Linear with hooks on gradients, which JAX does not call"),
        (nn.Sequential(nn.BatchNorm1d(2, momentum=None)), {}, ValueError, "layer 0 is BatchNorm1d with momentum=None"),
        (nn.InstanceNorm2d(2, affine=True, track_running_stats=True), {}, ValueError, "track_running_stats=True"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_errors_at_construction(module, options, error, message):
    with pytest.raises(error, match=message):
        afl.models.from_torch(module, **options)


@pytest.mark.slow
def test_images_stored_in_the_order_of_pytorch_are_passed_as_they_are():
    net, shape, classes = network("lenet")
    given = next(batches(shape, classes))
    stored = given._replace(x=jnp.moveaxis(given.x, -1, 1))
    losses = []
    for images, batch in (("NHWC", given), ("NCHW", stored)):
        model = afl.models.from_torch(net, images=images)
        losses.append(model.apply(*model.init(KEY, batch), batch, KEY, False)[0].loss)
    np.testing.assert_array_equal(*losses)
    with pytest.raises(UserError, match='images="NCHW"'):
        afl.models.from_torch(net).init(KEY, stored)


def test_inputs_by_name_or_position_and_losses_of_optax():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 1)

        def forward(self, left, right):
            return self.linear(left + right)[:, 0]

    def loss(predictions, batch):
        return optax.squared_error(predictions, batch.y)

    named = afl.models.from_torch(nn.Linear(3, 1), "huber")
    outputs, _ = named.apply(*named.init(KEY, rows := ROWS._replace(y=jnp.arange(6.0))), rows, KEY, True)
    predictions = torch.tensor(np.array(named.outputs(named.init(KEY, rows)[0], rows.x)))[:, 0]
    np.testing.assert_allclose(outputs.loss, F.huber_loss(predictions, torch.arange(6.0), reduction="none"), rtol=1e-5)
    net = Two()
    y = jnp.arange(6.0)
    for x in ({"left": ROWS.x, "right": ROWS.x}, (ROWS.x, ROWS.x)):
        batch = Batch(x, y, ROWS.mask)
        model = afl.models.from_torch(net, loss, reset=False, name="two")
        found = model.apply(*model.init(KEY, batch), batch, KEY, True)[0].loss
        expected = (net(torch.tensor(np.array(2 * ROWS.x)), torch.zeros(3)).detach().numpy() - y) ** 2
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        assert model.name == "two"


@pytest.mark.slow
def test_the_module_is_neither_changed_nor_followed():
    net = frozen_body()
    before = {path: value.clone() for path, value in net.state_dict().items()}
    model = afl.models.from_torch(net, reset=False)
    with torch.no_grad():
        net[4].weight.zero_()
    given = next(batches(*IMAGES))
    params, state = model.init(KEY, given)
    model.bound(model.held(given))(params, state, given, KEY, True)
    np.testing.assert_array_equal(params["4.weight"], before["4.weight"].numpy())
    assert torch.equal(net[2].running_mean, before["2.running_mean"]) and net.training


def test_without_torchax_the_error_names_the_extra(monkeypatch):
    monkeypatch.delitem(sys.modules, "jaxafl.models.torch_environment", raising=False)
    monkeypatch.delattr("jaxafl.models.torch_environment", raising=False)
    monkeypatch.setitem(sys.modules, "torchax", None)
    with pytest.raises(ImportError, match=r'from_torch needs torchax: pip install "jaxafl\[torch\]"'):
        afl.models.from_torch(nn.Linear(2, 2))
