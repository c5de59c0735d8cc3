"""AUDG and PSURDG, Table II: synchronous federated learning, and the learning rate at which it comes to this."""

from __future__ import annotations

from experiments.audg_psurdg.setting import NOTE, RATE, REASONS, SCALES, normalised, synchronous
from experiments.audg_psurdg.tables import ACCURACY, LOSS
from experiments.suite import Cell, Claim, Experiment, main

COLUMNS = {
    "Over-CNN IID": ("Over-CNN", "IID"),
    "CNN IID": ("CNN", "IID"),
    "Over-CNN Non-IID": ("Over-CNN", "small"),
    "CNN Non-IID": ("CNN", "small"),
}
PUBLISHED = {
    "accuracy": (94.01, 87.15, 93.90, 85.01),
    "normalised loss": (0.0103, 0.0966, 0.0106, 0.1222),
}
OTHER_RATES = {"SFL, η = 0.05": 0.05, "SFL, η = 0.1": 0.1}


def cell(method: str, column: str, scale: str) -> Cell:
    network, split = COLUMNS[column]
    return synchronous(network, split, OTHER_RATES.get(method, RATE[network]), scale)


EXPERIMENT = Experiment(
    title="AUDG and PSURDG, Table II: synchronous federated learning",
    family="audg_psurdg",
    cell=cell,
    methods=("SFL", *OTHER_RATES),
    columns=list(COLUMNS),
    measures={"accuracy": ACCURACY, "normalised loss": LOSS},
    published={
        measure: {column: {"SFL": number} for column, number in zip(COLUMNS, numbers, strict=True)}
        for measure, numbers in PUBLISHED.items()
    },
    scales=SCALES,
    reasons=REASONS,
    claims=[
        Claim(
            "IID: the Over-CNN is more accurate than the CNN", lambda v: v("SFL", "Over-CNN IID") - v("SFL", "CNN IID")
        )
    ],
    seeds=10,
    few=2,
    derived=normalised,
    note=NOTE,
)

if __name__ == "__main__":
    main(EXPERIMENT)
