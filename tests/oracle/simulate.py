"""Whole runs, one client at a time: the clock's arrivals, local training, server steps, and every version kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .client import EpochTraining, LocalTraining, Quadratic, train, train_epochs
from .clock import Arrival, OnStep, ServerStep
from .server import AFL, SAFA, Array, DelayedNesterov, QuAFL, Server, StepInfo, Update

Clock = Sequence[ServerStep] | Callable[[OnStep], Sequence[ServerStep]]
Batches = Callable[[int, int, int], Sequence[Sequence[int]]]
"""`batches(client, run, local_steps)`: the sample indices of each local step."""
EpochBatches = Callable[[int, int], Sequence[Sequence[Sequence[int]]]]
"""`batches(client, run)`: the sample indices of each step of each epoch."""
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


def updated(arrival: Arrival, delta: Array, x_start: Array, data: Quadratic, local_steps: int) -> Update:
    return Update(
        client=arrival.client,
        delta=delta,
        x_start=x_start,
        staleness=arrival.staleness,
        num_samples=data.num_samples,
        local_steps=local_steps,
        multiplicity=arrival.multiplicity,
    )


def train_run(
    arrival: Arrival, x_train: Array, x_start: Array, training: LocalTraining, data: Quadratic, batches: Batches | None
) -> Trained:
    """Trains from x_train, and measures the update against x_start; without local steps it is zero and has no loss."""
    local_steps = training.steps if arrival.local_steps is None else arrival.local_steps
    if local_steps == 0:
        return updated(arrival, x_train - x_start, x_start, data, 0), math.nan
    given = None if batches is None else batches(arrival.client, arrival.run, local_steps)
    result = train(x_train, data, training, local_steps=local_steps, run=arrival.run, batches=given)
    return updated(arrival, result.model - x_start, x_start, data, local_steps), result.loss


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

    Where the server decides the numbers of local steps, the clock is a function `lambda on_step: free_running(...)`.
    """
    versions = [np.array(x0, float)]
    records: list[StepRecord] = []

    def on_step(t: int, arrivals: tuple[Arrival, ...]) -> dict[int, int]:
        trained = []
        for one in arrivals:
            how = training if isinstance(training, LocalTraining) else training(one)
            starts = versions[one.trained_from], versions[one.start_version]
            trained.append(train_run(one, *starts, how, clients[one.client], batches))
        versions.append(server.step(versions[t], [update for update, _ in trained]))
        records.append(step_record(arrivals, trained, server.info))
        return dict(server.info.replies)

    if callable(clock):
        steps = clock(on_step)
    else:
        steps = clock
        for step in steps:
            on_step(step.step, step.arrivals)
    return Simulation(versions, records, [step.time for step in steps])


def simulate_quafl(
    steps: Sequence[ServerStep],
    training: LocalTraining,
    server: QuAFL,
    x0: Array,
    clients: Sequence[Quadratic],
    *,
    scale_rate: bool = False,
) -> Simulation:
    """Each contacted client makes its local steps from its OWN model; `scale_rate`: at (s + 1) / s times the rate."""
    versions = [np.array(x0, float)]
    records: list[StepRecord] = []
    for step in steps:
        factor = (len(step.arrivals) + 1) / len(step.arrivals) if scale_rate else 1.0
        scaled = replace(training, learning_rate=training.learning_rate * factor)
        trained = []
        for arrival in step.arrivals:
            own = server.models[arrival.client].copy()
            trained.append(train_run(arrival, own, own, scaled, clients[arrival.client], None))
        versions.append(server.step(versions[step.step], [update for update, _ in trained]))
        records.append(step_record(step.arrivals, trained, server.info))
    return Simulation(versions, records, [step.time for step in steps])


def simulate_safa(
    steps: Sequence[ServerStep], training: LocalTraining, server: SAFA, x0: Array, clients: Sequence[Quadratic]
) -> Simulation:
    """SAFA's rounds, whose server tells picked, undrafted and deprecated clients apart."""
    versions = [np.array(x0, float)]
    records: list[StepRecord] = []
    for step in steps:
        deprecated = [arrival.client for arrival in step.arrivals if arrival.kind == "deprecated"]
        arrivals = [arrival for arrival in step.arrivals if arrival.kind != "deprecated"]
        trained, by_kind = [], {"picked": list[Update](), "undrafted": list[Update]()}
        for one in arrivals:
            starts = versions[one.trained_from], versions[one.start_version]
            trained.append(train_run(one, *starts, training, clients[one.client], None))
            by_kind[one.kind].append(trained[-1][0])
        x = versions[step.step]
        versions.append(server.step(x, by_kind["picked"], by_kind["undrafted"], deprecated))
        records.append(step_record(arrivals, trained, server.info))
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
    """Rounds of AFL with delay-aware epochs, until ‖x_{t+1} - x_t‖ <= tolerance or the recorded rounds end.

    d is the "staleness" of a run or its "seconds". With broadcast=False each client goes on from its own last model
    (x_0 at first), with staleness 0 and d = 2; a client drawn twice goes on from the model of its earlier run.
    """
    versions = [np.array(x0, float)]
    own = [versions[0]] * len(clients)
    records: list[StepRecord] = []
    for step in steps:
        trained: dict[int, Trained] = {}
        for one in sorted(step.arrivals, key=lambda arrival: arrival.dispatch):
            x_start = versions[one.trained_from] if broadcast else own[one.client]
            d = float(one.staleness) if delay == "staleness" else one.arrival_time - one.start_time
            given = None if batches is None else batches(one.client, one.run)
            result = train_epochs(x_start, clients[one.client], training, delay=d if broadcast else 2.0, batches=given)
            update = updated(one, result.delta, x_start, clients[one.client], result.local_steps)
            trained[one.dispatch] = update if broadcast else replace(update, staleness=0), result.loss
            own[one.client] = update.model
        x = versions[step.step]
        in_order = [trained[arrival.dispatch] for arrival in step.arrivals]
        versions.append(server.step(x, [update for update, _ in in_order]))
        records.append(step_record(step.arrivals, in_order, server.info))
        if tolerance is not None and np.linalg.norm(versions[-1] - x) <= tolerance:
            break
    return Simulation(versions, records, [step.time for step in steps[: len(records)]])
