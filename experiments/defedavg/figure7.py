"""DeFedAvg, Figure 7: K = 20, 50, 100 local steps."""

from __future__ import annotations

from experiments.defedavg.setting import IMAGES, REASONS, SCALES, Column, cell, rates_of
from experiments.suite import Cell, Claim, Experiment, main, sooner, time_to

COLUMNS = {f"{name}, {'IID' if iid else 'non-IID'}": Column(name, iid, 10) for name in IMAGES for iid in (True, False)}
METHODS = {f"K = {steps}": steps for steps in (20, 50, 100)}
ROUNDS = {"Fashion-MNIST": 500, "CIFAR-10": 150}  # at the scale of a CPU


def cell_of(method: str, name: str, scale: str) -> Cell:
    """DeFedAvg-IID or -nIID with its rates for n = 10."""
    column = COLUMNS[name]
    own = "DeFedAvg-IID" if column.iid else "DeFedAvg-nIID"
    steps = ROUNDS[column.dataset] if scale == "cpu" else 10_000
    return cell(own, column, scale, rates_of(own, column), METHODS[method], server_steps=steps)


EXPERIMENT = Experiment(
    title="DeFedAvg, Figure 7: server steps to the target against K",
    family="defedavg_figure7",
    cell=cell_of,
    methods=list(METHODS),
    columns=list(COLUMNS),
    measures={
        "server steps to the target": time_to(along="eval_step", unit="", digits=0),
        "seconds to the target": time_to(),
    },
    scales={**SCALES, "cpu": f"{SCALES['cpu']}; here the first 500 (CIFAR-10: 150) server steps"},
    reasons=REASONS,
    claims=[
        Claim(
            f"{name}: K = {more} needs fewer server steps than K = {less}",
            lambda v, n=name, a=more, b=less: sooner(v(f"K = {a}", n), v(f"K = {b}", n)),
        )
        for name in COLUMNS
        for less, more in ((20, 50), (50, 100))
    ],
    curve=("accuracy", "eval_step"),
    note="n, the rates, the datasets and the measure of the figure are not known: here n = 10 and Table 2's rates for "
    "it at every K.",
)

if __name__ == "__main__":
    main(EXPERIMENT)
