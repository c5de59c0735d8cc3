"""FADAS's released code against its algorithm: newcomers that start from the model before the one they are measured
against."""

from __future__ import annotations

from functools import partial

from experiments.fadas.images import MEASURE
from experiments.fadas.setting import FAMILY, METHODS, REASONS, SCALES, cell_of
from experiments.fadas.table1 import EXPERIMENT as TABLE1
from experiments.suite import Claim, Experiment, main

PLAIN = ("FADAS", "FADAS_da", "FedBuff")
ROWS = {name: METHODS[name] for name in PLAIN} | {
    f"{name}, skewed": METHODS[name]._replace(clock={"start_skew": True}) for name in PLAIN
}
COLUMNS = [name for name in TABLE1.columns if name.startswith("CIFAR-10,")]
EXPERIMENT = Experiment(
    title="FADAS, Table 1 with the skewed starts of the released code",
    family=FAMILY,
    cell=partial(cell_of, ROWS),
    methods=list(ROWS),
    columns=COLUMNS,
    measures=TABLE1.measures,
    published={
        MEASURE: {
            column: {row: TABLE1.published[MEASURE][column][row.removesuffix(", skewed")] for row in ROWS}
            for column in COLUMNS
        }
    },
    contrasts={f"{name}, skewed - not": (f"{name}, skewed", name) for name in PLAIN},
    scales=SCALES | {"cpu": f"{SCALES['cpu']}; not Dir(0.3)"},
    left_out={"cpu": [name for name in COLUMNS if "Dir(0.3)" in name]},
    reasons=REASONS,
    claims=[
        *(
            Claim(
                f"{c}: the skew makes FedBuff worse",
                lambda v, c=c: v("FedBuff", c) - v("FedBuff, skewed", c),
                " points",
            )
            for c in COLUMNS
        ),
        *(
            Claim(
                f"{c}: it costs FedBuff more than FADAS",
                lambda v, c=c: v("FedBuff", c) - v("FedBuff, skewed", c) - v("FADAS", c) + v("FADAS, skewed", c),
                " points",
            )
            for c in COLUMNS
        ),
    ],
    note="Of M newcomers the released code starts M - 1 from x_{t-1}, stamps them t and measures their update against "
    "x_t, which on a linear problem shortens each step to 1 / (1 + (M - 1) / M) of the intended one. The published "
    "numbers, those of Table 1, stand beside both readings.",
)

if __name__ == "__main__":
    main(EXPERIMENT)
