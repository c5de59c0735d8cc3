"""AFL on non-convex objectives, Figure 1: loss over the rounds, MNIST, J = 5."""

from __future__ import annotations

from experiments.nonconvex.figures import loss
from experiments.suite import main

EXPERIMENT = loss(1, "MNIST")

if __name__ == "__main__":
    main(EXPERIMENT)
