from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxafl as afl
from jaxafl import models
from jaxafl.models import Batch
from jaxafl.models.resnet import BasicBlock, ResNet

KEY = jax.random.key(0)


def filled(shapes, seed=0):
    """Arrays of given shapes: He initialisation of kernels, vectors about one."""
    rng = np.random.default_rng(seed)

    def leaf(shape):
        if len(shape.shape) == 1:
            return jnp.asarray(rng.uniform(0.5, 1.5, shape.shape), jnp.float32)
        return jnp.asarray(rng.normal(size=shape.shape) * (2 / np.prod(shape.shape[:-1])) ** 0.5, jnp.float32)

    return jax.tree.map(leaf, shapes)


def shapes_of(block, x):
    return jax.eval_shape(lambda x: block.init(KEY, x, True), x)


def images(size, side=8):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(size, side, side, 3)).astype(np.float32)
    return Batch(jnp.asarray(x), jnp.asarray(rng.integers(0, 10, size), jnp.int32), jnp.ones(size, bool))


@pytest.mark.slow
def test_a_shortcut_without_parameters_takes_every_second_pixel_and_appends_zeros():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 6, 6, 4)), jnp.float32)
    block = BasicBlock(8, 2, "pad", "group", 2)
    shapes = shapes_of(block, x)
    assert sorted(shapes["params"]) == ["Conv_0", "Conv_1", "GroupNorm_0", "GroupNorm_1"]
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), shapes)
    y = block.apply(zeros, x, True)
    np.testing.assert_array_equal(y[..., :4], np.maximum(x[:, ::2, ::2], 0))
    np.testing.assert_array_equal(y[..., 4:], 0)


def test_a_projecting_shortcut_has_a_convolution_and_a_normalisation():
    x = jnp.zeros((2, 6, 6, 4))
    shapes = shapes_of(BasicBlock(8, 2, "project", "batch", 2), x)["params"]
    assert shapes["Conv_2"]["kernel"].shape == (1, 1, 4, 8)
    assert "BatchNorm_2" in shapes
    same = shapes_of(BasicBlock(4, 1, "project", "batch", 2), x)["params"]
    assert "Conv_2" not in same


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_padding_influences_nothing(norm):
    network = ResNet(10, (2, 4), 1, "pad", norm, 2)
    model, full = models.from_linen(network), images(3)
    params, state = filled(jax.eval_shape(model.init, KEY, full))
    mask = jnp.arange(5) < 3

    def mean_loss(params, batch):
        outputs, new_state = model.apply(params, state, batch, KEY, True)
        return jnp.sum(outputs.loss) / 3, new_state

    def value_and_gradient(params, filler):
        padding = jnp.full((2, *full.x.shape[1:]), filler)
        batch = Batch(jnp.concatenate([full.x, padding]), jnp.concatenate([full.y, jnp.zeros(2, jnp.int32)]), mask)
        return jax.value_and_grad(mean_loss, has_aux=True)(params, batch)

    expected = jax.jit(jax.value_and_grad(mean_loss, has_aux=True))(params, full)
    several = jax.jit(jax.vmap(value_and_gradient, (None, 0)))(params, jnp.asarray([0.0, 100.0]))
    for index in range(2):
        actual = jax.tree.map(lambda leaf, index=index: leaf[index], several)
        jax.tree.map(lambda a, e: np.testing.assert_allclose(a, e, rtol=1e-3, atol=1e-4), actual, expected)


def simulation(model, batch_size, steps, side):
    """Random images of three clients; FADAS with a buffer of 2."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(36, side, side, 3)).astype(np.float32)
    y = rng.integers(0, 10, 36)
    return afl.Simulation(
        data=afl.data.from_arrays(x, y, np.arange(36) % 3, x_test=x[:4], y_test=y[:4], num_classes=10),
        model=model,
        client=afl.Client(optax.sgd, learning_rate=0.01, steps=steps, batch_size=batch_size),
        server=afl.server.fadas(learning_rate=1e-3),
        clock=afl.clock.free_running(concurrency=3, buffer=2, durations=afl.clock.uniform(1, 2)),
    )


@pytest.mark.slow
@pytest.mark.parametrize("make", [models.resnet18, models.resnet20])
def test_residual_networks_take_server_steps(make):
    sim = simulation(make(), batch_size=4, steps=3, side=32)
    trained = sim.train(2)
    assert trained.failure is None
    assert np.isfinite(trained.records["local_loss"]).all()
    assert np.isfinite(trained.evaluations["loss"]).all()
    for leaf in jax.tree.leaves(trained.model_state):
        assert np.isfinite(leaf).all()
        assert not np.all(leaf == 0) and not np.all(leaf == 1)
    assert trained.evaluations["loss"][0] != trained.evaluations["loss"][-1]


@pytest.mark.slow
def test_a_narrow_resnet20_learns():
    """Four classes told apart by their mean colour. One evaluation of 40 samples swings by a tenth with the last bits
    of a machine's sums, the median over three seeds and the second half of their evaluations does not."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 240)
    colours = rng.normal(size=(4, 3))
    x = (colours[y][:, None, None] + 0.5 * rng.normal(size=(240, 8, 8, 3))).astype(np.float32)
    sim = afl.Simulation(
        data=afl.data.from_arrays(x[40:], y[40:], np.arange(200) % 4, x_test=x[:40], y_test=y[:40], num_classes=4),
        model=models.resnet20(4, width=4),
        client=afl.Client(optax.sgd, learning_rate=0.05, steps=5, batch_size=10),
        server=afl.server.fedbuff(),
        clock=afl.clock.free_running(concurrency=3, buffer=2, durations=afl.clock.uniform(1, 2)),
    )
    accuracies = [sim.train(100, seed=seed, eval_every=5).evaluations["accuracy"][-11:] for seed in range(3)]
    assert np.median(accuracies) > 0.9
