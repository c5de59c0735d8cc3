"""AUDG and PSURDG, Figure 3: synchronous federated learning."""

from __future__ import annotations

import dataclasses

from experiments.audg_psurdg.table2 import EXPERIMENT as TABLE
from experiments.suite import main

EXPERIMENT = dataclasses.replace(
    TABLE,
    title="AUDG and PSURDG, Figure 3: synchronous federated learning",
    claims=(),
    curve=("normalised_loss", "eval_step"),
)

if __name__ == "__main__":
    main(EXPERIMENT)
