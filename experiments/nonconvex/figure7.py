"""AFL on non-convex objectives, Figure 7: AFL against synchronous FL, CIFAR-10."""

from __future__ import annotations

from experiments.nonconvex.figures import against_synchronous
from experiments.suite import main

EXPERIMENT = against_synchronous(7, "CIFAR-10")

if __name__ == "__main__":
    main(EXPERIMENT)
