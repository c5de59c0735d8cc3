"""The decoder on Shakespeare's plays against the workers' energy; the runs are those of `decoder`."""

from __future__ import annotations

from experiments.lowcomm.decoder import ENERGY, against
from experiments.suite import main

EXPERIMENT = against(ENERGY)

if __name__ == "__main__":
    main(EXPERIMENT)
