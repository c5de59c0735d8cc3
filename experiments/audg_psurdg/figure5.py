"""AUDG and PSURDG, Figure 5: the CNN on IID data."""

from __future__ import annotations

from experiments.audg_psurdg.tables import curves
from experiments.suite import main

EXPERIMENT = curves("Figure 5: the CNN on IID data", "CNN", "IID")

if __name__ == "__main__":
    main(EXPERIMENT)
