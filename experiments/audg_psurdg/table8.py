"""AUDG and PSURDG, Table VIII: loss on non-IID data, medium heterogeneity."""

from __future__ import annotations

from experiments.audg_psurdg.tables import losses
from experiments.suite import main

EXPERIMENT = losses(
    "Table VIII: loss on non-IID data, medium heterogeneity",
    "Over-CNN",
    "medium",
    {
        "AUDG": (0.4803, 0.5779, 0.5995, 0.6459, 0.6606),
        "PSURDG": (0.4696, 0.5918, 0.6631, 0.7246, 0.7740),
    },
)

if __name__ == "__main__":
    main(EXPERIMENT)
