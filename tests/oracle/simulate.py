"""Whole runs, one client at a time: the clock's arrivals, local training, server steps, and every version kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .client import EpochTraining, LocalTraining, Quadratic, train, train_epochs
from .clock import Arrival, OnStep, ServerStep
from .server import Array, DelayedNesterov, QuAFL, Server, StepInfo, Update

Clock = Sequence[ServerStep] | Callable[[OnStep], Sequence[ServerStep]]
Training = LocalTraining | EpochTraining
Batches = Callable[..., Any]
"""`batches(client, run, local_steps)`: the sample indices of each local step; of epochs `batches(client, run)`: those
of each step of each epoch."""
Trained = tuple[Update, float]


@dataclass(frozen=True)
class StepRecord:
    """Arrivals of a server step, their updates and mean losses (NaN without a step), ‖Δ_i‖, and the diagnostics."""

    arrivals: tuple[Arrival, ...]
    updates: tuple[Update, ...]
    losses: tuple[float, ...]
    norms: tuple[float, ...]
    info: StepInfo


@dataclass(frozen=True)
class Simulation:
    """x_0 .. x_T, a record for each server step, and its seconds."""

    versions: list[Array]
    records: list[StepRecord]
    times: list[float]


def step_record(arrivals: Sequence[Arrival], trained: Sequence[Trained], info: StepInfo) -> StepRecord:
    updates = tuple(update for update, _ in trained)
    norms = tuple(float(np.linalg.norm(update.delta)) for update in updates)
    return StepRecord(tuple(arrivals), updates, tuple(loss for _, loss in trained), norms, info)


def train_run(
    arrival: Arrival, x_train: Array, x_start: Array, training: Training, data: Quadratic, batches: Batches | None
) -> Trained:
    """Trains from x_train, and measures the update against x_start; without local steps it is zero and has no loss."""
    if isinstance(training, EpochTraining):
        given = None if batches is None else batches(arrival.client, arrival.run)
        result = train_epochs(x_train, data, training, delay=arrival.staleness, batches=given)
    else:
        local_steps = training.steps if arrival.local_steps is None else arrival.local_steps
        given = None if batches is None else batches(arrival.client, arrival.run, local_steps)
        result = train(x_train, data, training, local_steps=local_steps, run=arrival.run, batches=given)
    update = Update(
        client=arrival.client,
        delta=result.model - x_start,
        x_start=x_start,
        staleness=arrival.staleness,
        num_samples=data.num_samples,
        local_steps=result.local_steps,
        multiplicity=arrival.multiplicity,
        kind=arrival.kind,
    )
    return update, result.loss


def simulate(
    clock: Clock,
    training: Training | Callable[[Arrival], Training],
    server: Server,
    x0: Array,
    clients: Sequence[Quadratic],
    *,
    batches: Batches | None = None,
) -> Simulation:
    """Trains each run when it arrives, from the version it started from, and takes the server steps in order.

    A client of QuAFL trains from its OWN model. SAFA's server is told whose runs are abandoned, which are in no record.
    Where the server decides the numbers of local steps, the clock is a function `lambda on_step: free_running(...)`.
    """
    versions = [np.array(x0, float)]
    records: list[StepRecord] = []

    def on_step(t: int, arrivals: tuple[Arrival, ...]) -> dict[int, int]:
        runs = [one for one in arrivals if one.kind != "deprecated"]
        told = [Update(one.client, 0 * versions[t], versions[t], kind=one.kind) for one in arrivals if one not in runs]
        trained = []
        for one in runs:
            how = training(one) if callable(training) else training
            starts = versions[one.trained_from], versions[one.start_version]
            if isinstance(server, QuAFL):
                starts = (server.models[one.client].copy(),) * 2
            trained.append(train_run(one, *starts, how, clients[one.client], batches))
        versions.append(server.step(versions[t], [*told, *(update for update, _ in trained)]))
        records.append(step_record(runs, trained, server.info))
        return dict(server.info.replies)

    if callable(clock):
        steps = clock(on_step)
    else:
        steps = clock
        for step in steps:
            on_step(step.step, step.arrivals)
    return Simulation(versions, records, [step.time for step in steps])


def simulate_halos(
    steps: Sequence[ServerStep],
    regions: Sequence[int],
    after: int,
    alpha: float,
    training: LocalTraining,
    regional: Sequence[DelayedNesterov],
    world: DelayedNesterov,
    x0: Array,
    clients: Sequence[Quadratic],
) -> Simulation:
    """HALoS counts by itself when a region sends; a step without a run is a transfer, up and down in turn.

    `regions` has the region of every step.
    """
    versions, records = [np.array(x0, float)], list[StepRecord]()
    models = [versions[0]] * len(clients)
    y, r, sent = ([versions[0]] * len(regional) for _ in range(3))
    arrived, merged, rises = [0] * len(regional), [0] * len(regional), [False] * len(regional)
    for step, at in zip(steps, regions, strict=True):
        x, trained = versions[-1], list[Trained]()
        if step.arrivals:
            (one,) = step.arrivals
            own = models[one.client]
            trained = [train_run(one, own, own, training, clients[one.client], None)]
            y[at] = models[one.client] = regional[at].step(y[at], [trained[0][0]])
            arrived[at] += 1
            if arrived[at] == merged[at] + after:
                sent[at], rises[at] = y[at] - r[at], True
        elif rises[at]:
            x = sent[at] = world.step(x, [Update(0, sent[at], x)])
            rises[at] = False
        else:
            y[at] = r[at] = (1 - alpha) * y[at] + alpha * sent[at]
            merged[at] = arrived[at]
        versions.append(x)
        records.append(step_record(step.arrivals, trained, StepInfo()))
    return Simulation(versions, records, [step.time for step in steps])


def simulate_regional(
    steps: Sequence[ServerStep],
    clock: Any,
    shares: Callable[[Array], Array],
    training: LocalTraining,
    x0: Array,
    clients: Sequence[Quadratic],
) -> Simulation:
    """FedAT and HierFAVG count by themselves when a region sends, and when the global server steps.

    `shares` returns the weights of the regions' models from their numbers; `clock` has `regions`, `after` and `waits`.
    """
    versions, served, records = [np.array(x0, float)], [np.array(x0, float)], list[StepRecord]()
    count = max(clock.regions) + 1
    sent, times, rounds, waiting = np.tile(x0, (count, 1)), np.zeros(count), [0] * count, set[int]()
    for step in steps:
        trained = []
        for one in step.arrivals:
            start = served[one.trained_from]
            trained.append(train_run(one, start, start, training, clients[one.client], None))
        at, samples = clock.regions[step.arrivals[0].client], [update.num_samples for update, _ in trained]
        x, y = versions[-1], np.average([update.x_start + update.delta for update, _ in trained], 0, samples)
        rounds[at] += 1
        if rounds[at] % clock.after == 0:
            sent[at] = y
            times[at] += 1
            waiting.add(at)
            if not clock.waits or len(waiting) == count:
                waiting.clear()
                x = y = shares(times) @ sent
        versions.append(x)
        served.append(y)
        records.append(step_record(step.arrivals, trained, StepInfo()))
    return Simulation(versions, records, [step.time for step in steps])
