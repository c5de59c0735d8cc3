"""A whole run of QuAFL, whose clients own their models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .client import LocalTraining, Quadratic
from .clock import ServerStep
from .server_interrupting import QuAFL
from .simulate import Batches, Simulation, StepRecord, step_record, train_run
from .update import Array


def simulate_quafl(
    steps: Sequence[ServerStep],
    training: LocalTraining,
    server: QuAFL,
    x0: Array,
    clients: Sequence[Quadratic],
    *,
    batches: Batches | None = None,
    scale_rate: bool = False,
) -> Simulation:
    """Each contacted client makes its E local steps from its OWN model, as its last contact left it.

    Args:
        steps: Contacts, from `clock_interrupting.interrupting`.
        training: How every client trains; the numbers of steps come from the clock.
        server: A fresh server; it holds the clients' models.
        x0: Initial parameters of the server and of every client, [dim].
        clients: Each client's samples.
        batches: Mini-batches of each run; None takes full-batch steps.
        scale_rate: Multiply the local rate by 1 / (1 - p) = (s + 1) / s, as the authors' code does.

    Returns:
        All versions, a record per contact and their times. `Update.x_start` is the client's own model, so `drifts` are
        distances between the server's and the clients' models.
    """
    versions = [np.array(x0, dtype=np.float64)]
    records: list[StepRecord] = []
    for step in steps:
        contacted = len(step.arrivals)
        rate = training.learning_rate * ((contacted + 1) / contacted if scale_rate else 1.0)
        scaled = replace(training, learning_rate=rate)
        trained = []
        for arrival in step.arrivals:
            own = server.models[arrival.client].copy()
            trained.append(train_run(arrival, own, own, scaled, clients[arrival.client], batches))
        x = versions[step.step]
        versions.append(server.step(x, [update for update, _ in trained]))
        records.append(step_record(x, step.arrivals, trained, server.info))
    return Simulation(versions, records, [step.time for step in steps])
