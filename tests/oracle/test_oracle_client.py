"""Local training in the oracle, worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from .client import LocalTraining, Quadratic, train
from .small_cases import vector

# f(w) = 1/2 mean(2 (w - 1)^2, 4 w^2): gradient 3 w - 1. At w = 1: loss 1, gradient 2.
DATA = Quadratic(a=np.array([[2.0], [4.0]]), c=np.array([[1.0], [0.0]]))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # 1 - .1 2 = .8, gradient 1.4, .8 - .14
        ({}, 0.66),
        # v = 2, then 1 + 1.4 = 2.4: .8 - .24
        ({"momentum": 0.5}, 0.56),
        # 1 - .1 (2 + 1) = .7, gradient 1.1, v = 2.1, .7 - .1 (1.1 + 1.05)
        ({"momentum": 0.5, "nesterov": True}, 0.485),
        # 1.4 + (.8 - 1) = 1.2
        ({"proximal": 1.0}, 0.68),
        # 2 + .5 -> .75; 1.25 + .375 = 1.625
        ({"weight_decay": 0.5}, 0.5875),
        # .8, then half the rate: .8 - .07
        ({"step_multipliers": [1.0, 0.5]}, 0.73),
        # rate .1 / 4: 1 - .05 = .95, gradient 1.85, .95 - .04625
        ({"run_decay": 0.5}, 0.90375),
    ],
)
def test_two_local_steps_by_hand(options, expected):
    run = 2 if "run_decay" in options else 0
    result = train(vector(1.0), DATA, LocalTraining(learning_rate=0.1, steps=2, **options), run=run)
    np.testing.assert_allclose(result.model, [expected], rtol=1e-14)
    np.testing.assert_allclose(result.delta, [expected - 1], rtol=1e-13)


def test_two_adam_steps_by_hand():
    # Step 1: both corrections give back g = 2 and g^2, so the step is the rate: w = .9, gradient 1.7.
    # Step 2: m = .9 .2 + .1 1.7 = .35, corrected by .19; v = .999 .004 + .001 2.89 = .006886, corrected by .001999.
    result = train(vector(1.0), DATA, LocalTraining(learning_rate=0.1, steps=2, optimizer="adam", eps=0.0))
    np.testing.assert_allclose(result.model, [0.9 - 0.1 * (0.35 / 0.19) / math.sqrt(0.006886 / 0.001999)], rtol=1e-12)


def test_loss_is_the_mean_of_the_losses_before_each_step():
    # Loss 1 at w = 1 and 1/4 (2 .04 + 4 .64) = .66 at w = .8.
    assert train(vector(1.0), DATA, LocalTraining(learning_rate=0.1, steps=2)).loss == pytest.approx(0.83)


def test_mini_batches_by_hand():
    # Sample 1 at w = 1: gradient 4, loss 2, w = .6. Sample 0: gradient -.8, loss .16, w = .68.
    result = train(vector(1.0), DATA, LocalTraining(learning_rate=0.1), local_steps=2, batches=[[1], [0]])
    np.testing.assert_allclose(result.model, [0.68])
    assert result.loss == pytest.approx(1.08)


@pytest.mark.parametrize(
    "options", [{"local_steps": 0}, {"local_steps": 2, "batches": [[0]]}, {"local_steps": 3, "batches": None}]
)
def test_training_rejects_too_few(options):
    with pytest.raises(ValueError, match="local step"):
        train(vector(1.0), DATA, LocalTraining(learning_rate=0.1, step_multipliers=[1.0, 1.0]), **options)
