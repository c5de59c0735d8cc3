"""The decoder on Shakespeare's plays against the bytes between regions; the runs are those of `decoder`."""

from __future__ import annotations

from experiments.lowcomm.decoder import SENT, against
from experiments.suite import main

EXPERIMENT = against(SENT)

if __name__ == "__main__":
    main(EXPERIMENT)
