from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jaxafl.models import Dense
from jaxafl.models.networks.dense import _THIN, _WIDE, thin_product
from tests.variants import slow_but

DIMENSIONS = (((1,), (0,)), ((), ()))
cpu_only = pytest.mark.skipif(jax.default_backend() != "cpu", reason="elsewhere it is a product of matrices")


def factors(batch=5, dtype=np.float32):
    rng = np.random.default_rng(0)
    return rng.normal(size=(batch, 600)).astype(dtype), rng.normal(size=(600, 500)).astype(dtype)


def gradients(product, x, kernel, which):
    return jax.grad(lambda *given: jnp.sum(jnp.sin(product(*given))), which)(x, kernel)


@pytest.mark.parametrize("batch", slow_but([1, 5, _THIN, _THIN + 1], 1, _THIN + 1))
def test_gradients_are_those_of_a_product(batch):
    with jax.enable_x64(True):
        x, kernel = map(jnp.asarray, factors(batch, np.float64))
        assert kernel.size >= _WIDE
        own = gradients(lambda x, kernel: thin_product(x, kernel, DIMENSIONS), x, kernel, (0, 1))
        plain = gradients(jnp.matmul, x, kernel, (0, 1))
        for found, expected in zip(own, plain, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-11)
        alone = gradients(lambda x, kernel: thin_product(x, kernel, DIMENSIONS), x, kernel, 1)
        np.testing.assert_allclose(alone, plain[1], rtol=1e-10, atol=1e-11)


@cpu_only
def test_the_gradient_of_a_large_kernel_is_part_of_its_update():
    """The compiled step has no product that writes it, and does not copy the kernel to update it."""
    x, kernel = factors()

    def steps(product):
        def step(_, kernel):
            return kernel - 0.1 * gradients(product, jnp.tanh(x @ kernel @ kernel.T), kernel, 1)

        return jax.jit(lambda kernel: jax.lax.fori_loop(0, 3, step, kernel)).lower(kernel).compile().as_text()

    written = " = f32[600,500]{1,0} dot("
    assert written in steps(jnp.matmul)
    assert written not in steps(lambda x, kernel: thin_product(x, kernel, DIMENSIONS))


@pytest.mark.parametrize("shape", [(3, 4, 600), (600,)])
def test_other_shapes_are_those_of_flax(shape):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    own, plain = Dense(500), nn.Dense(500)
    params = plain.init(jax.random.key(0), x)
    np.testing.assert_array_equal(own.apply(params, x), plain.apply(params, x))
    assert jax.tree.structure(own.init(jax.random.key(0), x)) == jax.tree.structure(params)
