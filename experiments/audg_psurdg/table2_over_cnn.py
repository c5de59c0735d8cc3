"""AUDG and PSURDG, Table II, the Over-CNN: synchronous learning, and the learning rate at which it comes to this."""

from __future__ import annotations

from experiments.audg_psurdg.tables import synchronous_alone
from experiments.suite import main

EXPERIMENT = synchronous_alone("Table II", "Over-CNN")

if __name__ == "__main__":
    main(EXPERIMENT)
