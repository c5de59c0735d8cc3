"""DeFedAvg, Figures 2-5 on CIFAR-10: loss against simulated time; the accuracy is drawn by Table 1."""

from __future__ import annotations

from experiments.defedavg.tables import figures2_5
from experiments.suite import main

EXPERIMENT = figures2_5("CIFAR-10")

if __name__ == "__main__":
    main(EXPERIMENT)
