"""AsyncFedED, sweep of the constant α of FedAsync."""

from __future__ import annotations

from experiments.asyncfeded.sweeps import sweep_of
from experiments.suite import main

VALUES = {f"α = {alpha}": {"alpha": alpha} for alpha in (0.01, 0.1, 0.3, 0.5, 0.9)}
EXPERIMENT = sweep_of("FedAsync constant", "α", VALUES)

if __name__ == "__main__":
    main(EXPERIMENT)
