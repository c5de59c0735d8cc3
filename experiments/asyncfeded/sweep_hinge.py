"""AsyncFedED, sweep of the slope a and the threshold b of FedAsync's hinge."""

from __future__ import annotations

import itertools

from experiments.asyncfeded.sweeps import sweep_of
from experiments.suite import main

GRID = (0.5, 1.0, 5.0, 10.0, 15.0)
VALUES = {f"a = {a:g}, b = {b:g}": {"a": a, "b": b} for a, b in itertools.product(GRID, GRID)}
EXPERIMENT = sweep_of("FedAsync hinge", "a and b", VALUES)

if __name__ == "__main__":
    main(EXPERIMENT)
