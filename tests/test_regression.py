"""Runs with targets that are not classes, against NumPy: training, evaluations, and errors before compilation."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest

import jaxafl as afl

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 4)).astype(np.float32)
Y = (X @ RNG.normal(size=(4, 2)) + 0.1 * RNG.normal(size=(30, 2))).astype(np.float32)
OWNERS = np.repeat(np.arange(3), [6, 9, 15])
RATE, STEPS = 0.1, 3


def simulation(y: np.ndarray, model: Any, data: Any = None) -> afl.Simulation:
    data = data or afl.data.from_arrays(X, y, OWNERS, x_test=X[::2], y_test=y[::2])
    clock = afl.clock.synchronous(durations=afl.clock.constant(1.0))
    client = afl.Client(optax.sgd, learning_rate=RATE, steps=STEPS, batch_size=None)
    return afl.Simulation(data, model, client, afl.server.fedavg(), clock)


def linear(outputs: int, loss: Any) -> Any:
    return afl.models.from_linen(nn.Dense(outputs, use_bias=False, kernel_init=nn.initializers.zeros), loss=loss)


def by_hand(rounds: int) -> list[np.ndarray]:
    """Returns the weights of full-batch federated averaging for the mean squared error, before and after each round."""
    weights = [np.zeros((4, 2))]
    for _ in range(rounds):
        local = []
        for client in range(3):
            x, y, w = X[client == OWNERS], Y[client == OWNERS], weights[-1]
            for _ in range(STEPS):
                w = w - RATE * 2 * x.T @ (x @ w - y) / (len(x) * 2)
            local.append(w)
        weights.append(np.average(local, axis=0, weights=[6, 9, 15]))
    return weights


def test_a_regression_trains_and_is_evaluated_as_by_hand() -> None:
    result = simulation(Y, linear(2, "squared_error")).run(4, eval_every=1)
    errors = np.array([X[::2] @ w - Y[::2] for w in by_hand(4)])
    np.testing.assert_allclose(result.loss, (errors**2).mean((1, 2)), rtol=1e-4)
    np.testing.assert_allclose(result.rmse, np.sqrt((errors**2).mean((1, 2))), rtol=1e-4)
    np.testing.assert_allclose(result.mae, abs(errors).mean((1, 2)), rtol=1e-4)
    assert "accuracy" not in result
    assert (result.rmse.attrs["better"], result.rmse.attrs["units"]) == ("lower", "unit of y")
    assert (result.mae.attrs["better"], result.mae.attrs["units"]) == ("lower", "unit of y")


@pytest.mark.slow
def test_errors_of_single_clients_and_of_the_validation_set() -> None:
    data = afl.data.from_arrays(X, Y, OWNERS, test_fraction=0.4).with_validation(0.3)
    sim = simulation(Y, linear(2, "squared_error"), data)
    result = sim.run(2, eval_every=1, diagnostics="per_client")
    weights = np.asarray(sim.train(2).params["kernel"])
    squares = ((data.x_test @ weights - data.y_test) ** 2).mean(1)
    expected = [np.sqrt(squares[data.test_clients == client].mean()) for client in range(3)]
    np.testing.assert_allclose(result.client_rmse[-1], expected, rtol=1e-4)
    np.testing.assert_allclose(result.validation_rmse, np.sqrt(result.validation_loss), rtol=1e-5)
    assert np.unique(result.client_rmse[-1]).size == 3
    median, worst = afl.plot.client_spread(result, metric="rmse").axes[0].lines
    np.testing.assert_allclose(worst.get_ydata(), result.client_rmse.max("population"))
    np.testing.assert_allclose(median.get_ydata(), result.client_rmse.median("population"))


@pytest.mark.slow
def test_targets_of_float64_train_in_float64() -> None:
    with jax.enable_x64(True):
        model = afl.models.from_linen(
            nn.Dense(2, use_bias=False, kernel_init=nn.initializers.zeros, param_dtype=np.float64), loss="squared_error"
        )
        sim = simulation(Y.astype(float), model)
        result = sim.run(2, eval_every=1)
    errors = np.array([X[::2] @ w - Y[::2] for w in by_hand(2)])
    np.testing.assert_allclose(result.loss, (errors**2).mean((1, 2)), rtol=1e-7)
    assert sim.data.y_test.dtype == np.float64


class Tagger(nn.Module):
    """Logits [B, 4, 3]: each input is a token, and each output is its class."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(3)(x[..., None])


@pytest.mark.slow
def test_a_label_per_token_with_padding() -> None:
    labels = np.digitize(X, [-0.5, 0.5])
    padded = np.where(np.arange(4) < RNG.integers(1, 5, size=(30, 1)), labels, -100)
    result = simulation(padded, afl.models.from_linen(Tagger())).run(60, eval_every=60)
    assert result.accuracy[-1] > 0.7 > result.accuracy[0]
    other = np.where(padded < 0, 0, padded)
    assert simulation(other, afl.models.from_linen(Tagger())).run(60, eval_every=60).accuracy[-1] != result.accuracy[-1]


def test_a_confusion_matrix_leaves_padding_out() -> None:
    labels, outputs = np.array([[0, 1], [-1, 1]]), np.eye(2)[[[0, 0], [1, 1]]]
    np.testing.assert_array_equal(afl.models.confusion_matrix(labels, outputs), [[1, 0], [1, 1]])
