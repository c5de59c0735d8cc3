"""AsyncFedED, Figures 2 and 5-14 on Synthetic-1-1: accuracy against time, for every chance P that a client hangs."""

from __future__ import annotations

from experiments.asyncfeded.tables import against_time
from experiments.suite import main

EXPERIMENT = against_time("Synthetic-1-1")

if __name__ == "__main__":
    main(EXPERIMENT)
