"""A whole run of AFL: delay-aware local epochs, and a stopping rule of the server."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .client import Quadratic
from .client_epochs import EpochTraining, train_epochs
from .clock import Arrival, ServerStep
from .server_rounds import AFL
from .simulate import Simulation, StepRecord, step_record
from .update import Array, Update

EpochBatches = Callable[[int, int], Sequence[Sequence[Sequence[int]]]]
"""`batches(client, run)`: the sample indices of each step of each epoch."""


def simulate_afl(
    steps: Sequence[ServerStep],
    training: EpochTraining,
    server: AFL,
    x0: Array,
    clients: Sequence[Quadratic],
    *,
    batches: EpochBatches | None = None,
    delay: str = "staleness",
    broadcast: bool = True,
    tolerance: float | None = None,
) -> Simulation:
    """Rounds of AFL: x <- sum_i w_i x_i^K, until ||x_{t+1} - x_t|| <= tolerance or the recorded rounds end.

    Args:
        steps: Rounds, from `clock_stale_rounds.stale_rounds`.
        training: How every client trains.
        server: A fresh server.
        x0: Initial parameters, [dim].
        clients: Each client's samples.
        batches: Mini-batches of each run; None takes one full-batch step per epoch.
        delay: What d is: "staleness" (the true one, after clamping at version 0) or "seconds" (the duration of the
            run).
        broadcast: False: the server's model never reaches the clients (the authors' scripts). Each client goes on from
            its own last model, x_0 at first; its staleness is 0 and its delay the constant 2. A client drawn twice into
            a round goes on from the model of its earlier slot.
        tolerance: kappa of the stopping rule; None: never stop early. The step that meets it is kept.

    Returns:
        All versions up to the last step taken, and a record and a time for each step.

    Raises:
        ValueError: If `delay` is neither "staleness" nor "seconds".
    """
    if delay not in ("staleness", "seconds"):
        raise ValueError(f'delay must be "staleness" or "seconds", got {delay!r}')
    versions = [np.array(x0, dtype=np.float64)]
    own = [versions[0]] * len(clients)
    records: list[StepRecord] = []
    for step in steps:
        trained: dict[int, tuple[Update, float]] = {}
        for arrival in sorted(step.arrivals, key=lambda arrival: arrival.dispatch):
            if broadcast:
                x_start, staleness = versions[arrival.trained_from], arrival.staleness
                d = float(staleness) if delay == "staleness" else arrival.arrival_time - arrival.start_time
            else:
                x_start, staleness, d = own[arrival.client], 0, 2.0
            trained[arrival.dispatch] = _train(arrival, x_start, staleness, d, training, clients, batches)
            own[arrival.client] = trained[arrival.dispatch][0].model
        x = versions[step.step]
        in_order = [trained[arrival.dispatch] for arrival in step.arrivals]
        versions.append(server.step(x, [update for update, _ in in_order]))
        records.append(step_record(x, step.arrivals, in_order, server.info))
        if tolerance is not None and np.linalg.norm(versions[-1] - x) <= tolerance:
            break
    return Simulation(versions, records, [step.time for step in steps[: len(records)]])


def _train(
    arrival: Arrival,
    x_start: Array,
    staleness: int,
    delay: float,
    training: EpochTraining,
    clients: Sequence[Quadratic],
    batches: EpochBatches | None,
) -> tuple[Update, float]:
    data = clients[arrival.client]
    indices = None if batches is None else batches(arrival.client, arrival.run)
    result = train_epochs(x_start, data, training, delay=delay, batches=indices)
    update = Update(
        client=arrival.client,
        delta=result.delta,
        x_start=x_start,
        staleness=staleness,
        num_samples=data.num_samples,
        local_steps=result.local_steps,
        multiplicity=arrival.multiplicity,
    )
    return update, result.loss
