"""AFL on non-convex objectives, Figure 3: loss over the rounds, MNIST, J = 3 ... 8."""

from __future__ import annotations

from experiments.nonconvex.setting import METHODS, columns, figure, published
from experiments.suite import Claim, main

EXPERIMENT = figure(
    "Figure 3: loss over the rounds, MNIST, J = 3 ... 8",
    columns("MNIST", range(3, 9)),
    published=published(
        "MNIST",
        {
            3: (1.377, 0.642, 0.311, 0.117, 0.0581, 0.0031, 0.0017),
            5: (1.324, 0.682, 0.159, 0.077, 0.0221, 0.0031, 0.0033),
            8: (1.391, 0.413, 0.0686, 0.0264, 0.0026, 0.0024, 0.0021),
        },
    ),
    claims=[
        Claim(
            f"{method}: at round {number} the local loss of J = 8 is below that of J = 3",
            lambda v, method=method, at=f"local loss, round {number}": (
                v(method, "MNIST, J = 3", at) - v(method, "MNIST, J = 8", at)
            ),
        )
        for method in METHODS
        for number in (50, 100)
    ],
)

if __name__ == "__main__":
    main(EXPERIMENT)
