from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from jaxafl.models import Batch, softmax_cross_entropy


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
