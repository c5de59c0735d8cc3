"""FADAS and FedBuff on CIFAR-10 under the large worst-case delays of FADAS (section 6), at the scale of a CPU.

As in the paper: CIFAR-10 over 50 clients by Dirichlet(0.3), 25 in flight, a buffer of 5, two local epochs of batch 50
with weight decay 1e-4, random crops and flips. Unlike it: `cnn_defedavg` in place of ResNet-18, and far fewer server
steps.

    JAXAFL_DATA_DIR=... python experiments/fadas_cifar10.py         # ten to fifteen minutes a method on two cores

Writes fadas_cifar10.{csv,png} beside this file.
"""

from __future__ import annotations

import argparse
import pathlib

import optax
import xarray as xr
from curves import report

import jaxafl as afl

METHODS = {
    # name: (server, local learning rate)
    "FADAS": (afl.server.fadas(learning_rate=1e-3), 0.05),
    "FedBuff": (afl.server.fedbuff(learning_rate=1.0), 0.03),
}


def run(name: str, server_steps: int, seed: int) -> xr.Dataset:
    """One method."""
    server, rate = METHODS[name]
    sim = afl.Simulation(
        data=afl.data.cifar10(augment=True).partition(afl.data.dirichlet(0.3, clients=50), seed=seed),
        model=afl.models.cnn_defedavg(num_classes=10),
        client=afl.Client(optax.sgd, learning_rate=rate, weight_decay=1e-4, epochs=2, batch_size=50),
        server=server,
        clock=afl.clock.free_running(
            concurrency=25, buffer=5, dispatch="step", durations=afl.clock.three_tier("large")
        ),
    )
    return sim.run(server_steps, eval_every=max(1, server_steps // 20), seed=seed, progress=True)


def main() -> None:
    """Runs the methods, writes the curves and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server-steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    options = parser.parse_args()
    results = {name: run(name, options.server_steps, options.seed) for name in options.methods}
    report(results, pathlib.Path(__file__).resolve().with_suffix(""))


if __name__ == "__main__":
    main()
