"""A small simulation per kind of engine, and how results are compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import optax
import pytest
import xarray as xr

import jaxafl as afl

CLIENTS, EVERY = 6, 4
RUNS = afl.clock.uniform(1, 5)
PAIRS: dict[str, tuple[Any, Any]] = {
    "planned": (afl.server.fedbuff(0.5), afl.clock.free_running(concurrency=4, buffer=2, durations=RUNS)),
    "online": (afl.server.asyncfeded(kappa=0.5), afl.clock.free_running(concurrency=4, durations=RUNS)),
    "synchronous": (afl.server.fedadam(0.1), afl.clock.synchronous(cohort=3, durations=RUNS)),
    "before": (afl.server.fedasync(0.5), afl.clock.free_running(concurrency=5, before_step=True, durations=RUNS)),
    "skew": (
        afl.server.fadas(0.05),
        afl.clock.free_running(concurrency=5, buffer=2, dispatch="step", start_skew=True, durations=RUNS),
    ),
    "bernoulli": (afl.server.psurdg(0.1), afl.clock.bernoulli(0.4, 0.6)),
    "stale": (afl.server.afl(), afl.clock.stale_rounds(participants=3, max_staleness=3, durations=RUNS)),
    "sampled": (afl.server.defedavg_niid(), afl.clock.sampled(drawn=3, durations=RUNS)),
    "interrupting": (
        afl.server.quafl(),
        afl.clock.interrupting(period=1.5, contacted=3, durations=afl.clock.uniform(0.2, 1, per="step")),
    ),
    "semi_async": (afl.server.safa(), afl.clock.semi_async(fraction=0.5, lag=2, durations=RUNS)),
}


RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(48, 3)).astype(np.float32), RNG.integers(0, 2, 48)
DATA = afl.data.from_arrays(X, Y, np.arange(48) % CLIENTS, test_fraction=0.25, name="points")
MODEL = afl.models.logistic(2)


def simulation(name: str = "planned", **client: Any) -> afl.Simulation:
    algorithm, clock = PAIRS[name]
    given = {"learning_rate": 1.0, "steps": 1, "batch_size": None} if name == "bernoulli" else {}
    local = {"learning_rate": 0.1, "steps": 3, "batch_size": 4} | given | client
    return afl.Simulation(DATA, MODEL, afl.Client(optax.sgd, **local), algorithm, clock)


def assert_same(found: xr.Dataset, expected: xr.Dataset) -> None:
    """Equal bits of all variables, but of wall-clock times."""
    ours, theirs = ({name for name in one.variables if not str(name).endswith("_seconds")} for one in (found, expected))
    assert ours == theirs
    for name in ours:
        assert found[name].dtype == expected[name].dtype, name
        np.testing.assert_array_equal(found[name].values, expected[name].values, err_msg=str(name))


class Boom(afl.callbacks.Callback):
    """Raises after some server steps."""

    def __init__(self, after: int) -> None:
        self.after = after

    def chunk(self, chunk: afl.callbacks.Chunk) -> None:
        if chunk.stop >= self.after:
            raise RuntimeError("boom")


def broken(sim: afl.Simulation, steps: int, after: int, *callbacks: Any, **how: Any) -> Any:
    """The error of a run that breaks after some server steps."""
    with pytest.raises(RuntimeError, match="boom") as caught:
        sim.run(steps, callbacks=[*callbacks, Boom(after)], **how)
    return caught.value


@pytest.fixture(params=["planned", pytest.param("online", marks=pytest.mark.slow)])
def kind(request: pytest.FixtureRequest) -> str:
    """Both ways in which a single run is made."""
    return str(request.param)
