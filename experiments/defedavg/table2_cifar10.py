"""DeFedAvg, Table 2 on CIFAR-10: the rates, tuned on training images that are held out."""

from __future__ import annotations

from experiments.defedavg.tables import table2
from experiments.suite import main

EXPERIMENT = table2("CIFAR-10")

if __name__ == "__main__":
    main(EXPERIMENT)
