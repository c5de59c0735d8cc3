"""AsyncFedED, Figure 3: best accuracy within 300 s and the time to 90 % of it, against the chance P to hang."""

from __future__ import annotations

from experiments.asyncfeded.setting import (
    BEST,
    CHANCES,
    FEW,
    FEW_CHANCES,
    MEASURES,
    METHODS,
    NOTE,
    REASONS,
    SOON,
    TASKS,
    cell_of,
    column,
    slope,
)  # fmt: skip
from experiments.suite import Claim, Experiment, main

COLUMNS = {column(name, chance): (name, chance) for name in TASKS for chance in CHANCES}
EXPERIMENT = Experiment(
    title="AsyncFedED, Figure 3: best accuracy within 300 s and time to 90 % of it against P",
    family="asyncfeded",
    cell=lambda method, place, scale: cell_of(method, *COLUMNS[place], scale),
    methods=METHODS,
    columns=list(COLUMNS),
    measures=MEASURES,
    scales=FEW,
    reasons=REASONS,
    claims=[
        claim
        for name in TASKS
        for claim in (
            Claim(
                f"{name}: FedAsync constant declines as P grows (slope of the best accuracy)",
                lambda v, n=name: -slope(v, "FedAsync constant", n),
            ),
            Claim(
                f"{name}: FedAsync hinge declines as P grows",
                lambda v, n=name: -slope(v, "FedAsync hinge", n),
            ),
            Claim(
                f"{name}: AsyncFedED declines less than FedAsync constant",
                lambda v, n=name: slope(v, "AsyncFedED", n) - slope(v, "FedAsync constant", n),
            ),
            Claim(
                f"{name}: AsyncFedED declines less than FedAsync hinge",
                lambda v, n=name: slope(v, "AsyncFedED", n) - slope(v, "FedAsync hinge", n),
            ),
        )
    ],
    seeds=5,
    few=3,
    left_out={"cpu": [place for place, (_, chance) in COLUMNS.items() if chance not in FEW_CHANCES]},
    against=("P", COLUMNS),
    shown=(BEST, SOON),
    note=f"The runs are those of Figures 5-14, which are found again. {NOTE}",
)

if __name__ == "__main__":
    main(EXPERIMENT)
