"""Successive halving: what goes on, what it is chosen by, and that it goes on where it stopped."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from typing import Any

import numpy as np
import pytest

import jaxafl as afl
from jaxafl.callbacks.base import Callback
from tests.sweep.conftest import simulation

RATES, SEEDS = [0.003, 0.1, 1e30, 30.0], [1, 2]
GRID = {"client.learning_rate": RATES}
pytestmark = pytest.mark.filterwarnings("ignore:tune. without a finite")


def held_out(labels: Any = None, **client: float) -> afl.Simulation:
    """With a validation split; `labels`: of the test set instead of its own; `client`: options."""
    sim = simulation()
    data = sim.data if labels is None else dataclasses.replace(sim.data, y_test=labels)
    own = dataclasses.replace(sim.client, hyperparameters=sim.client.hyperparameters | client)
    return dataclasses.replace(sim, data=data.with_validation(0.2, seed=0), client=own)


def search(folder: pathlib.Path, callbacks: Any = ()) -> Any:
    how = dict(server_steps=6, seeds=SEEDS, factor=2, eval_every=3, together=1, callbacks=callbacks)
    return afl.tune(held_out(), GRID, "loss", folder=folder, **how)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, Any]:
    folder = tmp_path_factory.mktemp("tuned")
    return folder, search(folder)


@pytest.mark.slow
def test_the_best_half_goes_on_by_the_mean_over_seeds_on_the_validation_split(found: tuple[Any, Any]) -> None:
    """A survivor's scores are those of one run that goes on, though it begins anew."""
    tuned, losses = found[1], np.full((2, len(RATES)), np.inf)
    for place, rate in enumerate(RATES):
        runs = [held_out(learning_rate=rate).run(6, eval_every=3, seed=seed) for seed in SEEDS]
        if all(run.attrs["failed_step"] < 0 for run in runs):
            losses[:, place] = np.mean([run.validation_loss.values[1:] for run in runs], axis=0)
    losses[1, np.argsort(losses[0])[2:]] = np.nan
    assert tuned.dataset.server_steps.values.tolist() == [3, 6]
    np.testing.assert_allclose(tuned.dataset.score.values, losses, rtol=1e-5)
    best = RATES[int(np.nanargmin(losses[1]))]
    assert tuned.best == {"client.learning_rate": best}
    assert tuned.simulation.client.hyperparameters == {"learning_rate": best}
    assert np.isfinite(losses).sum(axis=1).tolist() == [3, 2]


@pytest.mark.slow
def test_runs_that_failed_are_worst_and_named(found: tuple[Any, Any]) -> None:
    tuned = found[1]
    assert tuned.failed == ("client.learning_rate=1e+30, seed=1", "client.learning_rate=1e+30, seed=2")
    assert tuned.dataset.score.values[0, 2] == np.inf
    with pytest.raises(ValueError, match="no configuration has a finite validation_accuracy within 3 server steps"):
        afl.tune(held_out(), {"client.learning_rate": [1e30]}, server_steps=3, eval_every=3)
    with pytest.raises(ValueError, match="no configuration has a finite validation_auc"):
        afl.tune(held_out(), GRID, "auc", server_steps=3, rungs=1, metrics={"auc": lambda labels, outputs: np.nan})


def test_runs_are_not_stopped_by_the_test_set() -> None:
    with pytest.raises(ValueError, match=re.escape("write StopAt(validation_loss=...), got StopAt(loss=...)")):
        afl.tune(held_out(), GRID, server_steps=6, callbacks=afl.callbacks.StopAt(loss=9.0))


@pytest.mark.slow
def test_runs_may_be_stopped_by_the_validation_split() -> None:
    stop = [afl.callbacks.StopAt(validation_loss=1e9)]
    with pytest.warns(UserWarning, match=r"tune: 2 configurations have the score .* the first in the grid is taken"):
        tuned = afl.tune(held_out(), {"client.learning_rate": [0.1, 0.2]}, "loss", server_steps=3, callbacks=stop)
    assert (tuned.dataset.local_steps.values == 0).all()
    assert "2 configurations have the score" in tuned.tied and str(tuned).endswith(tuned.tied)


@pytest.mark.slow
def test_limits_end_runs_and_those_of_resources_grow_from_rung_to_rung() -> None:
    grid, limits = {"client.learning_rate": [0.1]}, {"updates": 9, "loss": -1.0}
    tuned = afl.tune(held_out(), grid, "loss", until=limits, factor=2, rungs=2, eval_every=2)
    first, last = tuned.results
    assert first.step_arrivals.sum("step").values.tolist() == [[4]]
    assert first.stopped == "until updates 4" and last.stopped == "until updates 9"
    assert tuned.dataset.server_steps.values.tolist() == [2, 5]
    assert "validation loss within 5 server steps" in tuned.table()


@pytest.mark.slow
def test_seeds_are_not_those_of_a_comparison_and_edges_are_named() -> None:
    with pytest.warns(
        UserWarning, match=r"the best client.learning_rate, 0.1, is the largest of its grid: widen the grid"
    ):
        tuned = afl.tune(
            held_out(), {"client.learning_rate": [1e-9, 1e-8, 0.1]}, "loss", server_steps=2, seeds=2, rungs=1
        )
    assert tuned.dataset.seed.values.tolist() == [1000, 1001]
    assert tuned.edges == ("the best client.learning_rate, 0.1, is the largest of its grid",)
    with pytest.warns(UserWarning, match="stopped being finite"):  # the best is no number, but one per client
        each = {"client.learning_rate": [1e30, 1e29, np.full(held_out().data.num_clients, 0.1)]}
        assert not afl.tune(held_out(), each, "loss", server_steps=2, rungs=1).edges
    lines = str(tuned).splitlines()
    assert lines[-2:] == ["best: client.learning_rate=0.1", f"{tuned.edges[0]}: widen the grid"]
    assert lines[4].startswith("| **client.learning_rate=0.1** |")
    inside = afl.tune(held_out(), {"client.learning_rate": [1e-9, 0.1, 1e30]}, "loss", server_steps=2, rungs=1)
    assert inside.edges == () and "widen" not in str(inside)


@pytest.mark.slow
def test_a_repeated_call_resumes_from_its_folder(found: tuple[Any, Any]) -> None:
    folder, tuned = found
    told = []

    class Told(Callback):
        def begin(self, run: Any) -> None:
            told.append(run)

    again = search(folder, Told())
    assert not told and again.best == tuned.best
    np.testing.assert_array_equal(again.dataset.score, tuned.dataset.score)


@pytest.mark.slow
def test_labels_of_the_test_set_do_not_change_scores() -> None:
    labels = np.random.default_rng(1).integers(0, 3, 20)
    one, other = (afl.tune(held_out(test), GRID, server_steps=6, seeds=SEEDS) for test in (None, labels))
    np.testing.assert_array_equal(one.dataset.score, other.dataset.score)
    assert one.best == other.best
    assert np.any(one.results[0].loss.values != other.results[0].loss.values)


@pytest.mark.slow
def test_grids_and_samples_of_several_options() -> None:
    """Static options too, and what varies together; a tie goes to the first."""
    grid = {"clock.buffer": [1, 2], ("server.learning_rate", "client.learning_rate"): [(1, 0.1), (0.5, 0.2)]}
    tuned = afl.tune(held_out(), grid, server_steps=4, rungs=1, at="best", eval_every=1)
    assert tuned.dataset.sizes["configuration"] == 4 and list(tuned.best) == [
        "clock.buffer",
        "server.learning_rate",
        "client.learning_rate",
    ]
    best = tuned.results[0].validation_accuracy.values.max(axis=(1, 2))
    np.testing.assert_allclose(tuned.dataset.score.values[0], best)
    place = int(best.argmax())
    assert tuned.dataset.attrs["best"] == place
    assert tuned.best["clock.buffer"] == [1, 1, 2, 2][place] == tuned.simulation.clock.buffer


@pytest.mark.slow
def test_personal_metrics_choose_by_the_validation_split_only() -> None:
    sim = held_out()
    sim = dataclasses.replace(sim, client=dataclasses.replace(sim.client, personal=lambda path: "bias" in path))
    tuned = afl.tune(sim, {"client.learning_rate": [0.0, 0.1]}, "personal_loss", server_steps=6, rungs=1)
    assert tuned.best == {"client.learning_rate": 0.1}
    np.testing.assert_allclose(tuned.dataset["values"][0, :, 0], tuned.results[0].personal_loss[:, 0, -1], rtol=1e-6)
    owned = dataclasses.replace(sim.data, test_clients=np.zeros(len(sim.data.y_test), np.int32))
    for how in (
        {"metric": "personal_loss"},
        {"until": {"personal_loss": 0.1}},
        {"callbacks": afl.callbacks.StopAt(personal_loss=1)},
    ):
        with pytest.raises(ValueError, match="own test samples, which choose nothing"):
            afl.tune(dataclasses.replace(sim, data=owned), GRID, server_steps=6, **how)


def test_invalid_options_raise_before_any_run() -> None:
    grid = {"client.learning_rate": [0.1, 0.2, 0.3]}
    for wrong, said in (
        (lambda: afl.tune(simulation(), grid, server_steps=9), "data.with_validation(0.1, seed=0)"),
        (lambda: afl.tune(held_out(), {"seed": [1]}, server_steps=9), "give seeds=..."),
        (lambda: afl.tune({"a": held_out()}, grid, server_steps=9), "one Simulation"),
        (lambda: afl.tune(held_out(), grid, server_steps=9, factor=1), "factor must be at least 2"),
        (lambda: afl.tune(held_out(), grid, server_steps=3, rungs=4), "too few for 4 rungs"),
        (lambda: afl.tune(held_out(), grid, until={"updates": 2}, rungs=3), "tune: 2 updates are too few"),
        (lambda: afl.tune(held_out(), grid), "or a limit of simulated time"),
        (lambda: afl.tune(held_out(), grid, until={"loss": 1.0}), "or a limit of simulated time"),
        (
            lambda: afl.tune(held_out(), grid, "personal_accuracy", server_steps=9),
            "there is no metric 'personal_accuracy'",
        ),
    ):
        with pytest.raises((ValueError, TypeError), match=re.escape(said)):
            wrong()
