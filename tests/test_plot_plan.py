"""Pictures of what a run will do, and of what it did as a film."""

from __future__ import annotations

import pathlib

import numpy as np

import jaxafl as afl
from tests.problems import classifier, points


def test_the_picture_of_a_plan_has_a_row_per_lane_and_slot(tmp_path: pathlib.Path) -> None:
    """A bar for every run of 5 local steps, and a dot for it in the bar of the version that it starts from."""
    client = afl.Client(learning_rate=0.01, steps=5, batch_size=10)
    clock = afl.clock.free_running(concurrency=6, buffer=2, durations=afl.clock.lognormal(0.0, 0.7))
    sim = classifier(data=points(8), client=client, clock=clock)
    schedule, planned = sim.schedule(20), sim.plan(20, lanes=3)
    lanes, ring = afl.plot.plan(planned).axes[:2]
    assert sorted(int(text.get_text()) for text in lanes.texts) == sorted(schedule.client[schedule.mask])
    ends = [path.vertices[:, 0] for bars in lanes.collections[:-1] for path in bars.get_paths()]
    assert {np.ptp(x) for x in ends} == {5}
    kept = [(round(one.get_y() + 0.4), one.get_x(), one.get_x() + one.get_width()) for one in ring.patches]
    dots = list(zip(*ring.lines[0].get_data(), strict=True))
    found = [v for t, slot in dots for v, (row, a, b) in enumerate(kept) if row == slot and a <= t <= b]
    assert sorted(found) == sorted(schedule.version[schedule.mask])
    figure = afl.plot.plan(planned, path=tmp_path / "plan.png", max_steps=10)
    lanes, ring = [ax for ax in figure.axes if ax.get_ylabel() in ("lane", "slot of the ring")]
    assert (len(lanes.get_yticks()), len(ring.get_yticks())) == (3, planned.slots)
    assert figure.get_suptitle() == "the first 10 of 20 server steps"
    assert (tmp_path / "plan.png").stat().st_size > 5000
