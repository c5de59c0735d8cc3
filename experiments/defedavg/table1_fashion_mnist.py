"""DeFedAvg, Table 1 on Fashion-MNIST: simulated seconds to the target accuracy; Figures 2-5: accuracy against time."""

from __future__ import annotations

from functools import partial

from experiments.defedavg.setting import METHODS, NOTE, REASONS, SCALES, cell_of, claims, columns, published
from experiments.suite import Experiment, best, main, time_to

COLUMNS = columns("Fashion-MNIST")
EXPERIMENT = Experiment(
    title="DeFedAvg, Table 1 on Fashion-MNIST: simulated seconds to the target accuracy",
    family="defedavg",
    cell=partial(cell_of, COLUMNS),
    methods=METHODS,
    columns=list(COLUMNS),
    measures={
        "seconds to the target": time_to(),
        "server steps to the target": time_to(along="eval_step", unit="", digits=0),
        "best accuracy": best(),
    },
    published={"seconds to the target": published(COLUMNS)},
    scales=SCALES,
    reasons=REASONS,
    claims=claims(COLUMNS),
    curve=("accuracy", "eval_time"),
    note=NOTE,
)

if __name__ == "__main__":
    main(EXPERIMENT)
