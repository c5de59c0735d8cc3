"""AFL on non-convex objectives, Figure 6: how often each client is selected, CIFAR-10, J = 5."""

from __future__ import annotations

from experiments.nonconvex.figures import selected
from experiments.suite import main

EXPERIMENT = selected(6, "CIFAR-10")

if __name__ == "__main__":
    main(EXPERIMENT)
