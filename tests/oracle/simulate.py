"""A whole run, one client at a time: the clock's arrivals, local training, server steps, and every version kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .client import LocalTraining, Quadratic, train
from .clock import Arrival, OnStep, ServerStep
from .update import Array, Server, StepInfo, Update

Clock = Sequence[ServerStep] | Callable[[OnStep], Sequence[ServerStep]]
Batches = Callable[[int, int, int], Sequence[Sequence[int]]]
"""`batches(client, run, local_steps)`: the sample indices of each local step."""


@dataclass(frozen=True)
class StepRecord:
    """What happened at one server step; sequences in the order of its arrivals.

    Attributes:
        arrivals: Who arrived, and when and from where they started.
        updates: Their updates as the server got them.
        losses: Mean local loss of each run.
        norms: ||Delta_i||.
        drifts: ||x_t - x_s|| (Definition 1 of the paper cited at `server_rounds.AFL`).
        info: The server's diagnostics.
    """

    arrivals: tuple[Arrival, ...]
    updates: tuple[Update, ...]
    losses: tuple[float, ...]
    norms: tuple[float, ...]
    drifts: tuple[float, ...]
    info: StepInfo


@dataclass(frozen=True)
class Simulation:
    """versions: x_0 .. x_T. records: one per server step. times: seconds of each server step."""

    versions: list[Array]
    records: list[StepRecord]
    times: list[float]


def simulate(
    clock: Clock,
    training: LocalTraining,
    server: Server,
    x0: Array,
    clients: Sequence[Quadratic],
    *,
    batches: Batches | None = None,
) -> Simulation:
    """Trains each run when it arrives, from the version it started from, and takes the server steps in order.

    Args:
        clock: Recorded steps, or where the server decides the numbers of local steps a function that runs the clock
            with a given `on_step`: `lambda on_step: free_running(..., on_step=on_step)`.
        training: How every client trains; `training.steps` holds where the clock does not decide the number.
        server: A fresh server.
        x0: Initial parameters, [dim].
        clients: Each client's samples.
        batches: Mini-batches of each run; None takes full-batch steps.

    Returns:
        All versions, a record per server step and their times.
    """
    versions = [np.array(x0, dtype=np.float64)]
    records: list[StepRecord] = []

    def on_step(t: int, arrivals: tuple[Arrival, ...]) -> dict[int, int]:
        trained = [_train_arrival(arrival, versions, training, clients, batches) for arrival in arrivals]
        updates = tuple(update for update, _ in trained)
        x = versions[t]
        versions.append(server.step(x, updates))
        records.append(
            StepRecord(
                arrivals=arrivals,
                updates=updates,
                losses=tuple(loss for _, loss in trained),
                norms=tuple(float(np.linalg.norm(update.delta)) for update in updates),
                drifts=tuple(float(np.linalg.norm(x - update.x_start)) for update in updates),
                info=server.info,
            )
        )
        return dict(server.info.replies)

    if callable(clock):
        steps = clock(on_step)
    else:
        steps = clock
        for step in steps:
            on_step(step.step, step.arrivals)
    return Simulation(versions, records, [step.time for step in steps])


def _train_arrival(
    arrival: Arrival,
    versions: Sequence[Array],
    training: LocalTraining,
    clients: Sequence[Quadratic],
    batches: Batches | None,
) -> tuple[Update, float]:
    data = clients[arrival.client]
    local_steps = training.steps if arrival.local_steps is None else arrival.local_steps
    result = train(
        versions[arrival.trained_from],
        data,
        training,
        local_steps=local_steps,
        run=arrival.run,
        batches=None if batches is None else batches(arrival.client, arrival.run, local_steps),
    )
    x_start = versions[arrival.start_version]
    update = Update(
        client=arrival.client,
        delta=result.model - x_start,
        x_start=x_start,
        staleness=arrival.staleness,
        num_samples=data.num_samples,
        local_steps=local_steps,
        multiplicity=arrival.multiplicity,
    )
    return update, result.loss
