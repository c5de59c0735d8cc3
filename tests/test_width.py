"""How many lanes a run has on an accelerator."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import optax
import pytest

import jaxafl as afl
from jaxafl.engine import validate, width
from jaxafl.engine.planned import plan_of
from jaxafl.engine.width import LocalStep, Rates, local_step_of, rates_of

RATES = Rates(operations=1e12, bandwidth=1e12, launch=1e-6)


@pytest.fixture(autouse=True)
def accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(width, "rates_of", lambda kind: RATES)


def simulation(concurrency: int = 64, batch_size: int | None = 10) -> afl.Simulation:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2000, 30)).astype(np.float32), rng.integers(0, 10, 2000)
    data = afl.data.from_arrays(x, y, np.arange(2000) % 100, x_test=x[:10], y_test=y[:10])
    client = afl.Client(optax.sgd, learning_rate=0.1, steps=2, batch_size=batch_size)
    clock = afl.clock.free_running(concurrency=concurrency, buffer=4, durations=afl.clock.exponential(1.0))
    return afl.Simulation(data, afl.models.mlp(10, hidden=(20,)), client, afl.server.fedbuff(), clock)


@pytest.mark.parametrize(("batch_size", "samples"), [(10, 10), (7, 7), (None, 20)])
def test_what_a_local_step_needs_is_read_off_the_model(batch_size: int | None, samples: int) -> None:
    sim = simulation(batch_size=batch_size)
    found = local_step_of(sim.model, sim.data, sim.client)
    assert found.operations == 3 * 2 * samples * (30 * 20 + 20 * 10)
    weights = 4 * (30 * 20 + 20 + 20 * 10 + 10)
    assert found.moved > 3.4 * weights and found.kept > 3 * weights and found.launches > 2
    twice = local_step_of(sim.model, sim.data, dataclasses.replace(sim.client, micro_batch=2 * samples))
    assert twice.operations == 2 * found.operations and twice.launches == found.launches


def test_launches_are_shared_by_lanes_and_work_is_not() -> None:
    step = LocalStep(launches=20, operations=3e6, moved=5e6, kept=1e6)
    assert step.seconds(1, rates=RATES) == pytest.approx(25e-6)
    assert step.seconds(8, passes=10, segments=2, rates=RATES) == pytest.approx(10 * 60e-6 + 2 * 22e-6)


@pytest.mark.parametrize("moved", [0.0, 1e5, 1e6, 1e7, 1e9])
def test_the_width_is_the_fastest_of_all_powers_of_two(moved: float) -> None:
    """Where launches weigh, idle lanes are accepted; where work does, hardly any are."""
    sim, step = simulation(), LocalStep(20, 0.0, moved, 1.0)
    schedule = sim.schedule(200)
    plans = {lanes: plan_of(schedule, sim.server, lanes, lambda: step) for lanes in (1, 2, 4, 8, 16, 32, 64)}
    taken = {
        lanes: step.seconds(lanes, plan.executed(lanes) / lanes, len(plan.segments.active), RATES)
        for lanes, plan in plans.items()
    }
    chosen = plan_of(schedule, sim.server, None, lambda: step)
    assert taken[chosen.lanes] == min(taken.values())
    wasted = chosen.executed(chosen.lanes) / chosen.needed
    assert (wasted > 2) if moved == 0 else (wasted < 1.01) if moved == 1e9 else (wasted >= 1)


def test_lanes_that_advance_together_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    step = LocalStep(20, 0.0, 0.0, kept=100.0)
    monkeypatch.setattr(width, "available_bytes", lambda: 2000)
    assert (step.room(), step.room(2), step.room(3), step.room(100)) == (10, 5, 3, 1)
    assert [validate.chunk_of(lanes, None, step.room) for lanes in (1, 8, 16, 12, 11)] == [1, 8, 8, 6, 1]
    assert validate.chunk_of(16, 16, step.room) == 16  # asked for
    monkeypatch.setattr(width, "available_bytes", lambda: None)
    assert validate.chunk_of(64, None, step.room) == 64


def test_a_wide_fleet_has_a_wide_plan() -> None:
    """1,000 clients in flight that take about as long: nearly all lanes are busy."""
    clock = afl.clock.free_running(concurrency=1000, buffer=100, durations=afl.clock.uniform(4, 5))
    schedule = afl.clock.schedule(clock, 2000, np.full(2000, 2), 100, 0)
    plan = plan_of(schedule, afl.server.fedbuff(), None, lambda: LocalStep(20, 0.0, 1e3, 1.0))
    assert plan.lanes >= 512 and plan.mean_width > 400


def test_rates_of_devices_that_are_known_and_of_others() -> None:
    assert rates_of("NVIDIA H200") is rates_of("NVIDIA H200 NVL") is width.RATES["NVIDIA H200"]
    assert rates_of("TPU v5 lite") is width.RATES["TPU v5 lite"]
    assert rates_of("another") is width.RATES["NVIDIA A100"]
