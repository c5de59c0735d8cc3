"""AFL on non-convex objectives, Figure 4: AFL against synchronous FL, MNIST."""

from __future__ import annotations

from experiments.nonconvex.setting import METHODS, NOTE, columns, figure
from experiments.suite import Claim, main

EXPERIMENT = figure(
    "Figure 4: AFL against synchronous FL, MNIST, J = 5",
    columns("MNIST", [5]),
    methods=(*METHODS, "synchronous FL"),
    claims=[
        Claim(
            f"AFL's {what} is below that of synchronous FL",
            lambda v, what=what: v("synchronous FL", "MNIST, J = 5", what) - v("AFL", "MNIST, J = 5", what),
        )
        for what in ("test loss", "local loss, round 100")
    ],
    note=f"{NOTE} Synchronous FL is FedAvg of all ten clients a round, with the same local training (unpublished).",
)

if __name__ == "__main__":
    main(EXPERIMENT)
