"""AFL's local training in the oracle, worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from .client import Quadratic
from .client_epochs import EpochTraining, train_epochs
from .small_cases import vector

FAR = Quadratic(a=np.ones((1, 1)), c=np.array([[100.0]]))  # gradient w - 100
ZERO = Quadratic(a=np.ones((1, 1)), c=np.array([[0.0]]))  # gradient w, loss w^2 / 2
ROOT = math.sqrt(2)


def test_rates_fall_with_the_epoch_and_the_delay():
    # A fresh Adam steps by its rate: 1 + 1/sqrt 2 + 1/sqrt 3, and a third of it with alpha d = 2.
    training = EpochTraining(learning_rate=1.0, epochs=3, delay_weight=0.5, adam_reset="epoch", eps=0.0)
    moved = 1 + 1 / ROOT + 1 / math.sqrt(3)
    assert train_epochs(vector(0.0), FAR, training).delta == pytest.approx(moved)
    assert train_epochs(vector(0.0), FAR, training, delay=4.0).delta == pytest.approx(moved / 3)


def test_adam_goes_on_through_the_epochs_of_a_run():
    # Gradients -100 and -99: m = .9 .1 100 + .1 99, corrected by .19; v = .999 .001 100^2 + .001 99^2, by .001999.
    result = train_epochs(vector(0.0), FAR, EpochTraining(learning_rate=1.0, epochs=2, eps=0.0))
    second = (18.9 / 0.19) / math.sqrt((9.99 + 9.801) / 0.001999)
    assert result.model == pytest.approx(1 + second / ROOT)
    assert result.local_steps == 2


@pytest.mark.parametrize(("patience", "epochs_made"), [(1, 2), (2, 5), (None, 5)])
def test_early_stopping_returns_the_last_parameters(patience, epochs_made):
    # From .25: losses before the epochs .03125, then w = -.75: .28125 (no better: the first in a row), then
    # w = .70711 - .75: .00092 (better: the count starts anew), then w = .57735 - .0429: .1429 (no better), then
    # w = .5345 - .5: .0006 (better).
    ends = np.cumsum([0.25, -1, 1 / ROOT, 1 / math.sqrt(3), -1 / 2, -1 / math.sqrt(5)])
    training = EpochTraining(learning_rate=1.0, epochs=5, patience=patience, adam_reset="epoch", eps=0.0)
    result = train_epochs(vector(0.25), ZERO, training)
    np.testing.assert_allclose(result.epoch_losses, ends[:epochs_made] ** 2 / 2)
    assert result.model == pytest.approx(ends[epochs_made])
    assert result.loss == pytest.approx(np.mean(ends[:epochs_made] ** 2 / 2))


def test_a_loss_that_only_equals_the_best_is_no_improvement():
    # At the centre nothing moves: losses 0, 0, 0; the second and the third bring no improvement.
    training = EpochTraining(learning_rate=1.0, epochs=9, patience=2)
    assert train_epochs(vector(0.0), ZERO, training).epoch_losses == (0, 0, 0)


def test_mini_batches_make_several_steps_of_one_rate():
    # f over samples 1/2 (w - 4)^2 and 1/2 w^2. Epoch 0 at rate 1: sample 0 (loss 8) to 1, sample 1 (loss .5, gradient
    # 1): m = .9 (-.4) + .1, v = .999 .016 + .001.
    data = Quadratic(a=np.ones((2, 1)), c=np.array([[4.0], [0.0]]))
    result = train_epochs(vector(0.0), data, EpochTraining(learning_rate=1.0, epochs=1, eps=0.0), batches=[[[0], [1]]])
    assert result.model == pytest.approx(1 - (-0.26 / 0.19) / math.sqrt(0.016984 / 0.001999))
    assert result.epoch_losses == pytest.approx((4.25,))
    assert result.local_steps == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [({"adam_reset": "round"}, "adam_reset"), ({"epochs": 0}, "epoch"), ({"patience": 0}, "patience")],
)
def test_epoch_training_rejects(change, message):
    with pytest.raises(ValueError, match=message):
        EpochTraining(**{"learning_rate": 1.0, "epochs": 1, **change})


def test_train_epochs_rejects_too_few_batches():
    with pytest.raises(ValueError, match="2 epochs"):
        train_epochs(vector(0.0), ZERO, EpochTraining(learning_rate=1.0, epochs=2), batches=[[[0]]])
