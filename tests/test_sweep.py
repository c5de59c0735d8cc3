"""Sweeps give the numbers of separate runs, in as few programs as possible."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
import optax
import pytest
import xarray as xr

import jaxafl as afl
from jaxafl.callbacks.hooks import Hook
from jaxafl.device import compilation
from jaxafl.engine.lockstep import Lockstep
from jaxafl.engine.loop import run_to_end
from jaxafl.engine.problem import Speed
from jaxafl.sweep.axes import replace_at
from tests.callbacks.conftest import Boom
from tests.problems import classifier, points

STEPS, EVERY = 12, 4


@pytest.fixture(scope="module")
def sim() -> afl.Simulation:
    return classifier(
        data=points(8, 80),
        client=afl.Client(optax.sgd, learning_rate=0.01, momentum=0.5, steps=3, batch_size=5),
        clock=afl.clock.free_running(concurrency=5, buffer=2, durations=afl.clock.uniform(1, 5)),
    )


def same(member: xr.Dataset, run: xr.Dataset) -> None:
    """Schedules exactly, numbers to float rounding."""
    for name in ("time", "client_id", "staleness", "started_at", "arrived_at"):
        np.testing.assert_array_equal(member[name].values, run[name].values)
    for name in ("accuracy", "loss", "delta_norm", "local_loss"):
        np.testing.assert_allclose(member[name].values, run[name].values, rtol=2e-5, atol=1e-6)


def in_lockstep(sim: afl.Simulation, steps: int, every: int, lanes: int, accelerator: bool = False) -> Any:
    """Runs three seeds together and compares each with its own run; returns their static shapes."""
    seeds = [0, 1, 2]
    schedules = [sim.schedule(steps, seed) for seed in seeds]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxafl.device.hardware._as_accelerator", accelerator)
        execution = Lockstep([sim.problem(seed) for seed in seeds], schedules, every, Speed(lanes))
        ended = run_to_end(execution, steps, every, Hook(), time.perf_counter())
    for seed, trained in zip(seeds, ended, strict=True):
        same(sim.result(trained, seed), sim.run(steps, eval_every=every, seed=seed))
    return execution.shapes


@pytest.mark.slow
@pytest.mark.parametrize(("lanes", "known"), [(1, False), (4, False), (4, True)])
def test_lockstep_is_separate_runs(sim: afl.Simulation, lanes: int, known: bool) -> None:
    """`known`: with a static number of local steps, as on an accelerator."""
    shapes = in_lockstep(sim, STEPS, EVERY, lanes, accelerator=known)
    assert (shapes.local_steps == sim.client.steps) is known


@pytest.mark.slow
def test_lockstep_of_rounds(sim: afl.Simulation) -> None:
    """As on an accelerator, where all loops but that over blocks of rows are of known length."""
    clock = afl.clock.synchronous(cohort=4, durations=afl.clock.uniform(1, 5))
    rounds = dataclasses.replace(sim, server=afl.server.fedavg(), clock=clock)
    loops = in_lockstep(rounds, 10, 5, lanes=4, accelerator=True)
    assert (loops.local_steps, loops.steps_per_row, loops.rows_per_check) == (sim.client.steps, 1, 5)


@pytest.mark.slow
def test_attackers_in_lockstep_know_only_what_has_arrived(sim: afl.Simulation) -> None:
    attack = afl.attack.alie(clients=[0, 1, 2], knowledge="delivered")
    clock = afl.clock.free_running(concurrency=6, durations=afl.clock.uniform(1, 5))
    in_lockstep(dataclasses.replace(sim, clock=clock, attack=attack), 60, 60, lanes=8)


@pytest.mark.slow
def test_dynamic_axes_compile_one_program(sim: afl.Simulation) -> None:
    known = set(compilation._programs)
    afl.sweep(sim, {"seed": [11, 12, 13], "clock.durations.high": [4.0, 5.0]}, STEPS, eval_every=EVERY)
    new = [key[0].__name__ for key in compilation._programs if key not in known]
    # ring slots and store rows are those that a plan needs, so six plans may have two shapes, not six
    assert new.count("advance") <= 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "column"),
    [
        ("server.learning_rate", [0.5, 1]),
        ("client.momentum", [0, 0.9]),
        ("client.proximal", [None, 0.1]),
        ("server.momentum", [0.9, None]),
        ("clock.durations.high", [[2.0] * 8, [5.0] * 8]),
        ("client.steps", [[1, 2, 3, 4, 1, 2, 3, 4], 3]),
    ],
)
def test_values_of_any_form_are_separate_runs(sim: afl.Simulation, path: str, column: list[Any]) -> None:
    """Whole numbers beside fractions, nothing beside a number, lists."""
    found = afl.sweep(sim, {path: column}, 4, eval_every=4, together=2)
    for index, value in enumerate(column):
        same(found.isel({path: index}), replace_at(sim, path, value).run(4, eval_every=4))


@pytest.mark.slow
def test_indices_stay_whole_and_numbers_are_missing_where_members_differ_in_length(sim: afl.Simulation) -> None:
    found = afl.sweep(sim, {"clock.buffer": [1, 3]}, 4, eval_every=4)
    for name, missing in (("client_id", -1), ("run_index", -1), ("arrived", False)):
        assert found[name].dtype.kind in "ib"
        assert (found[name].values[0, :, 1:] == missing).all()
    for name in ("staleness", "local_steps", "multiplicity", "arrived_at", "delta_norm"):
        assert found[name].isnull().values[0, :, 1:].all() and found[name].notnull().values[1].all()


@pytest.mark.slow
def test_a_recording_that_runs_out_costs_no_other_member_its_results(sim: afl.Simulation) -> None:
    """All schedules are made before the first member trains."""
    clocks = [afl.clock.trace(sim.clock, durations=np.ones((8, runs))) for runs in (50, 2)]
    with pytest.raises(ValueError, match=r"run out.*in the sweep at clock=free_running 1"):
        afl.sweep(sim, {"clock": clocks}, 20, callbacks=Boom(0))


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ({}, "at least one axis"),
        ({"severs.lam": [1.0]}, "begins with"),
        ({"data.alpha": [0.0, 5.0]}, "sweep over whole ones: {'data'"),
        ({"clock.durations.name": ["a"]}, "no option 'name'"),
        ({"server.learning_rate.x": [1]}, "server.learning_rate"),
        ({"server.learning_rate": [0.1], "server": [afl.server.fadas()]}, "overlap"),
        ({"seed": []}, "needs a list of values"),
        ({"server.learning_rate": [1.0, -1.0]}, "learning_rate.* .in the sweep at"),
        ({"seed": [-1]}, "seed"),
    ],
)
def test_invalid_input_raises_before_the_first_run(sim: afl.Simulation, axes: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        afl.sweep(sim, axes, STEPS)
