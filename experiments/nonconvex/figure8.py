"""AFL on non-convex objectives, Figure 8: loss over the rounds, CIFAR-10, J = 3 ... 8."""

from __future__ import annotations

from experiments.nonconvex.setting import METHODS, columns, figure, published
from experiments.suite import Claim, main

EXPERIMENT = figure(
    "Figure 8: loss over the rounds, CIFAR-10, J = 3 ... 8",
    columns("CIFAR-10", range(3, 9)),
    published=published("CIFAR-10", {5: (0.706, 0.055, 0.0113, 0.0065, 0.0020)}),
    claims=[
        Claim(
            f"{method}: at round {number} the local loss of J = 8 is below that of J = 3",
            lambda v, method=method, at=f"local loss, round {number}": (
                v(method, "CIFAR-10, J = 3", at) - v(method, "CIFAR-10, J = 8", at)
            ),
        )
        for method in METHODS
        for number in (50, 100)
    ],
)

if __name__ == "__main__":
    main(EXPERIMENT)
