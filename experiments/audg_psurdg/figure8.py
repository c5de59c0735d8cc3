"""AUDG and PSURDG, Figure 8: non-IID data, large heterogeneity."""

from __future__ import annotations

from experiments.audg_psurdg.tables import curves
from experiments.suite import main

EXPERIMENT = curves("Figure 8: non-IID data, large heterogeneity", "Over-CNN", "large")

if __name__ == "__main__":
    main(EXPERIMENT)
