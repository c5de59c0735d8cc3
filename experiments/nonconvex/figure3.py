"""AFL on non-convex objectives, Figure 3: loss over the rounds, MNIST, J = 3 ... 8."""

from __future__ import annotations

from experiments.nonconvex.figures import loss_of_each
from experiments.suite import main

EXPERIMENT = loss_of_each(3, "MNIST")

if __name__ == "__main__":
    main(EXPERIMENT)
