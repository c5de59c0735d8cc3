"""AUDG and PSURDG, Figure 6: non-IID data, small heterogeneity."""

from __future__ import annotations

from experiments.audg_psurdg.tables import curves
from experiments.suite import main

EXPERIMENT = curves("Figure 6: non-IID data, small heterogeneity", "Over-CNN", "small")

if __name__ == "__main__":
    main(EXPERIMENT)
