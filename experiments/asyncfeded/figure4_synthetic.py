"""AsyncFedED, Figure 4 on Synthetic-1-1: the adaptive number of local steps K against constant ones."""

from __future__ import annotations

from experiments.asyncfeded.tables import constant_steps
from experiments.suite import main

EXPERIMENT = constant_steps("Synthetic-1-1")

if __name__ == "__main__":
    main(EXPERIMENT)
