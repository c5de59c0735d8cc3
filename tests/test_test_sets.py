"""Several test sets: a dimension of the result."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import jaxafl as afl
from jaxafl.models import confusion_matrix
from jaxafl.options import UserError
from tests.problems import classifier

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 5)).astype(np.float32)
Y = np.argmax(X[:, :3], axis=1)
CLEAN = (X[40:50], Y[40:50])
SHIFTED = (X[50:] + 0.5, Y[50:])  # of as many samples or others
NOISY = (X[45:] + RNG.normal(size=(15, 5)).astype(np.float32), Y[45:])
LOGISTIC = afl.models.logistic(3)
HOW: dict[str, Any] = {"server_steps": 6, "eval_every": 3}


def data(test: Any = None, **given: Any) -> afl.data.FederatedData:
    sets = {"clean": CLEAN, "shifted": SHIFTED, "noisy": NOISY} if test is None else test
    return afl.data.from_arrays(X[:40], Y[:40], np.arange(40) % 4, test=sets, num_classes=3, **given)


def simulation(data: afl.data.FederatedData) -> afl.Simulation:
    clock = afl.clock.free_running(concurrency=3, buffer=2, durations=afl.clock.uniform(1, 2))
    client = afl.Client(learning_rate=0.3, steps=2, batch_size=5)
    return classifier(data=data, model=LOGISTIC, client=client, clock=clock)


@pytest.mark.slow
def test_each_set_has_the_metrics_of_a_run_that_is_tested_on_it_alone() -> None:
    metrics = {"right": lambda y, outputs: (outputs.argmax(-1) == y).mean(), "confusion": confusion_matrix}
    result = simulation(data()).run(**HOW, metrics=metrics, diagnostics="average")
    assert result.test_set.values.tolist() == ["clean", "shifted", "noisy"]
    assert result.test_accuracy.dims == ("evaluation", "test_set") and result.accuracy.dims == ("evaluation",)
    assert result.test_confusion.dims == ("evaluation", "test_set", "label", "predicted")
    np.testing.assert_array_equal(result.accuracy, result.test_accuracy.sel(test_set="clean"))
    for name, (x, y) in {"clean": CLEAN, "shifted": SHIFTED, "noisy": NOISY}.items():
        own = afl.data.from_arrays(X[:40], Y[:40], np.arange(40) % 4, x_test=x, y_test=y, num_classes=3)
        alone = simulation(own).run(**HOW, metrics=metrics, diagnostics="average")
        found = result.sel(test_set=name)
        for metric in ("accuracy", "loss", "right", "confusion"):
            np.testing.assert_allclose(found[f"test_{metric}"], alone[metric], rtol=1e-5, err_msg=metric)
        np.testing.assert_allclose(found.average_test_accuracy, alone.average_accuracy)
        np.testing.assert_allclose(found.final_test_accuracy, alone.final_accuracy)
    assert "test_set" not in alone.dims and "test_accuracy" not in alone
    assert result.test_accuracy.attrs["better"] == "higher"


def test_sets_are_added_to_data_of_any_source() -> None:
    held = afl.data.from_arrays(X, Y, np.arange(60) % 4, test_fraction=0.25)
    more = held.with_test_sets({"shifted": (X[:7].astype(np.float64) + 1, Y[:7].astype(np.int64))}, first="clean")
    assert more.description["test_sets"] == "clean, shifted" and more.test_clients is held.test_clients
    assert more.test_sets["shifted"][0].dtype == np.float32 and more.test_sets["shifted"][1].dtype == np.int32
    result = simulation(dataclasses.replace(more)).run(**HOW)
    np.testing.assert_array_equal(result.loss, simulation(held).run(**HOW).loss)
    assert result.test_loss.sizes["test_set"] == 2


@pytest.mark.parametrize(
    ("test", "text"),
    [
        ({"clean": CLEAN, "small": (X[:5, :3], Y[:5])}, "'small'"),
        ({"clean": CLEAN, "short": (X[:5], Y[:4])}, "'short'"),
        ({"clean": CLEAN, "real": (X[:5], X[:5, 0])}, "'real'"),
        ({"clean": CLEAN, "new": (X[:5], Y[:5] + 1)}, "'new'"),
    ],
)
def test_unfit_sets_are_errors(test: Any, text: str) -> None:
    with pytest.raises((TypeError, UserError), match=text):
        data(test)
    with pytest.raises(UserError, match="'noisy'"):
        data().with_test_sets({"noisy": CLEAN})
