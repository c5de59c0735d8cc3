"""AsyncFedED, Figure 4: the adaptive number of local steps K against constant ones."""

from __future__ import annotations

from experiments.asyncfeded.setting import BEST, MEAN, MEASURES, NOTE, REASONS, SCALES, TASKS, cell_of
from experiments.suite import Cell, Claim, Experiment, main

CONSTANT = {f"K = {steps}": steps for steps in (5, 10, 15, 20)}


def cell(method: str, name: str, scale: str) -> Cell:
    """AsyncFedED with κ = 0 keeps K."""
    constant = {"steps": CONSTANT[method], "kappa": 0.0} if method in CONSTANT else {}
    return cell_of("AsyncFedED", name, 0.1, scale, **constant)


EXPERIMENT = Experiment(
    title="AsyncFedED, Figure 4: adaptive K against constant K",
    family="asyncfeded_figure4",
    cell=cell,
    methods=["adaptive K", *CONSTANT],
    columns=list(TASKS),
    measures=MEASURES,
    scales=SCALES,
    reasons=REASONS,
    claims=[
        Claim(
            f"{name}: adaptive K is better than {method} ({measure})",
            lambda v, n=name, m=method, by=measure: v("adaptive K", n, by) - v(m, n, by),
        )
        for name in TASKS
        for measure in (BEST, MEAN)
        for method in CONSTANT
    ],
    seeds=5,
    few=3,
    curve=("accuracy", "eval_time"),
    note=f"P = 0.1, K_0 = 10; constant K is κ = 0. {NOTE}",
)

if __name__ == "__main__":
    main(EXPERIMENT)
