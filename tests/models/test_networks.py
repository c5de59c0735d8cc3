from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxafl import models
from jaxafl.models import Batch


def example(shape, size=1):
    return Batch(jnp.zeros((size, *shape)), jnp.zeros(size, jnp.int32), jnp.ones(size, bool))


@pytest.mark.parametrize(
    ("model", "shape", "parameters"),
    [
        (models.logistic(10), (60,), 610),
        (models.logistic(10), (28, 28, 1), 7_850),
        (models.mlp(10), (28, 28, 1), 199_210),
        (models.mlp(3, hidden=()), (4,), 15),
        (models.mlp(3, hidden=[7]), (4,), 59),
        (models.cnn_small(), (28, 28, 1), 21_840),
        (models.cnn_defedavg(), (28, 28, 1), 582_026),
        (models.cnn_defedavg(), (32, 32, 3), 878_538),
        (models.cnn_asyncfeded(62), (28, 28, 1), 590_270),
        (models.cnn_asyncfeded(62, features=(8, 16), kernel=5), (28, 28, 1), 208 + 3_216 + 100 * 16 * 62 + 62),
    ],
)
def test_parameter_counts(model, shape, parameters):
    params, state = jax.eval_shape(model.init, jax.random.key(0), example(shape))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == parameters
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.float32)}
    assert state == {}


@pytest.mark.parametrize("make", [models.cnn_small, models.cnn_defedavg])
def test_smallest_image(make):
    jax.eval_shape(make().init, jax.random.key(0), example((16, 16, 1)))
    with pytest.raises(ValueError, match=rf"{make().name} needs images .* 16x16 .* \[15, 28, 1\]"):
        make().init(jax.random.key(0), example((15, 28, 1)))


def test_smallest_image_of_cnn_asyncfeded():
    model = models.cnn_asyncfeded(10, kernel=3)
    jax.eval_shape(model.init, jax.random.key(0), example((6, 6, 1)))
    with pytest.raises(ValueError, match=r"6x6 .* \[28, 28\]"):
        model.init(jax.random.key(0), example((28, 28)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: models.logistic(0), "num_classes .* got 0"),
        (lambda: models.mlp(10, hidden=(20, -1)), "hidden widths .* got -1"),
        (lambda: models.cnn_small(2.5), "num_classes .* got 2.5"),
        (lambda: models.cnn_defedavg("10"), "num_classes .* got '10'"),
        (lambda: models.cnn_asyncfeded(10, features=(32,)), "two numbers"),
        (lambda: models.cnn_asyncfeded(10, features=(32, 0)), "features .* got 0"),
        (lambda: models.cnn_asyncfeded(10, kernel=0), "kernel .* got 0"),
    ],
)
def test_wrong_options(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_description_names_the_options():
    description = models.cnn_asyncfeded(62, features=(8, 16)).description
    assert description == {"network": "CNNAsyncFedED", "num_classes": 62, "features": [8, 16], "kernel": 3}


def to_torch(torch, network, params):
    """The weights of a Linen convolutional network in a torch network of the same order of layers."""
    flax_layers = [params[name] for name in sorted(params)]  # Conv_0, Conv_1, Dense_0, ...
    torch_layers = [layer for layer in network if hasattr(layer, "weight")]
    channels = flax_layers[1]["kernel"].shape[-1]
    with torch.no_grad():
        for index, (source, target) in enumerate(zip(flax_layers, torch_layers, strict=True)):
            kernel = np.asarray(source["kernel"])
            if kernel.ndim == 4:
                weight = kernel.transpose(3, 2, 0, 1)
            elif index == 2:  # flattened images: torch orders them channels first
                side = int(np.sqrt(kernel.shape[0] // channels))
                weight = kernel.reshape(side, side, channels, -1).transpose(3, 2, 0, 1).reshape(kernel.shape[1], -1)
            else:
                weight = kernel.T
            target.weight.copy_(torch.tensor(np.ascontiguousarray(weight)))
            target.bias.copy_(torch.tensor(np.asarray(source["bias"])))


def torch_networks(nn):
    relu, flat = nn.ReLU(), nn.Flatten()
    conv, pool, dense = nn.Conv2d, nn.MaxPool2d(2), nn.Linear
    return {
        "cnn_small": (
            models.cnn_small(),
            [conv(1, 10, 5), relu, pool, conv(10, 20, 5), relu, pool, flat, dense(320, 50), relu, dense(50, 10)],
        ),
        "cnn_defedavg": (
            models.cnn_defedavg(),
            [conv(1, 32, 5), relu, pool, conv(32, 64, 5), relu, pool, flat, dense(1024, 512), relu, dense(512, 10)],
        ),
        "cnn_asyncfeded": (
            models.cnn_asyncfeded(10),
            [conv(1, 32, 3), relu, conv(32, 64, 3), relu, pool, flat, dense(9216, 10)],
        ),
    }


@pytest.mark.parametrize("name", ["cnn_small", "cnn_defedavg", "cnn_asyncfeded"])
def test_losses_and_gradients_are_those_of_pytorch(name):
    torch = pytest.importorskip("torch")
    model, layers = torch_networks(torch.nn)[name]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 28, 28, 1)).astype(np.float32)
    y = rng.integers(0, 10, 4).astype(np.int32)
    batch = Batch(jnp.asarray(x), jnp.asarray(y), jnp.ones(4, bool))
    params, state = model.init(jax.random.key(0), example((28, 28, 1)))
    # biases away from zero, so that they count
    params = jax.tree.map(lambda leaf: leaf + 0.1 if leaf.ndim == 1 else leaf, params)
    network = torch.nn.Sequential(*layers)
    to_torch(torch, network, params)

    def mean_loss(params):
        losses = model.apply(params, state, batch, jax.random.key(1), True)[0].loss
        return losses.mean(), losses

    gradient, losses = jax.jit(jax.grad(mean_loss, has_aux=True))(params)
    images, labels = torch.tensor(x).permute(0, 3, 1, 2), torch.tensor(y, dtype=torch.long)
    expected = torch.nn.functional.cross_entropy(network(images), labels, reduction="none")
    np.testing.assert_allclose(losses, expected.detach().numpy(), rtol=1e-4, atol=1e-4)
    expected.mean().backward()
    convolution = np.asarray(gradient["Conv_0"]["kernel"])
    np.testing.assert_allclose(convolution.transpose(3, 2, 0, 1), layers[0].weight.grad.numpy(), rtol=1e-3, atol=1e-4)
