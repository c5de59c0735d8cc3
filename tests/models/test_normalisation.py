from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxafl as afl
from jaxafl.engine.problem import BufferSizes, Loops
from jaxafl.engine.state import initial
from jaxafl.models import BatchNorm, Conv, from_linen
from jaxafl.models.layers import flatten
from jaxafl.models.normalisation import normalise

CHANNELS = 3


def arrays(*shape, seed=0):
    return np.random.default_rng(seed).normal(2.0, 3.0, shape).astype(np.float32)


def variables(seed=0):
    rng = np.random.default_rng(seed)
    scale, bias, mean, var = (rng.uniform(0.5, 1.5, CHANNELS).astype(np.float32) for _ in range(4))
    return {"params": {"scale": scale, "bias": bias}, "batch_stats": {"mean": mean, "var": var}}


def in_torch(torch, values):
    """A BatchNorm2d with the parameters and statistics of `values`."""
    layer = torch.nn.BatchNorm2d(CHANNELS)
    names = {"weight": "scale", "bias": "bias", "running_mean": "mean", "running_var": "var"}
    with torch.no_grad():
        for theirs, mine in names.items():
            getattr(layer, theirs).copy_(torch.tensor((values["params"] | values["batch_stats"])[mine]))
    return layer


@jax.jit
def train(values, x, mask):
    y, state = BatchNorm().apply(values, x, True, mask, mutable=["batch_stats"])
    return y, state["batch_stats"]


@pytest.mark.extras
def test_batch_norm_is_that_of_pytorch_over_several_batches():
    torch = pytest.importorskip("torch")
    values = variables()
    layer = in_torch(torch, values)
    everyone = jnp.ones(4, bool)
    for step in range(3):
        x = arrays(4, 5, 6, CHANNELS, seed=step)
        y, statistics = train(values, x, everyone)
        expected = layer(torch.tensor(x).permute(0, 3, 1, 2)).detach().permute(0, 2, 3, 1)
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(statistics["mean"], layer.running_mean, rtol=1e-5)
        np.testing.assert_allclose(statistics["var"], layer.running_var, rtol=1e-5)
        values = values | {"batch_stats": statistics}
    expected = layer.eval()(torch.tensor(x).permute(0, 3, 1, 2)).detach().permute(0, 2, 3, 1)
    y, unchanged = BatchNorm().apply(values, x, False, everyone, mutable=["batch_stats"])
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, unchanged["batch_stats"], values["batch_stats"])


@pytest.mark.extras
def test_gradients_of_batch_norm_are_those_of_pytorch():
    torch = pytest.importorskip("torch")
    values, x, cotangent = variables(), arrays(4, 5, 6, CHANNELS), arrays(4, 5, 6, CHANNELS, seed=1)
    layer, images = in_torch(torch, values), torch.tensor(x).permute(0, 3, 1, 2).requires_grad_()
    layer(images).backward(torch.tensor(cotangent).permute(0, 3, 1, 2))

    @jax.jit
    @jax.grad
    def gradient(arguments):
        params, x = arguments
        return jnp.sum(cotangent * train(values | {"params": params}, x, jnp.ones(4, bool))[0])

    params, of_x = gradient((values["params"], x))
    np.testing.assert_allclose(of_x, images.grad.permute(0, 2, 3, 1), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(params["scale"], layer.weight.grad, rtol=1e-4)
    np.testing.assert_allclose(params["bias"], layer.bias.grad, rtol=1e-4)


@settings(max_examples=20, deadline=None)
@given(real=st.lists(st.booleans(), min_size=5, max_size=5), filler=st.sampled_from([0.0, -1e4, 1e6]))
def test_padding_influences_nothing(real, filler):
    mask = np.asarray(real)
    values, x, cotangent = variables(), arrays(5, 2, 3, CHANNELS), arrays(5, 2, 3, CHANNELS, seed=1)
    count = 6 * mask.sum()

    def outputs(x):
        @jax.grad
        def gradient(params):
            return jnp.sum(cotangent * train(values | {"params": params}, x, mask)[0] * mask[:, None, None, None])

        y, statistics = train(values, x, mask)
        return y[mask], statistics, gradient(values["params"])

    y, statistics, gradient = outputs(np.where(mask[:, None, None, None], x, filler).astype(np.float32))
    alone, scale, bias = x[mask].astype(np.float64), *values["params"].values()
    old = values["batch_stats"]
    if count == 0:
        jax.tree.map(np.testing.assert_array_equal, statistics, old)
        jax.tree.map(lambda leaf: np.testing.assert_array_equal(leaf, 0), gradient)
        return
    normalised = (alone - alone.mean((0, 1, 2))) / np.sqrt(alone.var((0, 1, 2)) + 1e-5)
    np.testing.assert_allclose(y, normalised * scale + bias, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(statistics["mean"], 0.9 * old["mean"] + 0.1 * alone.mean((0, 1, 2)), rtol=1e-4)
    np.testing.assert_allclose(statistics["var"], 0.9 * old["var"] + 0.1 * alone.var((0, 1, 2), ddof=1), rtol=1e-4)
    np.testing.assert_allclose(gradient["bias"], cotangent[mask].sum((0, 1, 2)), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(gradient["scale"], (cotangent[mask] * normalised).sum((0, 1, 2)), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("real", [0, 1])
def test_a_batch_of_one_value_or_none_stays_finite(real):
    mask, x = jnp.arange(3) < real, arrays(3, 1, 1, CHANNELS)

    def loss(arguments):
        params, x = arguments
        y, statistics = train(variables() | {"params": params}, x, mask)
        return jnp.sum(jnp.where(mask[:, None, None, None], jnp.square(y), 0)), statistics

    (value, statistics), gradient = jax.value_and_grad(loss, has_aux=True)((variables()["params"], x))
    for leaf in jax.tree.leaves((value, statistics, gradient)):
        assert np.isfinite(leaf).all()
    old = variables()["batch_stats"]
    np.testing.assert_allclose(statistics["mean"], old["mean"] + (0.1 * (x[0, 0, 0] - old["mean"]) if real else 0))
    np.testing.assert_allclose(statistics["var"], old["var"] * (0.9 if real else 1), rtol=1e-6)


def test_clients_can_be_vectorised_with_masks_of_their_own():
    x, mask = arrays(3, 4, 5, 5, CHANNELS), jnp.arange(4) < jnp.asarray([[1], [3], [4]])
    values = [variables(seed) for seed in range(3)]
    together = jax.vmap(train)(jax.tree.map(lambda *leaves: jnp.stack(leaves), *values), x, mask)
    for client in range(3):
        alone = train(values[client], x[client], mask[client])
        mine = jax.tree.map(lambda leaf, client=client: leaf[client], together)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), mine, alone)


def test_statistics_of_bfloat16_images_are_those_of_float32():
    x = jnp.asarray(arrays(8, 16, 16, CHANNELS) + 50, jnp.bfloat16)
    layer = BatchNorm(dtype=jnp.bfloat16)
    y, state = layer.apply(variables(), x, True, mutable=["batch_stats"])
    assert y.dtype == jnp.bfloat16
    _, exact = train(variables(), x.astype(jnp.float32), jnp.ones(8, bool))
    assert {leaf.dtype for leaf in jax.tree.leaves(state)} == {jnp.dtype(jnp.float32)}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), state["batch_stats"], exact)


@pytest.mark.parametrize("kind", [jnp.float32, jnp.float64])
def test_running_statistics_keep_their_type_in_float64(kind):
    """That of a run under x64 is float64, so that a layer which returned float32 could not be trained."""
    with jax.enable_x64(True):
        x = jnp.asarray(arrays(4, 5, 5, CHANNELS), jnp.float64)
        given = jax.tree.map(lambda leaf: leaf.astype(kind), variables())
        y, state = BatchNorm().apply(given, x, True, mutable=["batch_stats"])
        assert y.dtype == jnp.float64
        assert {leaf.dtype for leaf in jax.tree.leaves(state)} == {jnp.dtype(kind)}
        again = (x - x.mean((0, 1, 2))) / jnp.sqrt(x.var((0, 1, 2)) + 1e-5)
        params = variables()["params"]
        np.testing.assert_allclose(y, again * params["scale"] + params["bias"], rtol=1e-9, atol=1e-9)


class GroupNorm(nn.Module):
    groups: int

    @nn.compact
    def __call__(self, x):
        return normalise(x, "group", self.groups, train=True, mask=None)


@pytest.mark.extras
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_norm_is_that_of_pytorch_and_looks_at_one_sample_only(groups):
    torch = pytest.importorskip("torch")
    x = arrays(3, 4, 5, 6)
    scale, bias = arrays(6, seed=1), arrays(6, seed=2)
    apply = jax.jit(lambda x: GroupNorm(groups).apply({"params": {"GroupNorm_0": {"scale": scale, "bias": bias}}}, x))
    tensors = (torch.tensor(value) for value in (scale, bias))
    expected = torch.nn.functional.group_norm(torch.tensor(x).permute(0, 3, 1, 2), groups, *tensors)
    np.testing.assert_allclose(apply(x), expected.permute(0, 2, 3, 1), rtol=1e-4, atol=1e-4)
    others = np.concatenate([x[:1], np.full_like(x[1:], 1e3)])
    np.testing.assert_array_equal(apply(x)[0], apply(others)[0])


class Tiny(nn.Module):
    """Conv - batch norm - ReLU - dense."""

    @nn.compact
    def __call__(self, x, train, mask=None):
        x = Conv(4, (3, 3), use_bias=False)(x)
        x = nn.relu(BatchNorm()(x, train, mask))
        return nn.Dense(3)(flatten(x))


SIZES = (3, 7, 4, 6, 5, 2)


def batch_norm_simulation():
    """Six clients whose images differ in brightness; three arrivals make a server step; two full-batch local steps."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(6), SIZES)
    x = (rng.normal(size=(len(owner), 6, 6, 1)) + owner[:, None, None, None]).astype(np.float32)
    y = rng.integers(0, 3, len(owner))
    data = afl.data.from_arrays(x, y, owner, x_test=x[:4], y_test=y[:4], num_classes=3)
    simulation = afl.Simulation(
        data=data,
        model=from_linen(Tiny()),
        client=afl.Client(optax.sgd, learning_rate=0.1, steps=2, batch_size=None),
        server=afl.server.fedbuff(),
        clock=afl.clock.free_running(concurrency=4, buffer=3, durations=afl.clock.uniform(1, 3)),
    )
    return simulation, [(x[owner == client], y[owner == client]) for client in range(6)]


def state_after_local_training(torch, params, state, x, y):
    """Running statistics of one client after two steps of full-batch SGD from the global model, in PyTorch."""
    layers = torch.nn
    network = layers.Sequential(
        layers.Conv2d(1, 4, 3, bias=False), layers.BatchNorm2d(4), layers.ReLU(), layers.Flatten(),
        layers.Linear(64, 3),
    )  # fmt: skip
    dense = np.asarray(params["Dense_0"]["kernel"]).reshape(4, 4, 4, 3).transpose(3, 2, 0, 1).reshape(3, 64)
    kernel = np.asarray(params["Conv_0"]["kernel"]).transpose(3, 2, 0, 1)
    statistics = state["batch_stats"]["BatchNorm_0"]
    sources = {
        "0.weight": kernel, "1.weight": params["BatchNorm_0"]["scale"], "1.bias": params["BatchNorm_0"]["bias"],
        "1.running_mean": statistics["mean"], "1.running_var": statistics["var"],
        "4.weight": dense, "4.bias": params["Dense_0"]["bias"],
    }  # fmt: skip
    tensors = {name: torch.tensor(np.array(value)) for name, value in sources.items()}
    network.load_state_dict(tensors, strict=False)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        logits = network(torch.tensor(x).permute(0, 3, 1, 2))
        torch.nn.functional.cross_entropy(logits, torch.tensor(y, dtype=torch.long)).backward()
        optimizer.step()
    return network[1].running_mean.numpy(), network[1].running_var.numpy()


@pytest.mark.slow
@pytest.mark.extras
@pytest.mark.parametrize("lanes", [1, 4])
def test_running_statistics_of_the_global_model_are_the_mean_over_the_arrivals(lanes):
    torch = pytest.importorskip("torch")
    simulation, clients = batch_norm_simulation()
    start = simulation.train(1, lanes=lanes, chunk=lanes)
    initial_params, initial_state, _ = initial_model_of(simulation)
    arrivals = start.schedule.client[0]
    assert len(set(arrivals)) == 3
    states = [state_after_local_training(torch, initial_params, initial_state, *clients[who]) for who in arrivals]
    mean, var = (np.mean(values, axis=0) for values in zip(*states, strict=True))
    found = start.model_state["batch_stats"]["BatchNorm_0"]
    assert np.abs(mean - states[0][0]).max() > 0.01
    np.testing.assert_allclose(found["mean"], mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["var"], var, rtol=1e-4, atol=1e-5)


def initial_model_of(simulation):
    problem = simulation.problem(seed=0)
    sizes = BufferSizes(lanes=1, ring=1, store=1)
    return initial(problem.program(Loops()), sizes, problem.hyperparameters, problem.device, problem.key).model
