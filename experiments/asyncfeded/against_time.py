"""What the files of Figures 2 and 5-14 share: accuracy against time on one dataset, a panel for each P."""

from __future__ import annotations

import numpy as np

from experiments.asyncfeded.setting import (
    CHANCES,
    FEW,
    FEW_CHANCES,
    MEAN,
    MEASURES,
    METHODS,
    NOTE,
    REASONS,
    SOON,
    cell_of,
    column,
    over,
)  # fmt: skip
from experiments.suite import Claim, Experiment


def against_time(name: str) -> Experiment:
    """The figures of a dataset."""
    columns = {column(name, chance): chance for chance in CHANCES}
    best = "its accuracy averaged over the run, and over P, is above that of the best other method"
    soon = "it reaches 90 % of its best before any other method does so of its own, on average over P"
    return Experiment(
        title=f"AsyncFedED, Figures 2 and 5-14, {name}: test accuracy against running time, P = 0 ... 0.9",
        family="asyncfeded",
        cell=lambda method, place, scale: cell_of(method, name, columns[place], scale),
        methods=METHODS,
        columns=list(columns),
        measures=MEASURES,
        scales=FEW,
        reasons=REASONS,
        claims=[
            Claim(
                f"AsyncFedED converges fastest: {best}",
                lambda v: over(
                    list(columns),
                    lambda place: (
                        v(METHODS[0], place, MEAN) - np.max([v(one, place, MEAN) for one in METHODS[1:]], axis=0)
                    ),
                ),
            ),
            Claim(
                f"AsyncFedED converges fastest: {soon}",
                lambda v: over(
                    list(columns),
                    lambda place: (
                        np.min([v(one, place, SOON) for one in METHODS[1:]], axis=0) - v(METHODS[0], place, SOON)
                    ),
                ),
            ),
        ],
        seeds=5,
        few=3,
        left_out={"cpu": [place for place, chance in columns.items() if chance not in FEW_CHANCES]},
        curve=("accuracy", "eval_time"),
        note=f"Figures 5-14 are read as one for each P, each with all datasets; Figure 2 as one of them. {NOTE}",
    )
