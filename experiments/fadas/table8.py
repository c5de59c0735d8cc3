"""FADAS, Table 8: CIFAR-10 under large worst-case delays, three seeds."""

from __future__ import annotations

from experiments.fadas.images import THREE_SEEDS, images
from experiments.suite import main

EXPERIMENT = images(
    title="FADAS, Table 8: test accuracy on CIFAR-10, large worst-case delays, three seeds",
    delays="large",
    classes=(10,),
    published={
        "FedAsync": ((50.29, 6.86), (59.75, 13.40)),
        "FedBuff": ((44.92, 5.26), (46.94, 0.99)),
        "FADAS": ((70.57, 2.04), (75.97, 2.64)),
        "FADAS_da": ((72.64, 1.00), (80.26, 0.68)),
    },
    note=THREE_SEEDS,
)

if __name__ == "__main__":
    main(EXPERIMENT)
