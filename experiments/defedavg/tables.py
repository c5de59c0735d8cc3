"""Table 1 and Figures 2-5, of the same runs, and Table 2: each for one dataset."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from experiments.defedavg import tuning
from experiments.defedavg.setting import (
    DRAWN,
    METHODS,
    NOTE,
    REASONS,
    SCALES,
    Column,
    cell_of,
    claims,
    columns,
    others,
    own_of,
    published,
)  # fmt: skip
from experiments.suite import Claim, Experiment, best, last, time_to


def fewer(scales: Mapping[str, str]) -> dict[str, str]:
    """What the scales change, the number of columns included."""
    return {**scales, "cpu": f"{scales['cpu']}; by default not n = 40 and 80"}


def left_out(among: Mapping[str, Column]) -> dict[str, list[str]]:
    """The columns that take too long for half an hour."""
    return {"cpu": [name for name, one in among.items() if one.n >= 40]}


def table1(dataset: str) -> Experiment:
    """Simulated seconds to the target, and accuracy against time."""
    among = columns(dataset)
    return Experiment(
        title=f"DeFedAvg, Table 1 on {dataset}: simulated seconds to the target accuracy",
        family="defedavg",
        cell=partial(cell_of, among),
        methods=METHODS,
        columns=list(among),
        measures={
            "seconds to the target": time_to(),
            "server steps to the target": time_to(along="eval_step", unit="", digits=0),
            "best accuracy": best(),
        },
        published={"seconds to the target": published(among)},
        scales=fewer(SCALES),
        left_out=left_out(among),
        base=own_of(among),
        reasons=REASONS,
        claims=claims(among),
        curve=("accuracy", "eval_time"),
        note=NOTE,
    )


def figures2_5(dataset: str) -> Experiment:
    """Loss against time."""
    among = columns(dataset)
    return Experiment(
        title=f"DeFedAvg, Figures 2-5 on {dataset}: loss and accuracy against simulated time",
        family="defedavg",
        cell=partial(cell_of, among),
        methods=METHODS,
        columns=list(among),
        measures={
            "test loss, last 5 evaluations": last("loss", unit="", factor=1.0, digits=3),
            "best accuracy": best(),
        },
        scales=fewer(SCALES),
        left_out=left_out(among),
        base=own_of(among),
        reasons=REASONS,
        claims=[
            Claim(
                f"{name}: {own} ends at a smaller loss than {other}",
                lambda v, name=name, own=own, other=other: v(other, name) - v(own, name),
            )
            for name, own, other in others(among)
        ],
        curve=("loss", "eval_time"),
        note=f"{NOTE} Which figure shows which columns, and whether its loss is that of training or test images, is "
        "not known: here it is the test loss, of the runs of Table 1. At paper scale runs end at the target, and with "
        "them the curves; what the claims compare is then the loss where each ended.",
    )


def table2(dataset: str) -> Experiment:
    """The rates, tuned on training images that are held out."""
    among = columns(dataset, (*DRAWN, 5))
    return Experiment(
        title=f"DeFedAvg, Table 2 on {dataset}: rates tuned on a part of the training images",
        family="defedavg_tuning",
        cell=partial(tuning.cell_of, among),
        methods=METHODS,
        columns=list(among),
        measures=tuning.MEASURES,
        published=tuning.published(among),
        scales=fewer(tuning.SCALES),
        left_out=left_out(among),
        base=own_of(among),
        reasons={"cpu": "another model, and a horizon that few rates reach the target in"},
        seeds=1,
        note=tuning.NOTE,
    )
