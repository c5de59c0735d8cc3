"""FADAS, Figure 1a: the threshold above which delays shorten the step."""

from __future__ import annotations

from experiments.fadas.ablation import COLUMN, panel
from experiments.fadas.setting import Method
from experiments.suite import Claim, main

METHODS = {
    ("FADAS_da" if tau == 8 else f"FADAS_da, τ_c = {tau}"): Method("FADAS_da", tau_c=tau) for tau in (8, 1, 4, 10)
}
EXPERIMENT = panel(
    title="the threshold τ_c of FADAS_da",
    methods=METHODS,
    along="eval_step",
    note="FADAS_da alone: τ_c = 8, as in Table 1.",
    claims=[
        Claim(
            f"τ_c = 8 is better than {other[-2:].strip()}",
            lambda v, o=other: v("FADAS_da", COLUMN) - v(o, COLUMN),
            " points",
        )
        for other in list(METHODS)[1:]
    ],
)

if __name__ == "__main__":
    main(EXPERIMENT)
