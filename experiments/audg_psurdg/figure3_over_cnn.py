"""AUDG and PSURDG, Figure 3, the Over-CNN: synchronous learning."""

from __future__ import annotations

from experiments.audg_psurdg.tables import synchronous_alone
from experiments.suite import main

EXPERIMENT = synchronous_alone("Figure 3", "Over-CNN", curve=("normalised_loss", "eval_step"))

if __name__ == "__main__":
    main(EXPERIMENT)
