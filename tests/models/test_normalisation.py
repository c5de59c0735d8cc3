"""Batch normalisation by its formula; running statistics of a run are means over arrivals."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxafl as afl
from jaxafl.models import BatchNorm, from_linen
from tests.problems import Normalised

CHANNELS = 3


def arrays(*shape, seed=0):
    return np.random.default_rng(seed).normal(2.0, 3.0, shape).astype(np.float32)


def variables(seed=0):
    rng = np.random.default_rng(seed)
    scale, bias, mean, var = (rng.uniform(0.5, 1.5, CHANNELS).astype(np.float32) for _ in range(4))
    return {"params": {"scale": scale, "bias": bias}, "batch_stats": {"mean": mean, "var": var}}


@jax.jit
def train(values, x, mask):
    y, state = BatchNorm().apply(values, x, True, mask, mutable=["batch_stats"])
    return y, state["batch_stats"]


@settings(max_examples=20, deadline=None)
@given(real=st.lists(st.booleans(), min_size=5, max_size=5), filler=st.sampled_from([0.0, -1e4, 1e6]))
def test_padding_influences_nothing(real, filler):
    mask = np.asarray(real)
    values, x, cotangent = variables(), arrays(5, 2, 3, CHANNELS), arrays(5, 2, 3, CHANNELS, seed=1)
    padded = np.where(mask[:, None, None, None], x, filler).astype(np.float32)

    @jax.grad
    def gradient(params):
        return jnp.sum(cotangent * train(values | {"params": params}, padded, mask)[0] * mask[:, None, None, None])

    (y, statistics), gradient = train(values, padded, mask), gradient(values["params"])
    alone, scale, bias = x[mask].astype(np.float64), *values["params"].values()
    old = values["batch_stats"]
    evaluated, same = BatchNorm().apply(values, x, False, mask, mutable=["batch_stats"])
    expected = (x - old["mean"]) / np.sqrt(old["var"] + 1e-5) * scale + bias
    np.testing.assert_allclose(evaluated, expected, rtol=1e-4, atol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, same["batch_stats"], old)
    if not mask.any():
        jax.tree.map(np.testing.assert_array_equal, statistics, old)
        jax.tree.map(lambda leaf: np.testing.assert_array_equal(leaf, 0), gradient)
        return
    normalised = (alone - alone.mean((0, 1, 2))) / np.sqrt(alone.var((0, 1, 2)) + 1e-5)
    np.testing.assert_allclose(y[mask], normalised * scale + bias, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(statistics["mean"], 0.9 * old["mean"] + 0.1 * alone.mean((0, 1, 2)), rtol=1e-4)
    np.testing.assert_allclose(statistics["var"], 0.9 * old["var"] + 0.1 * alone.var((0, 1, 2), ddof=1), rtol=1e-4)
    np.testing.assert_allclose(gradient["bias"], cotangent[mask].sum((0, 1, 2)), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(gradient["scale"], (cotangent[mask] * normalised).sum((0, 1, 2)), rtol=1e-3, atol=1e-3)


def test_a_batch_of_one_value_stays_finite_and_low_precision_keeps_its_statistics():
    x, old = arrays(3, 1, 1, CHANNELS), variables()["batch_stats"]
    y, statistics = train(variables(), x, jnp.arange(3) < 1)
    assert np.isfinite(y).all()
    np.testing.assert_allclose(statistics["mean"], old["mean"] + 0.1 * (x[0, 0, 0] - old["mean"]), rtol=1e-6)
    np.testing.assert_allclose(statistics["var"], 0.9 * old["var"], rtol=1e-6)
    x = jnp.asarray(arrays(8, 16, 16, CHANNELS) + 50, jnp.bfloat16)
    y, low = train(variables(), x, jnp.ones(8, bool))
    assert y.dtype == jnp.bfloat16
    exact = train(variables(), x.astype(jnp.float32), jnp.ones(8, bool))[1]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), low, exact)


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [1, 4])
def test_running_statistics_of_the_global_model_are_means_over_the_arrivals(lanes):
    """The statistics of a client's samples do not depend on its training, so that they are known by hand."""
    owner = np.repeat(np.arange(6), (3, 7, 4, 6, 5, 2))
    x = arrays(len(owner), CHANNELS) + owner[:, None].astype(np.float32)
    data = afl.data.from_arrays(x, owner % 3, owner, x_test=x[:4], y_test=owner[:4] % 3, num_classes=3)
    client = afl.Client(optax.sgd, learning_rate=0.1, steps=2, batch_size=None)
    clock = afl.clock.free_running(concurrency=4, buffer=3, durations=afl.clock.uniform(1, 3))
    sim = afl.Simulation(data, from_linen(Normalised(3)), client, afl.server.fedbuff(), clock)
    trained = sim.train(1, lanes=lanes, chunk=lanes)
    found, start = trained.model_state["batch_stats"]["BatchNorm_0"], {"mean": 0.0, "var": 1.0}
    own = [x[owner == one] for one in trained.schedule.client[0]]
    for name, values in (("mean", [rows.mean(0) for rows in own]), ("var", [rows.var(0, ddof=1) for rows in own])):
        expected = 0.9**2 * start[name] + (1 - 0.9**2) * np.mean(values, 0)
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-5)
