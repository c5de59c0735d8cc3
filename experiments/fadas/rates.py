"""FADAS's grids of rates, compared on a validation split; `setting.TUNED` holds the best at the scale of a CPU."""

from __future__ import annotations

import dataclasses
import itertools

import jaxafl as afl
from experiments.fadas import setting
from experiments.fadas.setting import REASONS, SCALES, Method
from experiments.suite import Cell, Experiment, last, main

LOCAL, SERVER = (0.001, 0.003, 0.01, 0.03, 0.1), (1e-4, 3e-4, 1e-3, 3e-3)
GRIDS = {
    "FADAS": itertools.product(LOCAL[1:], SERVER),
    "FADAS_da": itertools.product(LOCAL[1:], SERVER),
    "FedBuff": itertools.product(LOCAL, (1.0,)),
    "FedAsync": itertools.product(LOCAL, (1.0,)),
}
METHODS = {
    f"{name}, η_l = {local:g}, η = {rate:g}": Method(name, rates=(local, rate))
    for name, grid in GRIDS.items()
    for local, rate in grid
}


def cell(method: str, column: str, scale: str) -> Cell:
    """As in Table 1, but a tenth of every client's samples is held out."""
    whole = setting.cell_of(METHODS, method, column, scale)

    def make() -> afl.Simulation:
        sim = whole.make()
        return dataclasses.replace(sim, data=sim.data.with_validation(0.1))

    return dataclasses.replace(whole, make=make)


EXPERIMENT = Experiment(
    title="FADAS: its grids of rates on a validation split",
    family="fadas_rates",
    cell=cell,
    methods=list(METHODS),
    columns=["CIFAR-10, Dir(0.3), large"],
    measures={"validation accuracy, last 5 evaluations": last("validation_accuracy")},
    scales={scale: said.partition("; rates")[0] for scale, said in SCALES.items()}
    | {"cpu": f"{SCALES['cpu'].partition('; rates')[0]}; {len(METHODS)} cells, which take longer than half an hour"},
    reasons=REASONS,
    seeds=1,
    note="The grids are the paper's; how it chose from them is unpublished. A tenth of every client's training samples "
    "is held out here; the test set is not looked at.",
)

if __name__ == "__main__":
    main(EXPERIMENT)
