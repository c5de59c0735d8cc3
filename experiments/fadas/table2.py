"""FADAS, Table 2: images under mild delays."""

from __future__ import annotations

from experiments.fadas.images import images
from experiments.suite import main

EXPERIMENT = images(
    title="FADAS, Table 2: test accuracy on images, mild delays",
    delays="mild",
    published={
        "FedAsync": ((42.48, 4.93), (71.76, 3.85), (45.26, 7.04), (53.41, 8.94)),
        "FedBuff": ((72.15, 2.71), (79.82, 3.25), (53.70, 1.13), (56.26, 1.64)),
        "FADAS": ((77.68, 2.32), (82.93, 0.81), (57.37, 0.47), (61.22, 0.31)),
        "FADAS_da": ((78.93, 0.83), (83.91, 0.54), (57.21, 0.45), (60.34, 0.42)),
    },
)

if __name__ == "__main__":
    main(EXPERIMENT)
