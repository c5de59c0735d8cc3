"""AFL on non-convex objectives, Figure 4: AFL against synchronous FL, MNIST."""

from __future__ import annotations

from experiments.nonconvex.figures import against_synchronous
from experiments.suite import main

EXPERIMENT = against_synchronous(4, "MNIST")

if __name__ == "__main__":
    main(EXPERIMENT)
