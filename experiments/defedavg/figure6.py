"""DeFedAvg, Figure 6: n = 10, 20, 40, 80 against server steps: the speed-up."""

from __future__ import annotations

import math

import numpy as np

from experiments.defedavg.setting import DRAWN, IMAGES, REASONS, SCALES, SECONDS, TIMES, Column, cell, rates_of
from experiments.suite import Cell, Claim, Experiment, Values, main, sooner, time_to
from experiments.suite.experiment import Array

RULES = ("rates of Table 2", "rates by the theorems")
COLUMNS = {
    f"{name}, {kind}, {rule}": (name, kind == "IID", rule)
    for name in IMAGES
    for kind in ("IID", "non-IID")
    for rule in RULES
}
METHODS = {f"n = {n}": n for n in DRAWN}
ROUNDS = {"Fashion-MNIST": 200, "CIFAR-10": 40}  # at the scale of a CPU
STEPS = "server steps to the target"


def cell_of(method: str, name: str, scale: str) -> Cell:
    """DeFedAvg-IID or -nIID."""
    dataset, iid, rule = COLUMNS[name]
    column, own = Column(dataset, iid, METHODS[method]), own_of(iid)
    grown = math.sqrt(column.n / 10)
    rates = rates_of(own, column) if rule == RULES[0] else (0.1 * grown, 0.05 * grown)
    return cell(own, column, scale, rates, server_steps=ROUNDS[dataset] if scale == "cpu" else 10_000)


def own_of(iid: bool) -> str:
    """Its name."""
    return "DeFedAvg-IID" if iid else "DeFedAvg-nIID"


def implied(name: str) -> dict[str, float]:
    """Server steps that Table 1 implies: its seconds by the seconds of a round."""
    dataset, iid, _ = COLUMNS[name]
    times, rounds = TIMES[dataset, iid][own_of(iid)], SECONDS[dataset][own_of(iid)]
    return {method: float(round(time / lasts)) for method, time, lasts in zip(METHODS, times, rounds, strict=True)}


def power(values: Values, name: str) -> Array:
    """p of server steps in proportion to n^-p, fitted to a seed; NaN where a target was not reached."""
    steps = np.asarray([values(method, name) for method in METHODS])
    x = np.log(DRAWN) - np.mean(np.log(DRAWN))
    return -(x @ np.log(np.where(np.isfinite(steps) & (steps > 0), steps, np.nan))) / (x @ x)


EXPERIMENT = Experiment(
    title="DeFedAvg, Figure 6: server steps to the target against n",
    family="defedavg_figure6",
    cell=cell_of,
    methods=list(METHODS),
    columns=list(COLUMNS),
    measures={STEPS: time_to(along="eval_step", unit="", digits=0), "seconds to the target": time_to()},
    published={STEPS: {name: implied(name) for name in COLUMNS if COLUMNS[name][2] == RULES[0]}},
    scales={**SCALES, "cpu": f"{SCALES['cpu']}; here the first 200 (CIFAR-10: 40) server steps"},
    reasons=REASONS,
    claims=[
        *(
            Claim(
                f"{name}: n = {more} needs fewer server steps than n = {less}",
                lambda v, n=name, a=more, b=less: sooner(v(f"n = {a}", n), v(f"n = {b}", n)),
            )
            for name in COLUMNS
            for less, more in ((10, 20), (20, 40), (40, 80), (10, 80))
        ),
        *(
            Claim(
                f"{name}: server steps fall as n^-p, p above 0 (the mean is p; 1 is linear)",
                lambda v, n=name: power(v, n),
            )
            for name in COLUMNS
        ),
    ],
    few=2,
    curve=("accuracy", "eval_step"),
    note="Published are the server steps that Table 1 implies (its seconds by those of a round), and they do not fall "
    "with n. The rates of Table 2 hardly depend on n; by Theorems 1 and 2 η grows as √n, and η̄ as 1/√T, which is √n "
    "where T falls as 1/n: so the second half has η = 0.1 √(n/10), η̄ = 0.05 √(n/10). Which dataset and measure the "
    "figure shows is not known.",
)

if __name__ == "__main__":
    main(EXPERIMENT)
