"""AFL on non-convex objectives, Figure 8: loss over the rounds, CIFAR-10, J = 3 ... 8."""

from __future__ import annotations

from experiments.nonconvex.figures import loss_of_each
from experiments.suite import main

EXPERIMENT = loss_of_each(8, "CIFAR-10")

if __name__ == "__main__":
    main(EXPERIMENT)
