"""`diagnostics="local_accuracy"`: the client's own model before it is merged, on its held-out samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jaxafl as afl
from jaxafl.data import held_out
from jaxafl.options import UserError
from tests.test_set_metrics import CLASSES, MODELS

CLIENTS = 6


def data(own_test: bool = False) -> afl.data.FederatedData:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 6)).astype(np.float32)
    y = np.argmax(x[:, :CLASSES] + 0.5 * rng.normal(size=(90, CLASSES)), axis=1)
    clients = rng.integers(0, CLIENTS, 90)
    clients[clients == CLIENTS - 1] = np.where(np.arange((clients == CLIENTS - 1).sum()) < 2, CLIENTS - 1, 0)
    found = afl.data.from_arrays(x, y, clients, test_fraction=0.3, name="points")  # of the last client: none
    return found if own_test else found.owned_test(None).with_validation(0.3, seed=0)


def simulation(pair: Any = None, model: Any = None, own_test: bool = False, **client: Any) -> afl.Simulation:
    replaces = afl.server.fedasync(alpha=1.0, staleness="constant", mix="model")  # x_{t+1} is the client's own model
    server, clock = pair or (replaces, afl.clock.free_running(concurrency=4, durations=afl.clock.uniform(1, 3)))
    local = {"learning_rate": 0.3, "steps": 3, "batch_size": 4} | client
    return afl.Simulation(data(own_test), model or afl.models.logistic(CLASSES), afl.Client(**local), server, clock)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "own_test"),
    [("mlp", False), *(pytest.param(*one, marks=pytest.mark.slow) for one in (("normed", True), ("frozen", False)))],
)
def test_a_model_that_replaces_the_global_one_has_the_accuracy_of_the_evaluation(model, own_test, monkeypatch):
    monkeypatch.setattr("jaxafl.engine.devices.BATCH", 2)  # several pieces for each client
    sim = simulation(model=MODELS[model](), own_test=own_test)
    result = sim.run(12, eval_every=1, diagnostics=("local_accuracy", "per_client"))
    assert result.local_accuracy.dims == ("step", "arrival")
    who = result.client_id.values[:, 0]
    expected = result.client_accuracy.values[1 + np.arange(12), who]
    np.testing.assert_allclose(result.local_accuracy.values[:, 0], expected, rtol=1e-6)
    assert len(set(expected[np.isfinite(expected)])) > 2


def test_a_client_without_held_out_samples_has_none() -> None:
    sim = simulation()
    result = sim.run(12, diagnostics="local_accuracy")
    samples = held_out.owned_rows(sim.data.owners, CLIENTS, 500).samples
    assert samples.tolist()[CLIENTS - 1] == 0 and samples.sum() == len(sim.data.validation.client)
    missing = np.isnan(result.local_accuracy.values[:, 0])
    np.testing.assert_array_equal(missing, samples[result.client_id.values[:, 0]] == 0)


def test_what_cannot_be_evaluated_is_an_error() -> None:
    sim = simulation(own_test=True)
    nothing = afl.Simulation(sim.data.owned_test(None), sim.model, sim.client, sim.server, sim.clock)
    with pytest.raises(UserError, match="held-out"):
        nothing.run(2, diagnostics="local_accuracy")
