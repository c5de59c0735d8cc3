"""Diagnostics on request, against a slow recomputation of the same run."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxafl as afl
from jaxafl.references import BIBTEX
from tests.problems import classifier
from tests.variants import slow_but

CENTRES = np.array([[1.0, -2.0], [3.0, 0.5], [-1.0, 1.0], [0.5, 2.0]], np.float32)
WEIGHTS = np.array([3, 1, 2, 2])
RATE = 0.1


@pytest.fixture(scope="module")
def sim() -> afl.Simulation:
    """f_i(w) = ½‖w - c_i‖² held by clients of 3, 1, 2 and 2 equal samples."""
    clients = np.repeat(np.arange(4), WEIGHTS)
    data = afl.data.from_arrays(
        CENTRES[clients], np.zeros(len(clients), int), clients, x_test=CENTRES, y_test=np.zeros(4, int), num_classes=1
    )
    model = afl.models.from_functions(
        lambda key, batch: np.zeros(2, np.float32), lambda w, batch, key: 0.5 * ((w - batch.x) ** 2).sum(-1)
    )
    return afl.Simulation(
        data,
        model,
        afl.Client(optax.sgd, learning_rate=1.0, steps=1, batch_size=None),
        afl.server.audg(learning_rate=RATE),
        afl.clock.bernoulli([0.9, 0.2, 0.5, 0.5]),
    )


def test_gradient_error_drift_and_average(sim: afl.Simulation) -> None:
    result = sim.run(
        12,
        eval_every=4,
        diagnostics=("drift", "gradient_norm", "asynchronous_error", "average"),
        observe=lambda w: {"w": w},
    )
    versions = result.observe_w.values
    share = WEIGHTS / WEIGHTS.sum()
    for step in range(12):
        gradient = share @ (versions[step] - CENTRES)
        applied = (versions[step] - versions[step + 1]) / RATE
        np.testing.assert_allclose(result.gradient_norm_squared.values[step], (gradient**2).sum(), rtol=1e-5)
        error = np.linalg.norm(gradient - applied)
        np.testing.assert_allclose(result.asynchronous_error.values[step], error, rtol=1e-4, atol=1e-5)
        for place, staleness in enumerate(result.staleness.values[step]):
            start = -1 if np.isnan(staleness) else step - int(staleness)
            expected = np.nan if start < 0 else np.linalg.norm(versions[step] - versions[start])
            np.testing.assert_allclose(result.drift.values[step, place], expected, rtol=1e-5, atol=1e-6)
    for evaluation, made in enumerate(result.eval_step.values[1:], start=1):
        mean = versions[1 : made + 1].mean(0)
        loss = 0.5 * ((mean - CENTRES) ** 2).sum(-1).mean()
        np.testing.assert_allclose(result.average_loss.values[evaluation], loss, rtol=1e-5)
    # before the first step there is x_0 alone, and its average is itself
    assert result.average_loss.values[0] == result.loss.values[0]
    assert versions[0].tolist() != versions[1].tolist()


def test_the_drift_of_clients_or_regions_with_models_of_their_own_is_refused() -> None:
    durations = afl.clock.uniform(0.2, 1, per="step")
    contacts = afl.clock.interrupting(period=2.0, contacted=2, durations=durations)
    regions = afl.clock.regional_rounds(regions=[0, 0, 1, 1], after=2, durations=durations)
    for server, clock in ((afl.server.quafl(), contacts), (afl.server.fedat(), regions)):
        with pytest.raises(ValueError, match=f"clients or regions of {server.name} have models"):
            classifier(server=server, clock=clock).run(2, diagnostics="drift")


def test_datasets_and_models_are_cited() -> None:
    own = "@misc{own, title = {A dataset of my own}}"
    data = afl.data.femnist(2)
    data = dataclasses.replace(data, references=(*data.references, own))
    text = classifier(data=data, model=afl.models.cnn_asyncfeded(62), server=afl.server.asyncfeded()).citation()
    assert (
        "caldas2018" in text and own in text and text.count("@article{wang2022asyncfeded") == 1
    )  # by the model and by the server


def test_presets_are_cited_by_their_own_papers(sim: afl.Simulation) -> None:
    durations = afl.clock.constant(1.0)
    presets = {
        "maranjyan2025": afl.presets.ringmaster(2, durations, max_staleness=3),
        "tyurin2023": afl.presets.rennala(2, durations, batch=2),
        "jhunjhunwala2022": afl.presets.fedvarp(2, durations),
    }
    for key, preset in presets.items():
        assert BIBTEX[key] in dataclasses.replace(sim, server=preset.server, clock=preset.clock).citation()
    usual = dataclasses.replace(sim, server=afl.server.fedstale(), clock=afl.clock.synchronous(durations=durations))
    assert not any(BIBTEX[key] in usual.citation() for key in presets)


class telling(afl.server.Server):
    of: str = afl.options.static(default="run_seconds")
    accepts = afl.server.Delivery.STALE | afl.server.Delivery.CONTINUOUS

    def update(self, params: Any, state: Any, arrivals: Any) -> afl.server.Outcome:
        return afl.server.Outcome(params, state, {self.of: jnp.float32(1)})


@pytest.mark.parametrize("name", slow_but(["staleness", "loss", "runs_lost", "observe_x", "a/b"], "staleness", "a/b"))
def test_a_server_records_nothing_under_a_name_that_results_have(name: str) -> None:
    with pytest.raises(ValueError, match=f"telling records {name!r} in the `info`"):
        classifier(server=telling(of=name)).run(2)


def test_a_sweep_keeps_diagnostics_with_the_name_of_an_attribute() -> None:
    assert afl.sweep(classifier(server=telling()), {"seed": [0, 1]}, 2).run_seconds.dims == ("seed", "step")
