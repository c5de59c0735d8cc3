"""LoRA: the low-rank term beside a dense layer, against the merged kernel and against PyTorch."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxafl.models.networks.bert import LoRA
from tests import tiny_bert
from tests.tiny_bert import batch_of, made, started, tokens


@pytest.mark.parametrize(
    ("r", "alpha"),
    [pytest.param(1, 8.0, marks=pytest.mark.slow), pytest.param(3, 8.0, marks=pytest.mark.slow), (4, 1.0)],
)
def test_it_starts_at_zero_with_a_uniform_a(r, alpha):
    x = jax.random.normal(jax.random.key(0), (5, 64))
    params = LoRA(48, r, alpha).init(jax.random.key(1), x)
    a, b = params["params"]["a"], params["params"]["b"]
    assert a.shape == (64, r) and b.shape == (r, 48)
    np.testing.assert_array_equal(b, 0)
    np.testing.assert_array_equal(LoRA(48, r, alpha).apply(params, x), jnp.zeros((5, 48)))
    bound = 1 / np.sqrt(64)
    assert np.abs(a).max() <= bound and np.abs(a).max() > 0.8 * bound
    assert np.std(a) == pytest.approx(bound / np.sqrt(3), rel=0.25)


@pytest.mark.slow
def test_logits_and_gradients_are_those_of_a_merged_model_in_pytorch(tmp_path):
    """Query and value kernels W + (α / r) A B in BertForSequenceClassification of transformers; by the chain rule
    ∂B = (α / r) Aᵀ ∂W and ∂A = (α / r) ∂W Bᵀ."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = tiny_bert.write(tmp_path / "tiny")
    model, x = made(folder, r=2, num_classes=3), tokens(4)
    batch = batch_of(x)
    params = started(model, batch)
    reference = transformers.BertForSequenceClassification.from_pretrained(folder, num_labels=3).eval()

    def projections():
        for index, layer in enumerate(reference.bert.encoder.layer):
            for name in ("query", "value"):
                yield getattr(layer.attention.self, name), params["encoder"][f"layer_{index}"][f"{name}_lora"]

    with torch.no_grad():
        for projection, lora in projections():
            projection.weight += torch.tensor(np.asarray(8.0 / 2 * lora["a"] @ lora["b"])).T
        reference.classifier.weight.copy_(torch.tensor(np.asarray(params["classifier"]["kernel"])).T)
        reference.classifier.bias.copy_(torch.tensor(np.asarray(params["classifier"]["bias"])))
    logits = reference(**{name: torch.tensor(leaf) for name, leaf in x.items()}).logits
    labels = torch.tensor(np.asarray(batch.y), dtype=torch.long)
    expected = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    expected.mean().backward()

    @jax.jit
    @jax.value_and_grad
    def mean_loss(params):
        return model.apply(params, {}, batch, jax.random.key(0), True, model.frozen)[0].loss.mean()

    loss, gradient = mean_loss(params)
    np.testing.assert_allclose(loss, expected.mean().item(), rtol=1e-5)
    np.testing.assert_allclose(
        gradient["classifier"]["kernel"].T, reference.classifier.weight.grad.numpy(), rtol=1e-3, atol=1e-5
    )
    found = [gradient["encoder"][f"layer_{index}"][f"{name}_lora"] for index in (0, 1) for name in ("query", "value")]
    for (projection, lora), own in zip(projections(), found, strict=True):
        kernel = projection.weight.grad.numpy().T
        np.testing.assert_allclose(own["b"], 4 * np.asarray(lora["a"]).T @ kernel, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(own["a"], 4 * kernel @ np.asarray(lora["b"]).T, rtol=1e-3, atol=1e-5)
