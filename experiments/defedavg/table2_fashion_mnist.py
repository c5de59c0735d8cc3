"""DeFedAvg, Table 2 on Fashion-MNIST: the rates, tuned on training images that are held out."""

from __future__ import annotations

from experiments.defedavg.tables import table2
from experiments.suite import main

EXPERIMENT = table2("Fashion-MNIST")

if __name__ == "__main__":
    main(EXPERIMENT)
