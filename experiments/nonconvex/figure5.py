"""AFL on non-convex objectives, Figure 5: loss over the rounds, CIFAR-10, J = 5."""

from __future__ import annotations

from experiments.nonconvex.setting import METHODS, columns, figure, published
from experiments.suite import Claim, main

EXPERIMENT = figure(
    "Figure 5: loss over the rounds, CIFAR-10, J = 5",
    columns("CIFAR-10", [5]),
    published=published("CIFAR-10", {5: (0.706, 0.055, 0.0113, 0.0065, 0.0020)}),
    claims=[
        Claim(
            f"{method}: the local loss falls from round 10 to round 100",
            lambda v, method=method: (
                v(method, "CIFAR-10, J = 5", "local loss, round 10")
                - v(method, "CIFAR-10, J = 5", "local loss, round 100")
            ),
        )
        for method in METHODS
    ],
)

if __name__ == "__main__":
    main(EXPERIMENT)
