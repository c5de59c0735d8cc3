"""Every network against the same network in PyTorch, with the same weights."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxafl import models
from jaxafl.models import Batch
from tests.models import torch_networks
from tests.models.test_resnet import filled
from tests.variants import slow_but

RESNETS = [(name, norm) for name in ("resnet20", "resnet18") for norm in ("batch", "group")]
PLAIN = ["logistic", "mlp", "cnn_small", "cnn_over", "cnn_defedavg", "cnn_asyncfeded", "cnn_afl"]
KEY = jax.random.key(0)


def images(shape, size):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(size, *shape)).astype(np.float32)
    return Batch(jnp.asarray(x), jnp.asarray(rng.integers(0, 10, size), jnp.int32), jnp.ones(size, bool))


def arbitrary(model, batch):
    """Parameters and state of a model's shapes, away from the special values that they begin with."""
    return filled(jax.eval_shape(model.init, KEY, batch))


def in_torch(torch, x):
    return torch.tensor(np.asarray(x)).permute(0, 3, 1, 2)


def log_probabilities(model, params, state, batch, train):
    """[B, classes]: minus the loss of every label; and the new state."""

    def of_label(label):
        outputs, new_state = model.apply(params, state, batch._replace(y=jnp.full_like(batch.y, label)), KEY, train)
        return -outputs.loss, new_state

    return jax.vmap(of_label, out_axes=(1, None))(jnp.arange(10))


def mean_loss(params, model, state, batch):
    return model.apply(params, state, batch, KEY, True)[0].loss.mean()


@pytest.mark.extras
@pytest.mark.parametrize("name", slow_but(PLAIN, "logistic", "mlp", "cnn_small"))
def test_log_probabilities_and_gradients_are_those_of_pytorch(name):
    torch = pytest.importorskip("torch")
    model = getattr(models, name)(10)
    batch = images((28, 28, 1), 3)
    params, state = arbitrary(model, batch)
    reference = torch_networks.network(torch, name)
    torch_networks.copy_weights(torch, reference, params, state)

    def both(params):
        return log_probabilities(model, params, state, batch, True)[0], jax.grad(mean_loss)(params, model, state, batch)

    actual, gradient = jax.jit(both)(params)
    np.testing.assert_allclose(actual, backward(torch, reference, batch), rtol=1e-4, atol=1e-4)
    assert_gradients(gradient, reference)


@pytest.mark.slow
@pytest.mark.extras
@pytest.mark.parametrize(("name", "norm"), [("resnet20", "group"), ("resnet18", "batch")])
def test_residual_networks_are_those_of_pytorch_in_training_and_evaluation(name, norm):
    torch = pytest.importorskip("torch")
    compare_resnet(torch, name, norm, width=4)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "norm"), RESNETS)
def test_residual_networks_of_full_width_are_those_of_pytorch(name, norm):
    torch = pytest.importorskip("torch")
    compare_resnet(torch, name, norm, width=64 if name == "resnet18" else 16)


def compare_resnet(torch, name, norm, width):
    model = getattr(models, name)(norm=norm, width=width)
    batch = images((16, 16, 3), 3)
    params, state = arbitrary(model, batch)
    reference = torch_networks.network(torch, name, norm, width)
    torch_networks.copy_weights(torch, reference, params, state)

    def both(params):
        evaluated, unchanged = log_probabilities(model, params, state, batch, False)
        return evaluated, unchanged, *log_probabilities(model, params, state, batch, True)

    evaluated, unchanged, trained, new_state = jax.jit(both)(params)
    x = in_torch(torch, batch.x)
    expected = torch.log_softmax(reference.eval()(x), dim=1).detach().numpy()
    np.testing.assert_allclose(evaluated, expected, rtol=1e-4, atol=1e-4)
    expected = torch.log_softmax(reference.train()(x), dim=1).detach().numpy()
    np.testing.assert_allclose(trained, expected, rtol=1e-4, atol=1e-4)
    jax.tree.map(np.testing.assert_array_equal, unchanged, state)
    pairs = running_statistics(params, new_state, reference)
    assert len(pairs) == (0 if norm == "group" else 2 * (19 if name == "resnet20" else 20))
    for mine, theirs in pairs:
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)


def running_statistics(params, state, reference):
    """Pairs of running statistics, those of PyTorch second."""
    pairs = []
    layers = torch_networks.torch_layers(reference)
    for (path, _), layer in zip(torch_networks.in_order(params), layers, strict=True):
        if hasattr(layer, "running_mean"):
            mine = torch_networks.at(state["batch_stats"], path)
            pairs += [(mine["mean"], layer.running_mean.numpy()), (mine["var"], layer.running_var.numpy())]
    return pairs


@pytest.mark.slow
@pytest.mark.extras
def test_losses_and_gradients_of_resnet20_are_those_of_pytorch():
    torch = pytest.importorskip("torch")
    model, batch = models.resnet20(width=4), images((16, 16, 3), 4)
    params, state = arbitrary(model, batch)
    reference = torch_networks.network(torch, "resnet20", width=4)
    torch_networks.copy_weights(torch, reference, params, state)
    probabilities = backward(torch, reference, batch)
    loss, gradient = jax.jit(jax.value_and_grad(lambda params: mean_loss(params, model, state, batch)))(params)
    np.testing.assert_allclose(loss, -probabilities[np.arange(4), np.asarray(batch.y)].mean(), rtol=1e-4)
    assert_gradients(gradient, reference)


def backward(torch, reference, batch):
    """The log-probabilities of a batch; leaves the gradients of its mean loss with the parameters."""
    logits = reference(in_torch(torch, batch.x))
    torch.nn.functional.cross_entropy(logits, torch.tensor(np.asarray(batch.y), dtype=torch.long)).backward()
    return torch.log_softmax(logits, dim=1).detach().numpy()


def assert_gradients(gradient, reference):
    channels = None
    layers = torch_networks.torch_layers(reference)
    for (path, mine), layer in zip(torch_networks.in_order(gradient), layers, strict=True):
        if "kernel" in mine:
            weight = torch_networks.kernel_in_torch(mine["kernel"], channels)
            channels = mine["kernel"].shape[-1]
        else:
            weight = mine["scale"]
        np.testing.assert_allclose(weight, layer.weight.grad.numpy(), rtol=1e-3, atol=1e-4, err_msg=str(path))
        if "bias" in mine:
            np.testing.assert_allclose(mine["bias"], layer.bias.grad.numpy(), rtol=1e-3, atol=1e-4, err_msg=str(path))
