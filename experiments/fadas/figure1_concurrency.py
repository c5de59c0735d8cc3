"""FADAS, Figure 1: the number of clients in flight."""

from __future__ import annotations

from experiments.fadas.ablation import panel
from experiments.fadas.setting import Method
from experiments.suite import main

METHODS = {
    "FADAS": Method("FADAS"),
    **{f"FADAS, M_c = {count}": Method("FADAS", fleet={"in_flight": count}) for count in (15, 35)},
}
EXPERIMENT = panel(
    title="the concurrency M_c, against running time",
    methods=METHODS,
    along="eval_time",
    note="FADAS alone: M_c = 25, as in Table 1.",
    contrasts={"M_c = 35 - M_c = 15": ("FADAS, M_c = 35", "FADAS, M_c = 15")},
)

if __name__ == "__main__":
    main(EXPERIMENT)
