"""`lora`: the sum W + (α / r) B A in models of all kinds, a training loop in NumPy, what is sent and what is frozen."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxafl as afl
from jaxafl.models import Batch, initialised, lora
from jaxafl.models.frozen import named_leaves
from tests.server.test_aggregates import arrivals

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(12, 5)).astype(np.float32), RNG.integers(0, 3, 12).astype(np.int32)


def batch_of(x):
    return Batch(jnp.asarray(x), jnp.zeros(len(x), jnp.int32), jnp.ones(len(x), bool))


def of_functions():
    logits = lambda params, batch: jnp.tanh(batch.x @ params[0]) @ params[1]["w"]  # noqa: E731
    loss = lambda params, batch, key: afl.models.softmax_cross_entropy(logits(params, batch), batch)  # noqa: E731
    return afl.models.from_functions(lambda *_: (jnp.ones((5, 4)), {"w": jnp.ones((4, 3))}), loss, outputs=logits)


def of_torch():
    pytest.importorskip("jaxafl.models.adapters.torch_environment", reason="torch or torchax is not installed")
    import torch

    return afl.models.from_torch(torch.nn.Linear(5, 3))


@pytest.mark.parametrize(
    ("make", "x", "where", "sizes"),
    [
        (lambda: afl.models.mlp(3, hidden=(4,)), X, None, [5, 4, 4, 3]),
        (of_functions, X, None, [5, 4, 4, 3]),
        (lambda: afl.models.from_nnx(lambda rngs: nnx.Linear(5, 3, rngs=rngs)), X, None, [5, 3]),
        pytest.param(of_torch, X, None, [5, 3], marks=[pytest.mark.extras, pytest.mark.slow]),
        pytest.param(
            afl.models.cnn_small,
            np.ones((2, 28, 28, 1), np.float32),
            lambda path: path == "Conv_1/kernel",
            [250, 20],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_it_starts_as_the_model_and_then_computes_with_the_sum(make, x, where, sizes):
    """With other factors, the outputs are those of the model with the summed kernels."""
    base, batch = make(), batch_of(x)
    params, _ = base.init(jax.random.key(3), batch)
    model = lora(initialised(base, params), 2, 6.0, where)
    factors, _ = model.init(jax.random.key(1), batch)
    named = named_leaves(factors)
    assert sum(leaf.size for leaf in named.values()) == 2 * sum(sizes)
    assert max(np.abs(leaf).max() for name, leaf in named.items() if name.endswith("/b")) == 0
    np.testing.assert_allclose(model.outputs(factors, batch.x), base.outputs(params, batch.x), rtol=1e-6, atol=1e-6)
    factors = jax.tree.map(lambda leaf: leaf + RNG.normal(size=leaf.shape).astype(np.float32), factors)
    full = named_leaves(params)
    for name in {path[:-2] for path in named}:
        term = 3 * named_leaves(factors)[f"{name}/b"] @ named_leaves(factors)[f"{name}/a"]
        full[name] += (term if make is of_torch else term.T).reshape(full[name].shape)
    expected = base.outputs(jax.tree.unflatten(jax.tree.structure(params), full.values()), batch.x)
    np.testing.assert_allclose(model.outputs(factors, batch.x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_training_is_the_loop_in_numpy_and_the_factors_alone_are_sent():
    data = afl.data.from_arrays(X, Y, np.zeros(12, int), x_test=X, y_test=Y)
    model = lora(afl.models.logistic(3), 2, 6.0, trained=lambda path: path.endswith("bias"))
    client = afl.Client(learning_rate=0.1, steps=4, batch_size=None)
    sim = afl.Simulation(data, model, client, afl.server.fedavg(), afl.clock.synchronous())
    assert sim.run(1).bytes_up[0] == 4 * (2 * 5 + 3 * 2 + 3)
    found = named_leaves(sim.train(1).params)
    (bias, c), (kernel, a), (_, b) = named_leaves(sim.init().params).items()
    base = named_leaves(model.held(batch_of(X[:1])))[f"base/{kernel.removesuffix('/a')}"]
    for _ in range(4):
        scores = np.exp(X @ (base + 3 * (b @ a).T) + c)
        error = (scores / scores.sum(1, keepdims=True) - np.eye(3)[Y]) / 12
        of_kernel = X.T @ error  # ∂W, [in, out]
        a, b, c = a - 0.3 * b.T @ of_kernel.T, b - 0.3 * of_kernel.T @ a.T, c - 0.1 * error.sum(0)
    for name, expected in zip(found, (c, a, b), strict=True):
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-6, err_msg=name)
    again = initialised(model, sim.train(1)).init(jax.random.key(9), batch_of(X[:1]))[0]
    np.testing.assert_array_equal(named_leaves(again)[bias], found[bias])


@pytest.mark.parametrize("where", [lambda path: False, lambda path: path.endswith("bias")])
def test_kernels_that_cannot_have_factors_are_refused(where):
    with pytest.raises(ValueError, match="lora: where chooses"):
        lora(afl.models.logistic(3), 2, where=where).init(jax.random.key(0), batch_of(X))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("clients", "out"), [(1, 5), (3, 5), (3, 2)])
def test_flexlora_is_the_nearest_product_to_the_mean_of_products(clients, out, turned):
    """One arrival, or a kernel whose sides are at most r, loses nothing."""
    rank, samples, rng = 3, np.arange(1.0, clients + 1), np.random.default_rng(1)
    a, b = rng.normal(size=(clients + 1, rank, 6)), rng.normal(size=(clients + 1, out, rank))
    wanted = np.einsum("n,nor,nri->oi", samples / samples.sum(), b[1:], a[1:])
    pair = {"a": a.swapaxes(1, 2), "b": b.swapaxes(1, 2)} if turned else {"a": a, "b": b}  # `bert` has x A B
    start = {"dense": jax.tree.map(lambda leaf: leaf[0], pair), "bias": np.zeros(2)}
    base = jax.tree.map(lambda leaf: np.stack([leaf] * clients), start)
    ends = {"dense": jax.tree.map(lambda leaf: leaf[1:], pair), "bias": base["bias"] + samples[:, None]}
    delta = jax.tree.map(np.subtract, ends, base)
    with jax.enable_x64(True):
        given = arrivals(np.ones(clients), delta)._replace(base=base, samples=jnp.asarray(samples))
        found = afl.server.flexlora().update(start, (), given)
    new = jax.tree.map(np.asarray, found.params["dense"])
    u, s, v = np.linalg.svd(wanted, full_matrices=False)
    product = (new["a"] @ new["b"]).T if turned else new["b"] @ new["a"]
    np.testing.assert_allclose(product, u[:, :rank] * s[:rank] @ v[:rank], atol=1e-12)
    np.testing.assert_allclose(found.info["kept"], np.square(s[:rank]).sum() / np.square(s).sum(), rtol=1e-12)
    np.testing.assert_allclose(found.params["bias"], (samples**2).sum() / samples.sum())
    assert (found.info["kept"] < 0.999) == (clients == 3 and out == 5)
