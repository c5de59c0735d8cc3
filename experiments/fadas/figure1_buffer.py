"""FADAS, Figure 1: the size of the buffer, against client trips; two more files show the same runs."""

from __future__ import annotations

from functools import partial

from experiments.fadas.ablation import panel
from experiments.fadas.setting import Method
from experiments.suite import main

METHODS = {
    "FADAS": Method("FADAS"),
    **{f"FADAS, M = {size}": Method("FADAS", fleet={"buffer": size}) for size in (3, 10)},
}
buffers = partial(
    panel,
    methods=METHODS,
    note="FADAS alone: M = 5, as in Table 1. All make the same number of rounds.",
    contrasts={"M = 10 - M = 3": ("FADAS, M = 10", "FADAS, M = 3")},
)
EXPERIMENT = buffers(title="the buffer M, against client trips", along="eval_updates")

if __name__ == "__main__":
    main(EXPERIMENT)
