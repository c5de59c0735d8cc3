"""DeFedAvg, Table 2 on Fashion-MNIST: the rates, tuned on training images that are held out."""

from __future__ import annotations

from functools import partial

from experiments.defedavg.setting import DRAWN, METHODS, columns
from experiments.defedavg.tuning import MEASURES, NOTE, SCALES, cell_of, published
from experiments.suite import Experiment, main

COLUMNS = columns("Fashion-MNIST", (*DRAWN, 5))
EXPERIMENT = Experiment(
    title="DeFedAvg, Table 2 on Fashion-MNIST: rates tuned on a part of the training images",
    family="defedavg_tuning",
    cell=partial(cell_of, COLUMNS),
    methods=METHODS,
    columns=list(COLUMNS),
    measures=MEASURES,
    published=published(COLUMNS),
    scales=SCALES,
    reasons={"cpu": "another model, and a horizon that few rates reach the target in"},
    seeds=1,
    note=NOTE,
)

if __name__ == "__main__":
    main(EXPERIMENT)
