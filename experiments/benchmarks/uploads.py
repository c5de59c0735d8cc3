"""Measures what uploads, corrections, aggregates and attacks cost: updates per second with each, and without.

    python experiments/benchmarks/uploads.py              # ten minutes on two cores
    python experiments/benchmarks/uploads.py --model cnn  # with cnn_defedavg, 582,026 parameters

FedBuff, M = 10 of 20 in flight, five local steps on batches of 10. All run in turn in every repeat, and a row is the
median of its ratios to the run without any of them.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from typing import Any

import optax
from engine import engine_loop, seconds_of, simulation
from rich.console import Console
from rich.table import Table

import jaxafl as afl

UPLOADS = {
    "clip_by_global_norm": afl.upload.clip_by_global_norm(1.0),
    "add_noise": afl.upload.add_noise(1e-3),
    "top_k(share=0.01)": afl.upload.top_k(share=0.01),
    "top_k(share=0.1)": afl.upload.top_k(share=0.1),
    "random_k(share=0.01)": afl.upload.random_k(share=0.01),
    "sign": afl.upload.sign(),
    "qsgd(levels=16)": afl.upload.qsgd(levels=16),
    "error_feedback(top_k(share=0.01))": afl.upload.error_feedback(afl.upload.top_k(share=0.01)),
}
CORRECTIONS = {"scaffold": afl.correction.scaffold(), "feddyn": afl.correction.feddyn(0.01)}
AGGREGATES = {
    "median": afl.aggregate.median(),
    "trimmed_mean": afl.aggregate.trimmed_mean(count=2),
    "krum": afl.aggregate.krum(byzantine=2),
    "geometric_median": afl.aggregate.geometric_median(),
    "centered_clip": afl.aggregate.centered_clip(1.0),
    "private_mean": afl.aggregate.private_mean(1.0, noise_multiplier=1e-3),
}
ATTACKS = {"sign_flip": afl.attack.sign_flip(clients=0.2), "alie": afl.attack.alie(clients=0.2)}


def variants(base: afl.Simulation) -> dict[str, afl.Simulation]:
    """The run without any of them first."""

    def client(**given: Any) -> afl.Simulation:
        return dataclasses.replace(base, client=dataclasses.replace(base.client, **given))

    def server(one: Any) -> afl.Simulation:
        return dataclasses.replace(base, server=dataclasses.replace(base.server, aggregate=one))

    return (
        {"none": base, "none, again": base}
        | {name: client(upload=one) for name, one in UPLOADS.items()}
        | {name: client(correction=one) for name, one in CORRECTIONS.items()}
        | {name: server(one) for name, one in AGGREGATES.items()}
        | {name: dataclasses.replace(base, attack=one) for name, one in ATTACKS.items()}
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("mlp", "cnn"), default="mlp")
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    model = afl.models.mlp(10, hidden=(128,)) if given.model == "mlp" else afl.models.cnn_defedavg()
    steps = 40 if given.model == "mlp" else 4
    clock = afl.clock.free_running(concurrency=20, buffer=10, durations=afl.clock.uniform(1, 5))
    base = simulation(model)
    base = dataclasses.replace(
        base,
        clock=clock,
        server=afl.server.fedbuff(0.5, staleness="none"),
        client=afl.Client(optax.sgd, learning_rate=0.01, steps=5, batch_size=10),
    )
    made = {name: engine_loop(sim, steps) for name, sim in variants(base).items()}
    times = dict(zip(made, seconds_of(*made.values(), repeats=given.repeats), strict=True))
    table = Table("with", "updates/s", "time / without", "from", "to")
    for name, column in times.items():
        ratios = sorted(a / b for a, b in zip(column, times["none"], strict=True))
        rate = 10 * steps / statistics.median(column)
        table.add_row(
            name, f"{rate:.0f}", *(f"{one:.2f}" for one in (statistics.median(ratios), ratios[0], ratios[-1]))
        )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
