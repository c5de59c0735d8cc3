"""AUDG and PSURDG, Table IV: loss of the Over-CNN on IID data."""

from __future__ import annotations

from experiments.audg_psurdg.tables import losses
from experiments.suite import main

EXPERIMENT = losses(
    "Table IV: loss of the Over-CNN on IID data",
    "Over-CNN",
    "IID",
    {
        "AUDG": (0.1411, 0.1543, 0.1691, 0.1593, 0.1568),
        "PSURDG": (0.1588, 0.1732, 0.1949, 0.1997, 0.2292),
    },
)

if __name__ == "__main__":
    main(EXPERIMENT)
