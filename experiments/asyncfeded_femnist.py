"""AsyncFedED on FEMNIST with the paper's hyper-parameters, beside FedAsync with its own.

Ten real writers (those that ship with the package, with LEAF's split into training and test samples), `cnn_asyncfeded`,
all ten in flight. AsyncFedED (Wang et al., 2022): λ = 1, λ/ε = 1, γ̄ = 3, κ = 0.05, K_0 = 10, local momentum 0.5, rate
0.01 with decay 0.995 per run; FedAsync: α = 0.5, constant. What the paper leaves open: batches of 32, kernels of 3 × 3
with 32 and 64 channels, 0.1 s a local step times a client speed in U(1, 5), and a chance of 0.1 to be suspended. Both
methods make about the same number of local steps.

    python experiments/asyncfeded_femnist.py

Writes asyncfeded_femnist.{csv,png} beside this file.
"""

from __future__ import annotations

import argparse
import pathlib

import optax
from curves import report

import jaxafl as afl

SERVERS = {
    "AsyncFedED": afl.server.asyncfeded(lam=1.0, eps=1.0, target_staleness=3.0, kappa=0.05),
    "FedAsync": afl.server.fedasync(alpha=0.5),
}


def simulation(server: afl.server.Server) -> afl.Simulation:
    """Ten writers under one server."""
    return afl.Simulation(
        data=afl.data.femnist(clients=10),
        model=afl.models.cnn_asyncfeded(num_classes=62),
        client=afl.Client(optax.sgd, learning_rate=0.01, momentum=0.5, run_decay=0.995, steps=10, batch_size=32),
        server=server,
        clock=afl.clock.free_running(
            concurrency=10,
            durations=afl.clock.uniform(1, 5, per="client") * afl.clock.constant(0.1, per="step")
            + afl.clock.suspension(0.1),
        ),
    )


def main() -> None:
    """Runs both methods, writes the curves and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server-steps", type=int, default=600, help="of AsyncFedED, whose local steps FedAsync gets")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    results = {}
    steps = options.server_steps
    for name, server in SERVERS.items():
        result = simulation(server).run(steps, eval_every=max(1, steps // 30), seed=options.seed, progress=True)
        results[name] = result
        steps = int(result.eval_local_steps.values[-1]) // 10
    report(results, pathlib.Path(__file__).resolve().with_suffix(""))


if __name__ == "__main__":
    main()
