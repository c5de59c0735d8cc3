"""FADAS, FedBuff and FedAsync on Fashion-MNIST under the large worst-case delays of FADAS (section 6).

Fashion-MNIST over 50 clients by Dirichlet(0.3), 25 in flight, a buffer of 5, `cnn_defedavg`, local SGD of 10 steps of
batch 50. All three methods see the same clients, delays and number of client updates (1500): 300 server steps of 5
arrivals for FADAS and FedBuff, 1500 of one for FedAsync (what FADAS's code calls FedAsync: x += Δ). One seed.

    python experiments/fadas_fashion_mnist.py                 # about five minutes a method on two cores
    python experiments/fadas_fashion_mnist.py --updates 100   # a short look

Writes fadas_fashion_mnist.{csv,png} beside this file. Fashion-MNIST must be in the data directory (JAXAFL_DATA_DIR) or
prepared by TFDS.
"""

from __future__ import annotations

import argparse
import pathlib

import optax
import xarray as xr
from curves import report

import jaxafl as afl

BUFFER, CONCURRENCY, CLIENTS = 5, 25, 50
METHODS = {
    # name: (server, local learning rate, buffer)
    "FADAS": (afl.server.fadas(learning_rate=1e-3), 0.05, BUFFER),
    "FADAS, delay-adaptive": (afl.server.fadas(learning_rate=1e-3, delay_scaling="eq77", tau_c=8), 0.05, BUFFER),
    "FedBuff": (afl.server.fedbuff(learning_rate=1.0), 0.03, BUFFER),
    "FedAsync": (afl.server.fedasync(alpha=1.0, mix="delta"), 0.003, 1),
}


def run(name: str, updates: int, seed: int = 0) -> xr.Dataset:
    """One method for a number of client updates."""
    server, rate, buffer = METHODS[name]
    sim = afl.Simulation(
        data=afl.data.fashion_mnist().partition(afl.data.dirichlet(0.3, clients=CLIENTS), seed=seed),
        model=afl.models.cnn_defedavg(num_classes=10),
        client=afl.Client(optax.sgd, learning_rate=rate, weight_decay=1e-4, steps=10, batch_size=50),
        server=server,
        clock=afl.clock.free_running(
            concurrency=CONCURRENCY, buffer=buffer, dispatch="step", durations=afl.clock.three_tier("large")
        ),
    )
    return sim.run(updates // buffer, eval_every=50 // buffer, seed=seed, progress=True)


def main() -> None:
    """Runs the methods, writes the curves and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=1500, help="client updates per method")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    options = parser.parse_args()
    results = {name: run(name, options.updates, options.seed) for name in options.methods}
    report(results, pathlib.Path(__file__).resolve().with_suffix(""))


if __name__ == "__main__":
    main()
