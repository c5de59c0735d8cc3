"""AsyncFedED, Figures 2 and 5-14 on FEMNIST: accuracy against time, for every chance P that a client hangs."""

from __future__ import annotations

from experiments.asyncfeded.tables import against_time
from experiments.suite import main

EXPERIMENT = against_time("FEMNIST")

if __name__ == "__main__":
    main(EXPERIMENT)
