"""DeFedAvg's clock alone: seconds per round, and the grid on which FAVANO's published seconds lie."""

from __future__ import annotations

import math

import numpy as np

from experiments.defedavg.setting import DRAWN, IMAGES, LOCAL_STEPS, SECONDS, TIMES, Column, rates_of, simulation
from experiments.suite import Cell, Claim, Experiment, Values, main, schedules
from experiments.suite.experiment import Array

COLUMNS = {f"{name}, n = {n}": Column(name, True, n) for name in IMAGES for n in DRAWN}
MEASURE = "seconds per round"
METHODS = ("FedAvg", "FAVANO", "DeFedAvg-IID", "DeFedAvg-nIID")


def cell(method: str, name: str, scale: str) -> Cell:
    """The clock sees neither images nor rates: noise, and those of Table 2."""
    column = COLUMNS[name]
    rates = rates_of("DeFedAvg-IID" if method == "DeFedAvg-nIID" else method, column)
    return Cell(
        lambda: simulation(method, column, "smoke", rates, LOCAL_STEPS),
        {"smoke": 20, "paper": 500}[scale],
        0,
    )


def near(values: Values, method: str, name: str, share: float = 0.05) -> Array:
    """Above 0 where a seed's rounds are within this share of the published ones."""
    published = SECONDS[COLUMNS[name].dataset][method][DRAWN.index(COLUMNS[name].n)]
    return share - abs(values(method, name) / published - 1)


def on_grid(values: Values, dataset: str) -> Array:
    """By how many seconds all entries of FAVANO are nearer to an evaluation than five printed digits can tell."""
    period, every = values("FAVANO", f"{dataset}, n = 10"), IMAGES[dataset].every
    entries = [time for iid in (True, False) for time in TIMES[dataset, iid]["FAVANO"] if not isinstance(time, tuple)]

    def margin(entry: float) -> Array:
        rounds = 1 + every * np.round((entry / period - 1) / every)
        return 0.5 * 10.0 ** (math.floor(math.log10(entry)) - 4) - abs(entry - rounds * period)

    return np.min([margin(entry) for entry in entries], axis=0)


EXPERIMENT = Experiment(
    title="DeFedAvg: seconds per round by the clock alone",
    family="defedavg_clock",
    cell=cell,
    methods=METHODS,
    columns=list(COLUMNS),
    measures={MEASURE: schedules(lambda made: made.time[-1] / len(made.time), " s", 3)},
    published={
        MEASURE: {
            name: {method: SECONDS[column.dataset][method][DRAWN.index(column.n)] for method in METHODS}
            for name, column in COLUMNS.items()
        }
    },
    scales={"smoke": "20 rounds", "paper": "500 rounds of 100 clients, K = 50"},
    reasons={"paper": "the published seconds are of single runs, whose 100 clients have speeds of their own"},
    claims=[
        *(
            Claim(f"{name}: {method} within 5 %", lambda v, m=method, n=name: near(v, m, n))
            for name in COLUMNS
            for method in METHODS
        ),
        *(
            Claim(
                f"{name}: all of FAVANO's published seconds are those of evaluations at rounds 1, {1 + images.every}, "
                f"{1 + 2 * images.every} ...",
                lambda v, n=name: on_grid(v, n),
            )
            for name, images in IMAGES.items()
        ),
    ],
    seeds=20,
    note="The published seconds per round are what the entries of Table 1 imply. FedBuff's clock is DeFedAvg-IID's. A "
    "round of FAVANO is two transfers by definition, so its rows can only agree; what is tested is that its entries in "
    "Table 1 (censored ones left out) are multiples of it at evaluations.",
)

if __name__ == "__main__":
    main(EXPERIMENT)
