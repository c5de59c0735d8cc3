"""LoRA: the low-rank term beside a dense layer, against the merged kernel."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxafl.models import LoRA
from tests import tiny_bert
from tests.tiny_bert import batch_of, made, started, tokens


def test_it_starts_at_zero_with_a_uniform_a():
    x = jax.random.normal(jax.random.key(0), (5, 64))
    params = LoRA(48, 4, 1.0).init(jax.random.key(1), x)
    a, b = params["params"]["a"], params["params"]["b"]
    assert a.shape == (64, 4) and b.shape == (4, 48)
    np.testing.assert_array_equal(b, 0)
    np.testing.assert_array_equal(LoRA(48, 4, 1.0).apply(params, x), jnp.zeros((5, 48)))
    bound = 1 / np.sqrt(64)
    assert np.abs(a).max() <= bound and np.abs(a).max() > 0.8 * bound
    assert np.std(a) == pytest.approx(bound / np.sqrt(3), rel=0.25)


@pytest.mark.slow
def test_losses_and_gradients_are_those_of_merged_kernels(tmp_path):
    """Query and value kernels W + (α / r) (B A)ᵀ; by the chain rule ∂B = (α / r) (A ∂W)ᵀ and ∂A = (α / r) (∂W B)ᵀ."""
    folder, batch = tiny_bert.write(tmp_path / "tiny"), batch_of(tokens(4))
    model, merged = (made(folder, r=r, num_classes=3) for r in (2, 0))
    params, base = started(model, batch), jax.tree.map(jnp.asarray, merged.frozen)
    places = [(f"layer_{index}", name) for index in (0, 1) for name in ("query", "value")]
    for layer, name in places:
        lora = params["encoder"][layer][name]["kernel"]
        base["encoder"][layer][name]["kernel"] += 8.0 / 2 * (lora["b"] @ lora["a"]).T

    def mean_loss(params, base, model):
        return model.apply(params, {}, batch, jax.random.key(0), True, base)[0].loss.mean()

    steep = jax.jit(jax.value_and_grad(mean_loss, (0, 1)), static_argnums=2)
    loss, (gradient, _) = steep(params, model.frozen, model)
    expected, (of_head, of_base) = steep({"classifier": params["classifier"]}, base, merged)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient["classifier"]["kernel"], of_head["classifier"]["kernel"], rtol=1e-3, atol=1e-5)
    for layer, name in places:
        lora, own = (tree["encoder"][layer][name]["kernel"] for tree in (params, gradient))
        kernel = of_base["encoder"][layer][name]["kernel"]
        np.testing.assert_allclose(own["b"], 4 * (lora["a"] @ kernel).T, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(own["a"], 4 * (kernel @ lora["b"]).T, rtol=1e-3, atol=1e-5)
