"""AFL on non-convex objectives, Figure 1: loss over the rounds, MNIST, J = 5."""

from __future__ import annotations

from experiments.nonconvex.setting import METHODS, columns, figure, published
from experiments.suite import Claim, main

EXPERIMENT = figure(
    "Figure 1: loss over the rounds, MNIST, J = 5",
    columns("MNIST", [5]),
    published=published("MNIST", {5: (1.324, 0.682, 0.159, 0.077, 0.0221, 0.0031, 0.0033)}),
    claims=[
        Claim(
            f"{method}: the local loss falls from round 10 to round 100",
            lambda v, method=method: (
                v(method, "MNIST, J = 5", "local loss, round 10") - v(method, "MNIST, J = 5", "local loss, round 100")
            ),
        )
        for method in METHODS
    ],
)

if __name__ == "__main__":
    main(EXPERIMENT)
