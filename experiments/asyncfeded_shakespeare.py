"""AsyncFedED on Shakespeare with the paper's hyper-parameters: next-character prediction by `char_lstm`.

Ten speaking roles, all in flight. AsyncFedED (Wang et al., 2022): λ = 5, λ/ε = 0.5, γ̄ = 3, κ = 1, K_0 = 10, local momentum
0.5, rate 1 with decay 0.995 per run. What the paper leaves open: batches of 10, at most 40 local steps a run, 0.1 s a local
step times a client speed in U(1, 5), and a chance of 0.1 to be suspended.

    JAXAFL_DATA_DIR=... python experiments/asyncfeded_shakespeare.py         # about fifteen minutes on two cores

Writes asyncfeded_shakespeare.{csv,png} beside this file.
"""

from __future__ import annotations

import argparse
import pathlib

import numpy as np
import optax
from curves import report

import jaxafl as afl


def simulation() -> afl.Simulation:
    """Ten roles under AsyncFedED."""
    return afl.Simulation(
        data=afl.data.shakespeare(clients=10, test_samples=1000),
        model=afl.models.char_lstm(),
        client=afl.Client(optax.sgd, learning_rate=1.0, momentum=0.5, run_decay=0.995, steps=10, batch_size=10),
        server=afl.server.asyncfeded(lam=5.0, eps=10.0, target_staleness=3.0, kappa=1.0, max_steps=40),
        clock=afl.clock.free_running(
            concurrency=10,
            durations=afl.clock.uniform(1, 5, per="client") * afl.clock.constant(0.1, per="step")
            + afl.clock.suspension(0.1),
        ),
    )


def main() -> None:
    """Runs it, writes the curve and prints what always predicting the most frequent character would give."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server-steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sim = simulation()
    _, labels = sim.data.test_arrays()
    print(f"most frequent character: {100 * np.bincount(labels).max() / len(labels):.2f} % of the test samples")
    result = sim.run(
        options.server_steps, eval_every=max(1, options.server_steps // 30), seed=options.seed, progress=True
    )
    report({"AsyncFedED": result}, pathlib.Path(__file__).resolve().with_suffix(""))


if __name__ == "__main__":
    main()
