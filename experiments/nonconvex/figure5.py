"""AFL on non-convex objectives, Figure 5: loss over the rounds, CIFAR-10, J = 5."""

from __future__ import annotations

from experiments.nonconvex.figures import loss
from experiments.suite import main

EXPERIMENT = loss(5, "CIFAR-10")

if __name__ == "__main__":
    main(EXPERIMENT)
