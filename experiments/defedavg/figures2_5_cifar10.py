"""DeFedAvg, Figures 2-5 on CIFAR-10: loss against simulated time; the accuracy is drawn by Table 1."""

from __future__ import annotations

from functools import partial

from experiments.defedavg.setting import METHODS, NOTE, REASONS, SCALES, cell_of, columns, others
from experiments.suite import Claim, Experiment, best, last, main

COLUMNS = columns("CIFAR-10")
EXPERIMENT = Experiment(
    title="DeFedAvg, Figures 2-5 on CIFAR-10: loss and accuracy against simulated time",
    family="defedavg",
    cell=partial(cell_of, COLUMNS),
    methods=METHODS,
    columns=list(COLUMNS),
    measures={
        "test loss, last 5 evaluations": last("loss", unit="", factor=1.0, digits=3),
        "best accuracy": best(),
    },
    scales=SCALES,
    reasons=REASONS,
    claims=[
        Claim(
            f"{name}: {own} ends at a smaller loss than {other}",
            lambda v, name=name, own=own, other=other: v(other, name) - v(own, name),
        )
        for name, own, other in others(COLUMNS)
    ],
    curve=("loss", "eval_time"),
    note=f"{NOTE} Which figure shows which columns, and whether its loss is that of training or test images, is not "
    "known: here it is the test loss, of the runs of Table 1. At paper scale runs end at the target, and with them the "
    "curves; what the claims compare is then the loss where each ended.",
)

if __name__ == "__main__":
    main(EXPERIMENT)
