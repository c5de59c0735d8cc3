"""AsyncFedED, sweep of FedProx's μ."""

from __future__ import annotations

from experiments.asyncfeded.sweeps import sweep_of
from experiments.suite import main

EXPERIMENT = sweep_of("FedProx", "μ", {f"μ = {mu}": {"mu": mu} for mu in (0.001, 0.01, 0.1, 0.5, 1.0)})

if __name__ == "__main__":
    main(EXPERIMENT)
