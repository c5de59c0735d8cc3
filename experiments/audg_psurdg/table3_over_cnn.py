"""AUDG and PSURDG, Table III, the Over-CNN: accuracy on IID data."""

from __future__ import annotations

from experiments.audg_psurdg.tables import accuracies
from experiments.suite import main

EXPERIMENT = accuracies("Over-CNN", (-0.95, -2.28, -2.06, -3.31, -3.73))

if __name__ == "__main__":
    main(EXPERIMENT)
