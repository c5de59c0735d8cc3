"""AUDG and PSURDG, Table VII: loss on non-IID data, small heterogeneity."""

from __future__ import annotations

from experiments.audg_psurdg.tables import losses
from experiments.suite import main

EXPERIMENT = losses(
    "Table VII: loss on non-IID data, small heterogeneity",
    "Over-CNN",
    "small",
    {
        "AUDG": (0.5033, 0.5413, 0.5515, 0.5627, 0.5738),
        "PSURDG": (0.5238, 0.5650, 0.6027, 0.6217, 0.6429),
    },
)

if __name__ == "__main__":
    main(EXPERIMENT)
