"""Losses by name and of Optax, against values by hand."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxafl.models import Batch, sigmoid_cross_entropy, softmax_cross_entropy
from jaxafl.models.losses import as_loss


def labelled(labels):
    labels = jnp.asarray(labels)
    return Batch(jnp.zeros((labels.shape[0], 1)), labels, jnp.ones(labels.shape[0], bool))


def test_loss_and_accuracy_of_each_example():
    logits = jnp.log(jnp.asarray([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]]))
    outputs = softmax_cross_entropy(logits, labelled([0, 1]))
    np.testing.assert_allclose(outputs.loss, [np.log(2), np.log(5)], rtol=1e-6)
    np.testing.assert_array_equal(outputs.metrics["accuracy"], [1.0, 0.0])


@pytest.mark.parametrize("label", [-1, 3, 100])
def test_a_label_out_of_range_is_not_taken_for_another_class(label):
    outputs = softmax_cross_entropy(jnp.zeros((1, 3)), labelled([label]))
    assert np.isnan(outputs.loss[0]) and outputs.metrics["accuracy"][0] == 0


def test_padding_of_tokens_does_not_count():
    logits = jnp.log(jnp.asarray([[[0.5, 0.5], [0.25, 0.75], [0.1, 0.9]], [[0.5, 0.5]] * 3]))
    labels = labelled([[0, -1, 1], [-100, -100, -1]])
    gradient = jax.jit(jax.grad(lambda logits: softmax_cross_entropy(logits, labels).loss.sum()))(logits)
    outputs = jax.jit(softmax_cross_entropy)(logits, labels)
    np.testing.assert_allclose(outputs.loss, [(np.log(2) - np.log(0.9)) / 2, 0], rtol=1e-6)
    np.testing.assert_array_equal(outputs.metrics["accuracy"], [1, 0])
    assert not gradient[0, 1].any() and not gradient[1].any() and gradient[0, 0].all()
    assert np.isnan(softmax_cross_entropy(logits, labelled([[0, 2, 1], [0, 0, 0]])).loss[0])


def test_binary_labels():
    logits = jnp.asarray([[2.0, -1.0, 0.5], [0.0, 3.0, -2.0]])
    outputs = sigmoid_cross_entropy(logits, labelled([[1, 0, 0], [-1, 1, 1]]))
    probability = 1 / (1 + np.exp(-np.asarray(logits)))
    first = -np.log([probability[0, 0], 1 - probability[0, 1], 1 - probability[0, 2]]).mean()
    np.testing.assert_allclose(outputs.loss, [first, -np.log(probability[1, 1:]).mean()], rtol=1e-6)
    np.testing.assert_allclose(outputs.metrics["accuracy"], [2 / 3, 1 / 2])
    outputs = sigmoid_cross_entropy(jnp.asarray([[1.0], [-1.0], [1.0]]), labelled([1, 0, 0]))
    np.testing.assert_array_equal(outputs.metrics["accuracy"], [1, 1, 0])
    soft = sigmoid_cross_entropy(jnp.zeros(2), labelled([0.25, 0.5]))
    np.testing.assert_allclose(soft.loss, np.log(2), rtol=1e-6)
    assert soft.metrics == {}  # a probability is not right or wrong
    assert np.isnan(sigmoid_cross_entropy(jnp.zeros(2), labelled([-1, 2])).loss).all()


@pytest.mark.parametrize(
    ("loss", "of_error"),
    [
        ("squared_error", lambda e: e**2),
        ("absolute_error", abs),
        ("huber", lambda e: np.where(abs(e) < 1, e**2 / 2, abs(e) - 0.5)),
        ("log_cosh", lambda e: np.log(np.cosh(e))),
        (optax.l2_loss, lambda e: e**2 / 2),
        (functools.partial(optax.huber_loss, delta=0.5), lambda e: np.where(abs(e) < 0.5, e**2, abs(e) - 0.25) / 2),
    ],
)
def test_losses_of_a_regression(loss, of_error):
    predictions, targets = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
    outputs = as_loss("test", loss)(jnp.asarray(predictions), labelled(targets))
    error = predictions - targets
    np.testing.assert_allclose(outputs.loss, of_error(error).mean(1), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(outputs.metrics["mae"], abs(error).mean(1), rtol=1e-5)
    np.testing.assert_allclose(outputs.squares["rmse"], (error**2).mean(1), rtol=1e-5)
    low = as_loss("test", loss)(jnp.asarray(predictions, jnp.bfloat16), labelled(targets))
    assert low.loss.dtype == jnp.float32 and set(outputs.metrics) == {"mae"}


@pytest.mark.parametrize(("of_network", "of_data"), [((5, 1), (5,)), ((5,), (5, 1)), ((5, 2, 1), (5, 2))])
def test_an_axis_of_length_one_is_not_broadcast(of_network, of_data):
    predictions = jnp.arange(np.prod(of_network), dtype=jnp.float32).reshape(of_network)
    assert not as_loss("test", "squared_error")(predictions, labelled(predictions.reshape(of_data))).loss.any()


@pytest.mark.parametrize("loss", ["squared_error", "sigmoid_cross_entropy", optax.hinge_loss, "softmax_cross_entropy"])
@pytest.mark.parametrize(("of_network", "of_data"), [((4, 1), (4, 4)), ((4, 3), (4, 1, 1)), ((4,), (4, 4))])
def test_shapes_that_would_broadcast_are_refused(loss, of_network, of_data):
    with pytest.raises(ValueError, match="expected"):
        as_loss("test", loss)(jnp.zeros(of_network), labelled(jnp.zeros(of_data, int)))


@pytest.mark.parametrize("logits", [jnp.zeros((2, 3)), (jnp.zeros((2, 3)),)])
def test_cross_entropy_needs_logits_and_integer_labels(logits):
    with pytest.raises(ValueError, match="expected logits"):
        softmax_cross_entropy(logits, labelled([0.0, 1.0]))


def test_losses_of_optax_that_take_classes():
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)))
    classes, shares = labelled([0, 2, 1, 0]), labelled(jax.nn.softmax(logits))
    for loss, given in ((optax.losses.multiclass_hinge_loss, classes), (optax.softmax_cross_entropy, shares)):
        np.testing.assert_allclose(as_loss("test", loss)(logits, given), loss(logits, given.y), rtol=1e-6)
    assert as_loss("test", optax.softmax_cross_entropy_with_integer_labels) is softmax_cross_entropy


@pytest.mark.parametrize("loss", [optax.hinge_loss, optax.losses.perceptron_loss, optax.sigmoid_focal_loss])
def test_binary_losses_of_optax_take_classes_and_one_score(loss):
    scores = jnp.asarray(np.random.default_rng(0).normal(size=(4, 1)))
    classes = labelled([0, 1, 1, 0])
    targets = classes.y if loss is optax.sigmoid_focal_loss else 2 * classes.y - 1
    expected = [loss(score, target) for score, target in zip(scores[:, 0], targets, strict=True)]
    for given in (classes, labelled(targets.astype(float))):
        for predictions in (scores, scores[:, 0]):
            np.testing.assert_allclose(as_loss("test", loss)(predictions, given), expected, rtol=1e-6)
