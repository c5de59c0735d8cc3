"""Pictures of what a run will do, and of what it did as a film."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

import jaxafl as afl
from jaxafl.plot.plan import _replay
from tests.problems import classifier, points


@pytest.fixture(scope="module")
def sim() -> afl.Simulation:
    return classifier(
        data=points(8),
        client=afl.Client(learning_rate=0.01, steps=5, batch_size=10),
        clock=afl.clock.free_running(concurrency=6, buffer=2, durations=afl.clock.lognormal(0.0, 0.7)),
    )


@pytest.mark.parametrize("lanes", [1, 3, 8])
def test_what_a_schedule_takes_is_trained_from_versions_that_are_still_kept(sim: afl.Simulation, lanes: int) -> None:
    schedule, planned = sim.schedule(20), sim.plan(20, lanes=lanes)
    story = _replay(planned, 20)
    taken = zip(schedule.client[schedule.mask], schedule.staleness[schedule.mask], strict=True)
    assert sorted(map(tuple, story.trained[:, 3:])) == sorted(taken)
    # 5 local steps a run: no lane trains two runs at once, and none is idle while another has one run more to make
    for lane in range(lanes):
        own = story.trained[story.trained[:, 0] == lane]
        assert (own[:, 2] - own[:, 1] == 5).all() and (np.diff(np.sort(own[:, 1])) >= 5).all()
    # a slot holds one version at a time, and whoever loads one finds it there
    versions = schedule.version[schedule.mask]
    found = [int(v) for t, slot in story.started for v, (s, a, b) in enumerate(story.kept) if s == slot and a <= t <= b]
    assert sorted(found) == sorted(versions)
    for slot in range(planned.slots):
        own = story.kept[story.kept[:, 0] == slot]
        assert (own[1:, 1] > own[:-1, 2]).all()


def test_the_picture_of_a_plan_has_a_row_per_lane_and_slot(sim: afl.Simulation, tmp_path: pathlib.Path) -> None:
    planned = sim.plan(20, lanes=3)
    figure = afl.plot.plan(planned, path=tmp_path / "plan.png", max_steps=10)
    lanes, ring = [ax for ax in figure.axes if ax.get_ylabel() in ("lane", "slot of the ring")]
    assert (len(lanes.get_yticks()), len(ring.get_yticks())) == (3, planned.slots)
    assert figure.get_suptitle() == "the first 10 of 20 server steps"
    assert (tmp_path / "plan.png").stat().st_size > 5000
