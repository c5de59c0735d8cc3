"""What the panels of FADAS's Figure 1 have in common: one column, and one option that changes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from experiments.fadas.setting import FAMILY, REASONS, Method, cell_of, scales
from experiments.suite import Experiment, Measure, last, time_to

TARGET = 0.3
COLUMN = "CIFAR-10, Dir(0.3), large"


def panel(title: str, methods: Mapping[str, Method], along: str, note: str, **more: Any) -> Experiment:
    """A panel of Figure 1.

    Args:
        title: of the panel.
        methods: its lines; one that is called as in Table 1 is of the same runs.
        along: the coordinate: `"eval_updates"` for client trips, `"eval_step"` for rounds or `"eval_time"`.
        note: of the panel.
        **more: of `Experiment`.
    """
    return Experiment(
        title=f"FADAS, Figure 1: {title}",
        family=FAMILY,
        cell=partial(cell_of, methods),
        methods=list(methods),
        columns=[COLUMN],
        measures={"accuracy, last 5 evaluations": last()} | reaching(TARGET),
        scales=scales("100 server steps"),
        reasons=REASONS,
        curve=("accuracy", along),
        note=f"{note} The paper's dataset is not known here: {COLUMN}, as in Table 1; the target is ours.",
        **more,
    )


def reaching(target: float) -> dict[str, Measure]:
    """Where a test accuracy is first evaluated, in the three units of Figure 1."""
    units = {"eval_updates": "client trips", "eval_step": "rounds", "eval_time": "s"}
    return {
        f"{100 * target:.0f} % first reached, {unit}": time_to(target, along=along, unit=f" {unit}")._replace(digits=0)
        for along, unit in units.items()
    }
