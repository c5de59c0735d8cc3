"""What the files of hyper-parameter sweeps share: one method on all datasets, an option or two varied."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.asyncfeded.setting import MEASURES, NOTE, REASONS, SCALES, TASKS, cell_of
from experiments.suite import Experiment


def sweep_of(method: str, said: str, values: Mapping[str, Mapping[str, float]]) -> Experiment:
    """A sweep.

    Args:
        method: of `METHODS`.
        said: which options, for the title.
        values: name -> fields of the `Task` in the place of the published ones.
    """
    return Experiment(
        title=f"AsyncFedED, hyper-parameters: {said} of {method}",
        family="asyncfeded_sweeps",
        cell=lambda row, name, scale: cell_of(method, name, 0.1, scale, **values[row]),
        methods=list(values),
        columns=list(TASKS),
        measures=MEASURES,
        scales=SCALES | {"cpu": f"{SCALES['cpu']}; not FEMNIST"},
        reasons=REASONS,
        seeds=5,
        few=3,
        left_out={"cpu": ["FEMNIST"]},
        curve=("accuracy", "eval_time"),
        note=f"P = 0.1. Nothing is chosen by these numbers: all other files use the published values. {NOTE}",
    )
