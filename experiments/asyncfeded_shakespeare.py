"""AsyncFedED on Shakespeare with the paper's hyper-parameters: next-character prediction by `char_lstm`.

Ten speaking roles, all in flight. AsyncFedED (Wang et al., 2022): λ = 5, λ/ε = 0.5, γ̄ = 3, κ = 1, K_0 = 10, local
momentum 0.5, rate 1 with decay 0.995; FedAsync: α = 0.1, constant. What the paper leaves open, and what it is here: one
LSTM layer of 128 that starts as PyTorch's do, batches of 10, the decay per local step, at most 40 local steps a run,
0.1 s a local step times a client speed in U(1, 5), and a chance of 0.1 to be suspended.

These choices matter. With λ/ε = 0.5 each of the ten arrivals of a round moves the model by up to half of its update. A
direction along which a run gets all the way to its own optimum then follows x_{t+1} = x_t + g (x* - x_{t-9}) with g
near 0.45, and such a delayed loop is stable only for g < π / (2 (2 · 9 + 1)) = 0.083. So at a local rate of 1 the model
swings at first, and learns once the decay has made a run shorter than that. With the decay per run, or with two layers,
it had not recovered after 240 to 300 server steps. λ = 1 at the same λ/ε, which is in the paper's grid too, starts from
the same weight but lowers it sooner when the model moves: λ/(γ + ε) is halved at γ = ε = 2 rather than at 10.

    JAXAFL_DATA_DIR=... python experiments/asyncfeded_shakespeare.py         # about three minutes on two cores

Writes asyncfeded_shakespeare.{csv,png} beside this file.
"""

from __future__ import annotations

import argparse
import pathlib

import numpy as np
import optax
from curves import report

import jaxafl as afl

DECAY, FIRST_STEPS = 0.995, 10
SERVERS = {
    "AsyncFedED, λ = 5": afl.server.asyncfeded(lam=5.0, eps=10.0, target_staleness=3.0, kappa=1.0, max_steps=40),
    "AsyncFedED, λ = 1": afl.server.asyncfeded(lam=1.0, eps=2.0, target_staleness=3.0, kappa=1.0, max_steps=40),
    "FedAsync, α = 0.1": afl.server.fedasync(alpha=0.1),
}


def simulation(server: afl.server.Server, layers: int, hidden: int) -> afl.Simulation:
    """Ten roles under one server."""
    return afl.Simulation(
        data=afl.data.shakespeare(clients=10, test_samples=1000),
        model=afl.models.char_lstm(layers=layers, hidden=hidden, initialisation="torch"),
        client=afl.Client(
            optax.sgd,
            learning_rate=1.0,
            momentum=0.5,
            run_decay=DECAY**FIRST_STEPS,  # earlier runs count as K_0 steps each
            step_schedule=lambda step: DECAY**step,
            steps=FIRST_STEPS,
            batch_size=10,
        ),
        server=server,
        clock=afl.clock.free_running(
            concurrency=10,
            durations=afl.clock.uniform(1, 5, per="client") * afl.clock.constant(0.1, per="step")
            + afl.clock.suspension(0.1),
        ),
    )


def main() -> None:
    """Runs the methods, writes the curves and prints what always predicting the most frequent character would give."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server-steps", type=int, default=800)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    results = {}
    for name, server in SERVERS.items():
        sim = simulation(server, options.layers, options.hidden)
        every = max(1, options.server_steps // 40)
        results[name] = sim.run(options.server_steps, eval_every=every, seed=options.seed, progress=True)
    _, labels = sim.data.test_arrays()
    print(f"most frequent character: {100 * np.bincount(labels).max() / len(labels):.2f} % of the test samples")
    report(results, pathlib.Path(__file__).resolve().with_suffix(""))


if __name__ == "__main__":
    main()
