"""AUDG and PSURDG, Table III, the CNN: accuracy on IID data."""

from __future__ import annotations

from experiments.audg_psurdg.tables import accuracies
from experiments.suite import main

EXPERIMENT = accuracies("CNN", (-3.25, -2.19, -1.53, -3.73, -4.18))

if __name__ == "__main__":
    main(EXPERIMENT)
