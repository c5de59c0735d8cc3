from __future__ import annotations

import functools
import warnings

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxafl.models import Batch, from_functions, from_linen, from_nnx, sigmoid_cross_entropy, softmax_cross_entropy
from jaxafl.models.adapters import check_loss


def labelled(labels):
    labels = jnp.asarray(labels)
    return Batch(jnp.zeros((labels.shape[0], 1)), labels, jnp.ones(labels.shape[0], bool))


def test_loss_and_accuracy_of_each_example():
    logits = jnp.log(jnp.asarray([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]]))
    outputs = softmax_cross_entropy(logits, labelled([0, 1]))
    np.testing.assert_allclose(outputs.loss, [np.log(2), np.log(5)], rtol=1e-6)
    np.testing.assert_array_equal(outputs.metrics["accuracy"], [1.0, 0.0])


def test_sequences_are_averaged_per_example():
    logits = jnp.log(jnp.asarray([[[0.5, 0.5], [0.25, 0.75]]]))
    outputs = softmax_cross_entropy(logits, labelled([[0, 0]]))
    np.testing.assert_allclose(outputs.loss, [(np.log(2) + np.log(4)) / 2], rtol=1e-6)
    np.testing.assert_array_equal(outputs.metrics["accuracy"], [0.5])


@pytest.mark.parametrize("label", [-1, 3, 100])
def test_a_label_out_of_range_is_not_taken_for_another_class(label):
    outputs = softmax_cross_entropy(jnp.zeros((1, 3)), labelled([label]))
    assert np.isnan(outputs.loss[0])
    assert outputs.metrics["accuracy"][0] == 0


def test_shapes_that_do_not_go_together():
    with pytest.raises(ValueError, match=r"logits \(2, 3\) and labels \(2, 1\)"):
        softmax_cross_entropy(jnp.zeros((2, 3)), labelled([[0], [1]]))


def test_real_valued_labels():
    with pytest.raises(TypeError, match="integer labels, got float32"):
        softmax_cross_entropy(jnp.zeros((2, 3)), labelled([0.0, 1.0]))


def test_padding_of_tokens_does_not_count():
    logits = jnp.log(jnp.asarray([[[0.5, 0.5], [0.25, 0.75], [0.1, 0.9]], [[0.5, 0.5]] * 3]))
    labels = labelled([[0, -1, 1], [-100, -100, -1]])
    gradient = jax.jit(jax.grad(lambda logits: softmax_cross_entropy(logits, labels).loss.sum()))(logits)
    compute = jax.jit(softmax_cross_entropy)
    outputs = compute(logits, labels)
    np.testing.assert_allclose(outputs.loss, [(np.log(2) - np.log(0.9)) / 2, 0], rtol=1e-6)
    np.testing.assert_array_equal(outputs.metrics["accuracy"], [1, 0])
    assert not gradient[0, 1].any() and not gradient[1].any() and gradient[0, 0].all()
    assert np.isnan(compute(logits, labelled([[0, 2, 1], [0, 0, 0]])).loss[0])


def test_several_labels_per_example():
    logits = jnp.asarray([[2.0, -1.0, 0.5], [0.0, 3.0, -2.0]])
    outputs = sigmoid_cross_entropy(logits, labelled([[1, 0, 0], [-1, 1, 1]]))
    probability = 1 / (1 + np.exp(-np.asarray(logits)))
    first = -np.log([probability[0, 0], 1 - probability[0, 1], 1 - probability[0, 2]]).mean()
    second = -np.log([probability[1, 1], probability[1, 2]]).mean()
    np.testing.assert_allclose(outputs.loss, [first, second], rtol=1e-6)
    np.testing.assert_allclose(outputs.metrics["accuracy"], [2 / 3, 1 / 2])


def test_labels_of_two_classes_need_one_logit():
    outputs = sigmoid_cross_entropy(jnp.asarray([[1.0], [-1.0], [1.0]]), labelled([1, 0, 0]))
    np.testing.assert_array_equal(outputs.metrics["accuracy"], [1, 1, 0])
    soft = sigmoid_cross_entropy(jnp.zeros(2), labelled([0.25, 0.5]))
    np.testing.assert_allclose(soft.loss, np.log(2), rtol=1e-6)
    assert soft.metrics == {}  # a probability is not right or wrong
    assert np.isnan(sigmoid_cross_entropy(jnp.zeros(1), labelled([-1])).loss[0])
    assert np.isnan(sigmoid_cross_entropy(jnp.zeros(1), labelled([2])).loss[0])


@pytest.mark.parametrize(
    ("loss", "of_error"),
    [
        ("squared_error", lambda e: e**2),
        ("absolute_error", abs),
        ("huber", lambda e: np.where(abs(e) < 1, e**2 / 2, abs(e) - 0.5)),
        ("log_cosh", lambda e: np.log(np.cosh(e))),
        (optax.l2_loss, lambda e: e**2 / 2),
        (
            functools.partial(optax.huber_loss, delta=0.5),
            lambda e: np.where(abs(e) < 0.5, e**2 / 2, abs(e) / 2 - 1 / 8),
        ),
    ],
)
def test_losses_of_a_regression(loss, of_error):
    predictions, targets = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
    outputs = check_loss("test", loss)(jnp.asarray(predictions), labelled(targets))
    error = predictions - targets
    np.testing.assert_allclose(outputs.loss, of_error(error).mean(1), rtol=1e-5)
    np.testing.assert_allclose(outputs.metrics["mae"], abs(error).mean(1), rtol=1e-5)
    np.testing.assert_allclose(outputs.squares["rmse"], (error**2).mean(1), rtol=1e-5)
    assert set(outputs.metrics) == {"mae"}


@pytest.mark.parametrize(("of_network", "of_data"), [((5, 1), (5,)), ((5,), (5, 1)), ((5, 2, 1), (5, 2))])
def test_an_axis_of_length_one_is_not_broadcast(of_network, of_data):
    loss = check_loss("test", "squared_error")
    predictions = jnp.arange(np.prod(of_network), dtype=jnp.float32).reshape(of_network)
    assert not loss(predictions, labelled(predictions.reshape(of_data))).loss.any()


@pytest.mark.parametrize("loss", ["squared_error", "sigmoid_cross_entropy", optax.hinge_loss, optax.kl_divergence])
@pytest.mark.parametrize(
    ("of_network", "of_data"), [((4, 1), (4, 4)), ((4, 3), (4,)), ((4,), (4, 4)), ((4, 3), (4, 2))]
)
def test_shapes_that_would_broadcast_are_refused(loss, of_network, of_data):
    with pytest.raises(ValueError, match="expected one shape"):
        check_loss("test", loss)(jnp.zeros(of_network), labelled(jnp.zeros(of_data)))


def test_losses_of_optax_that_take_classes():
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)))
    classes = labelled([0, 2, 1, 0])
    found = check_loss("test", optax.losses.multiclass_hinge_loss)(logits, classes)
    np.testing.assert_allclose(found, optax.losses.multiclass_hinge_loss(logits, classes.y), rtol=1e-6)
    assert check_loss("test", optax.softmax_cross_entropy_with_integer_labels) is softmax_cross_entropy
    shares = labelled(jax.nn.softmax(logits))
    found = check_loss("test", optax.softmax_cross_entropy)(logits, shares)
    np.testing.assert_allclose(found, optax.softmax_cross_entropy(logits, shares.y), rtol=1e-6)


@pytest.mark.parametrize("loss", [optax.hinge_loss, optax.losses.perceptron_loss, optax.sigmoid_focal_loss])
def test_binary_losses_of_optax_take_classes_and_one_score(loss):
    scores = jnp.asarray(np.random.default_rng(0).normal(size=(4, 1)))
    classes = labelled([0, 1, 1, 0])
    targets = classes.y if loss is optax.sigmoid_focal_loss else 2 * classes.y - 1
    expected = [loss(score, target) for score, target in zip(scores[:, 0], targets, strict=True)]
    for given in (classes, labelled(targets.astype(float))):
        for predictions in (scores, scores[:, 0]):
            np.testing.assert_allclose(check_loss("test", loss)(predictions, given), expected, rtol=1e-6)
    with pytest.raises(ValueError, match="Give the last layer 1 output"):
        check_loss("test", loss)(jnp.zeros((4, 4)), classes)


def squares(predictions, batch):
    return ((predictions - batch.y) ** 2).mean(-1)


def weighted(predictions, batch):
    return softmax_cross_entropy(predictions, batch).loss * jnp.asarray([1.0, 5.0])[batch.y]


def linear(loss, outputs):
    def start(key, batch):
        return {"w": jax.random.normal(key, (1, outputs)), "b": jnp.zeros(outputs)}

    return from_functions(
        start,
        lambda params, batch, key: loss(batch.x @ params["w"] + params["b"], batch),
        frozen=lambda path: path == "b",
    )


def diagonal(predictions, batch):
    return -jnp.diag(jax.nn.log_softmax(predictions)[:, batch.y])


def test_a_loss_of_plain_functions_that_compares_samples_with_each_other_is_warned_of_once():
    model = linear(squares, 1)
    with pytest.warns(UserWarning, match=r"A target has the shape \[\]; of a network with one output") as seen:
        for _ in range(2):
            model.init(jax.random.key(0), labelled([0.5]))
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        linear(squares, 3).init(jax.random.key(0), labelled([[0.5, 1.0, 2.0]]))
        linear(diagonal, 2).init(jax.random.key(0), labelled([0]))
        linear(softmax_cross_entropy, 2).init(jax.random.key(0), labelled([0]))


@pytest.mark.parametrize(
    "loss",
    [
        lambda predictions, batch: optax.l2_loss(predictions, batch.y),
        lambda predictions, batch: (predictions - batch.y) ** 2,
        lambda predictions, batch: predictions - jnp.stack([batch.y, batch.y], 1).ravel(),
    ],
)
def test_shapes_that_a_loss_of_ones_own_cannot_combine_are_explained(loss):
    example = labelled([0.5, 0.5, 0.5])
    with pytest.raises(ValueError, match=r"predictions \(3, 1\) and targets \(3,\).*predictions\[\.\.\., 0\]"):
        from_linen(nn.Dense(1), loss).init(jax.random.key(0), example)
    with pytest.raises(ValueError, match=r"is given targets \(3,\).*predictions\[\.\.\., 0\]"):
        linear(loss, 1).init(jax.random.key(0), example)


@pytest.mark.parametrize("adapter", ["linen", "nnx"])
def test_a_loss_that_compares_samples_with_each_other_is_warned_of_once(adapter):
    def drawn(loss, outputs, labels):
        layer = nn.Dense(outputs) if adapter == "linen" else lambda rngs: nnx.Linear(1, outputs, rngs=rngs)
        model = (from_linen if adapter == "linen" else from_nnx)(layer, loss)
        for _ in range(2):
            model.init(jax.random.key(0), labelled(labels))

    with pytest.warns(UserWarning, match=r"prediction has the shape \[1\] and a target \[\]") as seen:
        drawn(squares, 1, [0.5])
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn(squares, 3, [[0.5, 1.0, 2.0]])
        drawn(weighted, 2, [0])
        drawn(optax.hinge_loss, 1, [0])


def test_low_precision_of_predictions_does_not_reach_the_loss():
    outputs = check_loss("test", "squared_error")(jnp.full(3, 1.5, jnp.bfloat16), labelled([1.0, 2.0, 1.001]))
    assert outputs.loss.dtype == jnp.float32
    np.testing.assert_allclose(outputs.loss, [0.25, 0.25, 0.499**2], rtol=1e-5)
