"""AUDG and PSURDG, Figure 7: non-IID data, medium heterogeneity."""

from __future__ import annotations

from experiments.audg_psurdg.tables import curves
from experiments.suite import main

EXPERIMENT = curves("Figure 7: non-IID data, medium heterogeneity", "Over-CNN", "medium")

if __name__ == "__main__":
    main(EXPERIMENT)
