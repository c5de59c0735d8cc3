"""AsyncFedED, Figure 3 on FEMNIST: best accuracy within 300 s and time to 90 % of it, against P."""

from __future__ import annotations

from experiments.asyncfeded.tables import against_chance
from experiments.suite import main

EXPERIMENT = against_chance("FEMNIST")

if __name__ == "__main__":
    main(EXPERIMENT)
