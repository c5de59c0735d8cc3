"""The published networks: parameters, options, and the same networks in PyTorch with the same weights."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxafl import models
from jaxafl.models import Batch
from tests.models import torch_networks
from tests.variants import slow_but

KEY = jax.random.key(0)


PLAIN = ["logistic", "mlp", "cnn_small", "cnn_over", "cnn_defedavg", "cnn_asyncfeded", "cnn_afl"]


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


@pytest.mark.parametrize(
    ("make", "bad"),
    [
        (models.resnet20, {"norm": "layer"}),
        (models.resnet18, {"norm": None}),
        (models.char_lstm, {"initialisation": 0}),
        (models.decoder, {"width": 6}),
    ],
)
def test_wrong_options(make, bad):
    with pytest.raises((ValueError, TypeError), match=f"{make.__name__}.*{next(iter(bad))}"):
        make(**bad)


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
    model = getattr(models, name)(norm=norm, width=4)
    batch = images((16, 16, 3), 3)
    params, state = arbitrary(model, batch)
    reference = torch_networks.network(torch, name, norm)
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


@pytest.mark.parametrize(
    ("model", "shape", "parameters", "channels"),
    [
        (models.logistic(10), (60,), 610, 0),
        (models.logistic(10), (28, 28, 1), 7_850, 0),
        (models.mlp(10), (28, 28, 1), 199_210, 0),
        (models.mlp(3, hidden=()), (4,), 15, 0),
        (models.mlp(3, hidden=[7]), (4,), 59, 0),
        (models.cnn_small(), (28, 28, 1), 21_840, 0),
        (models.cnn_over(), (28, 28, 1), 663_160, 0),
        (models.cnn_afl(), (28, 28, 1), 19_146, 0),
        (models.cnn_defedavg(), (28, 28, 1), 582_026, 0),
        (models.cnn_defedavg(), (32, 32, 3), 878_538, 0),
        (models.cnn_asyncfeded(62), (28, 28, 1), 590_270, 0),
        (models.resnet20(norm="group"), (32, 32, 3), 269_722, 0),
        pytest.param(models.resnet18(norm="group"), (32, 32, 3), 11_173_962, 0, marks=pytest.mark.slow),
        (models.cnn_asyncfeded(62, features=(8, 16), kernel=5), (28, 28, 1), 208 + 3_216 + 100 * 16 * 62 + 62, 0),
        (models.resnet20(), (32, 32, 3), 269_722, 7 * 16 + 6 * 32 + 6 * 64),
        *(
            pytest.param(model, (32, 32, 3), count, 5 * (64 + 128 + 256 + 512), marks=pytest.mark.slow)
            for model, count in ((models.resnet18(), 11_173_962), (models.resnet18(100), 11_220_132))
        ),
    ],
)
def test_parameters_are_counted_and_running_statistics_are_state(model, shape, parameters, channels):
    params, state = jax.eval_shape(model.init, KEY, images(shape, 1))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == parameters
    assert sum(leaf.size for leaf in jax.tree.leaves(state)) == 2 * channels
    assert {leaf.dtype for leaf in jax.tree.leaves((params, state))} == {jnp.dtype(jnp.float32)}
    assert list(state) == ["batch_stats"] * (channels > 0)


def filled(shapes, seed=0):
    """Arrays of given shapes: He initialisation of kernels, vectors about one."""
    rng = np.random.default_rng(seed)

    def leaf(shape):
        if len(shape.shape) == 1:
            return jnp.asarray(rng.uniform(0.5, 1.5, shape.shape), jnp.float32)
        return jnp.asarray(rng.normal(size=shape.shape) * (2 / np.prod(shape.shape[:-1])) ** 0.5, jnp.float32)

    return jax.tree.map(leaf, shapes)
