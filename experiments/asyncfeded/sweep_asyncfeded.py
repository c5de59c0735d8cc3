"""AsyncFedED, sweeps of λ/ε, λ, γ̄ and κ, one at a time."""

from __future__ import annotations

from experiments.asyncfeded.sweeps import sweep_of
from experiments.suite import main

GRIDS = {
    ("λ/ε", "lam_over_eps"): (0.1, 0.5, 1.0, 3.0),
    ("λ", "lam"): (1.0, 3.0, 5.0, 10.0),
    ("γ̄", "target"): (0.1, 0.5, 1.0, 3.0, 5.0),
    ("κ", "kappa"): (0.01, 0.05, 0.1, 0.5, 1.0),
}
VALUES = {f"{said} = {value:g}": {field: value} for (said, field), grid in GRIDS.items() for value in grid}
EXPERIMENT = sweep_of("AsyncFedED", "λ/ε, λ, target staleness and κ", VALUES)

if __name__ == "__main__":
    main(EXPERIMENT)
