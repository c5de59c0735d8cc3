"""A whole run, one client at a time: the clock's arrivals, local training, server steps, and every version kept."""

from __future__ import annotations

import math
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
        losses: Mean local loss of each run; NaN for a run interrupted before its first step.
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
    training: LocalTraining | Callable[[Arrival], LocalTraining],
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
        training: How every client trains, or a function that says it of a run; `training.steps` holds where the clock
            does not decide the number.
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
        trained = [train_arrival(arrival, versions, training, clients, batches) for arrival in arrivals]
        updates = [update for update, _ in trained]
        versions.append(server.step(versions[t], updates))
        records.append(step_record(versions[t], arrivals, trained, server.info))
        return dict(server.info.replies)

    if callable(clock):
        steps = clock(on_step)
    else:
        steps = clock
        for step in steps:
            on_step(step.step, step.arrivals)
    return Simulation(versions, records, [step.time for step in steps])


def step_record(
    x: Array, arrivals: Sequence[Arrival], trained: Sequence[tuple[Update, float]], info: StepInfo
) -> StepRecord:
    """The record of a step that acted on x; `trained` has the update and the local loss of each arrival."""
    updates = tuple(update for update, _ in trained)
    return StepRecord(
        arrivals=tuple(arrivals),
        updates=updates,
        losses=tuple(loss for _, loss in trained),
        norms=tuple(float(np.linalg.norm(update.delta)) for update in updates),
        drifts=tuple(float(np.linalg.norm(x - update.x_start)) for update in updates),
        info=info,
    )


def train_arrival(
    arrival: Arrival,
    versions: Sequence[Array],
    training: LocalTraining | Callable[[Arrival], LocalTraining],
    clients: Sequence[Quadratic],
    batches: Batches | None,
) -> tuple[Update, float]:
    """The update and the mean local loss of the run; no local steps make a zero update without a loss (NaN)."""
    training = training if isinstance(training, LocalTraining) else training(arrival)
    return train_run(
        arrival,
        versions[arrival.trained_from],
        versions[arrival.start_version],
        training,
        clients[arrival.client],
        batches,
    )


def train_run(
    arrival: Arrival,
    x_train: Array,
    x_start: Array,
    training: LocalTraining,
    data: Quadratic,
    batches: Batches | None,
) -> tuple[Update, float]:
    """As `train_arrival`, for given parameters: trained from x_train, the update measured against x_start."""
    local_steps = training.steps if arrival.local_steps is None else arrival.local_steps
    model, loss = x_train, math.nan
    if local_steps > 0:
        result = train(
            x_train,
            data,
            training,
            local_steps=local_steps,
            run=arrival.run,
            batches=None if batches is None else batches(arrival.client, arrival.run, local_steps),
        )
        model, loss = result.model, result.loss
    update = Update(
        client=arrival.client,
        delta=model - x_start,
        x_start=x_start,
        staleness=arrival.staleness,
        num_samples=data.num_samples,
        local_steps=local_steps,
        multiplicity=arrival.multiplicity,
    )
    return update, loss
