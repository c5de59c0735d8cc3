"""AUDG and PSURDG, Table IX: loss on non-IID data, large heterogeneity."""

from __future__ import annotations

from experiments.audg_psurdg.tables import losses
from experiments.suite import main

EXPERIMENT = losses(
    "Table IX: loss on non-IID data, large heterogeneity",
    "Over-CNN",
    "large",
    {
        "AUDG": (0.4913, 0.6699, 0.7314, 0.7699, 0.7745),
        "PSURDG": (0.4781, 0.6601, 0.7287, 0.8219, 0.8418),
    },
)

if __name__ == "__main__":
    main(EXPERIMENT)
