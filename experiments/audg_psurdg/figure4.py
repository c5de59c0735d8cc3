"""AUDG and PSURDG, Figure 4: the Over-CNN on IID data."""

from __future__ import annotations

from experiments.audg_psurdg.tables import curves
from experiments.suite import main

EXPERIMENT = curves("Figure 4: the Over-CNN on IID data", "Over-CNN", "IID")

if __name__ == "__main__":
    main(EXPERIMENT)
