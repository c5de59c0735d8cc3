"""AUDG and PSURDG, Table V: loss of the CNN on IID data."""

from __future__ import annotations

from experiments.audg_psurdg.tables import losses
from experiments.suite import main

EXPERIMENT = losses(
    "Table V: loss of the CNN on IID data",
    "CNN",
    "IID",
    {
        "AUDG": (0.3361, 0.3407, 0.3926, 0.3741, 0.3729),
        "PSURDG": (0.3736, 0.3751, 0.4079, 0.4164, 0.4216),
    },
)

if __name__ == "__main__":
    main(EXPERIMENT)
