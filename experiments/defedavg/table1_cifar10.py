"""DeFedAvg, Table 1 on CIFAR-10: simulated seconds to the target accuracy; Figures 2-5: accuracy against time."""

from __future__ import annotations

from experiments.defedavg.tables import table1
from experiments.suite import main

EXPERIMENT = table1("CIFAR-10")

if __name__ == "__main__":
    main(EXPERIMENT)
