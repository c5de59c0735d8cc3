"""AFL on non-convex objectives, Figure 2: how often each client is selected, MNIST, J = 5."""

from __future__ import annotations

from experiments.nonconvex.figures import selected
from experiments.suite import main

EXPERIMENT = selected(2, "MNIST")

if __name__ == "__main__":
    main(EXPERIMENT)
