"""AsyncFedED, Figure 4 on FEMNIST: the adaptive number of local steps K against constant ones."""

from __future__ import annotations

from experiments.asyncfeded.tables import constant_steps
from experiments.suite import main

EXPERIMENT = constant_steps("FEMNIST")

if __name__ == "__main__":
    main(EXPERIMENT)
