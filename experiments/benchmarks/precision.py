"""What bfloat16 does to accuracy: three tasks, the same schedules, initial models and mini-batches in both precisions.

JAXAFL_DATA_DIR=... python experiments/benchmarks/precision.py              # some ten minutes on two cores
JAXAFL_DATA_DIR=... python experiments/benchmarks/precision.py Shakespeare
"""

from __future__ import annotations

import dataclasses
import sys

import numpy as np
import optax
from rich.console import Console
from rich.table import Table

import jaxafl as afl

SEEDS = range(3)


def tasks() -> dict[str, tuple[afl.Simulation, int]]:
    """Simulations, and their server steps."""
    times = afl.clock.lognormal(0.0, 1.0)
    clock = afl.clock.free_running(concurrency=10, buffer=5, durations=times)
    images = afl.data.fashion_mnist().partition(afl.data.dirichlet(0.3, clients=50), seed=0)
    client = afl.Client(optax.sgd, learning_rate=0.05, steps=10, batch_size=20)
    faster = afl.Client(optax.sgd, learning_rate=0.02, momentum=0.5, steps=10, batch_size=32)
    writers = afl.data.femnist(clients=10)
    roles = afl.data.shakespeare(clients=10)
    text = afl.Client(optax.sgd, learning_rate=1.0, momentum=0.5, steps=10, batch_size=10)
    lstm = afl.models.char_lstm(layers=1, hidden=64, initialisation="torch")
    one = dataclasses.replace(clock, concurrency=10, buffer=1)
    return {
        "Fashion-MNIST, cnn_small, FADAS": (
            afl.Simulation(images, afl.models.cnn_small(), client, afl.server.fadas(0.003), clock),
            100,
        ),
        "FEMNIST, MLP, FedBuff": (
            afl.Simulation(writers, afl.models.mlp(62), faster, afl.server.fedbuff(staleness="none"), clock),
            200,
        ),
        "Shakespeare, LSTM, FedAsync": (
            afl.Simulation(roles, lstm, text, afl.server.fedasync(0.1, staleness="constant"), one),
            300,
        ),
    }


def main() -> None:
    table = Table("task", "float32, %", "bfloat16, %", "difference of pairs", title="mean of the last five evaluations")
    for name, (sim, steps) in tasks().items():
        if not all(part in name for part in sys.argv[1:]):
            continue
        found = {
            precision: np.array(
                [sim_.run(steps, eval_every=steps // 20, seed=seed).accuracy.values[-5:].mean() * 100 for seed in SEEDS]
            )
            for precision in ("float32", "bfloat16")
            for sim_ in (dataclasses.replace(sim, precision=precision),)
        }
        pairs = found["bfloat16"] - found["float32"]
        columns = [f"{values.mean():.2f} ± {values.std(ddof=1):.2f}" for values in (*found.values(), pairs)]
        table.add_row(name, *columns)
        print(name, *columns, flush=True)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
