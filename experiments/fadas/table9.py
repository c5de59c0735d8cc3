"""FADAS, Table 9: CIFAR-100 under large worst-case delays, three seeds."""

from __future__ import annotations

from experiments.fadas.images import THREE_SEEDS, images
from experiments.suite import main

EXPERIMENT = images(
    title="FADAS, Table 9: test accuracy on CIFAR-100, large worst-case delays, three seeds",
    delays="large",
    classes=(100,),
    published={
        "FedAsync": ((46.25, 4.33), (43.22, 10.75)),
        "FedBuff": ((15.97, 2.44), (28.58, 4.74)),
        "FADAS": ((47.85, 0.69), (52.80, 1.15)),
        "FADAS_da": ((51.55, 1.03), (56.01, 0.95)),
    },
    note=THREE_SEEDS,
)

if __name__ == "__main__":
    main(EXPERIMENT)
