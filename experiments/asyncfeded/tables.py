"""What the figures of AsyncFedED share, each of one dataset, as datasets are run at scales of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.asyncfeded.setting import (
    BEST,
    CHANCES,
    FEW,
    FEW_CHANCES,
    MEAN,
    MEASURES,
    METHODS,
    NOTE,
    REASONS,
    SCALES,
    SOON,
    cell_of,
    column,
    over,
    slope,
)  # fmt: skip
from experiments.suite import Cell, Claim, Experiment
from experiments.suite.experiment import Array

CONSTANT = {f"K = {steps}": steps for steps in (5, 10, 15, 20)}


def against_time(name: str) -> Experiment:
    """Figures 2 and 5-14 on a dataset."""
    columns = [column(name, chance) for chance in CHANCES]

    def ahead(measure: str, sign: int) -> Callable[[Any], Array]:
        """By how much the first method's numbers (times `sign`) are above the largest of the others', over P."""
        return lambda v: over(
            columns,
            lambda place: (
                sign * v(METHODS[0], place, measure)
                - np.max([sign * v(one, place, measure) for one in METHODS[1:]], axis=0)
            ),
        )

    best = "its accuracy averaged over the run, and over P, is above that of the best other method"
    soon = "it reaches 90 % of its best before any other method does so of its own, on average over P"
    return _for_every_chance(
        name,
        f"Figures 2 and 5-14, {name}: test accuracy against running time, P = 0 ... 0.9",
        claims=[
            Claim(f"AsyncFedED converges fastest: {best}", ahead(MEAN, 1), " points"),
            Claim(f"AsyncFedED converges fastest: {soon}", ahead(SOON, -1), " s"),
        ],
        curve=("accuracy", "eval_time"),
        note=f"Figures 5-14 are read as one for each P, each with all datasets; Figure 2 as one of them. {NOTE}",
    )


def against_chance(name: str) -> Experiment:
    """Figure 3 on a dataset."""
    others = METHODS[1:3]  # the asynchronous ones
    declines = [
        Claim(
            f"{one} declines as P grows (slope of the best accuracy)",
            lambda v, one=one: -slope(v, one, name),
            " points from P = 0 to 1",
        )
        for one in others
    ]
    less = [
        Claim(
            f"{METHODS[0]} declines less than {one}",
            lambda v, one=one: slope(v, METHODS[0], name) - slope(v, one, name),
            " points from P = 0 to 1",
        )
        for one in others
    ]
    return _for_every_chance(
        name,
        f"Figure 3, {name}: best accuracy within 300 s and time to 90 % of it against P",
        claims=declines + less,
        against=("P", {column(name, chance): (name, chance) for chance in CHANCES}),
        shown=(BEST, SOON),
        note=f"The runs are those of Figures 5-14, which are found again. {NOTE}",
    )


def constant_steps(name: str) -> Experiment:
    """Figure 4 on a dataset."""

    def cell(method: str, name: str, scale: str) -> Cell:
        """AsyncFedED with κ = 0 keeps K."""
        constant = {"steps": CONSTANT[method], "kappa": 0.0} if method in CONSTANT else {}
        return cell_of(METHODS[0], name, 0.1, scale, **constant)

    return Experiment(
        title=f"AsyncFedED, Figure 4, {name}: adaptive K against constant K",
        family="asyncfeded_figure4",
        cell=cell,
        methods=["adaptive K", *CONSTANT],
        columns=[name],
        measures=MEASURES,
        scales=SCALES,
        reasons=REASONS,
        claims=[
            Claim(
                f"adaptive K is better than {method} ({measure})",
                lambda v, m=method, by=measure: v("adaptive K", name, by) - v(m, name, by),
                " points",
            )
            for measure in (BEST, MEAN)
            for method in CONSTANT
        ],
        seeds=5,
        few=3,
        curve=("accuracy", "eval_time"),
        note=f"P = 0.1, K_0 = 10; constant K is κ = 0. {NOTE}",
    )


def _for_every_chance(name: str, title: str, **more: Any) -> Experiment:
    """All methods with every P; `more`: of the `Experiment`."""
    columns = {column(name, chance): chance for chance in CHANCES}
    return Experiment(
        title=f"AsyncFedED, {title}",
        family="asyncfeded",
        cell=lambda method, place, scale: cell_of(method, name, columns[place], scale),
        methods=METHODS,
        columns=list(columns),
        measures=MEASURES,
        scales=FEW,
        reasons=REASONS,
        seeds=5,
        few=3,
        left_out={"cpu": [place for place, chance in columns.items() if chance not in FEW_CHANCES]},
        **more,
    )
