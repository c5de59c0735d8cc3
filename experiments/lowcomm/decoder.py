"""A decoder on Shakespeare's plays: DiLoCo's family on workers of different speed, against time, bytes and joules."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np
import optax

import jaxafl as afl
from experiments.suite import Cell, Claim, Experiment, Measure, main
from experiments.suite.experiment import Array

# Local steps per second. DeepMind's notebook has these ratios of seconds per step, and so one slow worker
SPEEDS = 5.7 / np.array([1.0, 1.3, 2.6, 5.7, 1.3, 2.6])
REGIONS = np.array([0, 0, 1, 1, 0, 1])  # the global server stands in region 0
WORKERS = len(SPEEDS)
NEAR = 0.1  # seconds of a transfer of the model to or from the server within its region
FAR = {"slow links": 10.0, "fast links": 0.5}  # the same from and to region 1
WATTS, IDLE = 300.0, 60.0  # of a worker that computes, and of one that does not
PERPLEXITY, SENT, ENERGY = "perplexity per byte", "MB between regions", "kJ"
LATE = "Delayed Nesterov"
NAMES = {SENT: "megabytes_between_regions", ENERGY: "kilojoules"}
JOULE_PER_BYTE = 1e-6
TARGET = 12.0  # perplexity per byte


class Size(NamedTuple):
    """Sizes of a scale."""

    width: int
    layers: int
    length: int  # bytes of a window
    batch: int
    steps: int  # K, local steps of a run of the fastest worker
    seconds: float  # simulated seconds of a run


SIZES = {
    "smoke": Size(16, 1, 16, 2, 4, 60.0),
    "cpu": Size(64, 2, 64, 4, 20, 180.0),
    "paper": Size(256, 6, 256, 32, 50, 3_600.0),
}


@functools.lru_cache(None)
def data(length: int) -> afl.data.FederatedData:
    """Six plays as bytes, one for each worker."""
    return afl.data.shakespeare_plays(length=length)


@functools.lru_cache(None)
def model(size: Size) -> afl.models.Model:
    return afl.models.decoder(width=size.width, layers=size.layers, heads=4)


def worker(size: Size, muon: bool = False, dylu: bool = True) -> afl.Client:
    """AdamW or Muon, whose state lasts; with `dylu` slow workers make fewer local steps."""
    steps: Any = afl.presets.dylu_steps(size.steps, SPEEDS.tolist()) if dylu else size.steps
    how: dict[str, Any] = {"steps": steps, "batch_size": size.batch, "weight_decay": 0.1, "reset": "never"}
    if muon:
        return afl.Client(optax.contrib.muon, learning_rate=0.01, **how)
    return afl.Client(optax.adamw, learning_rate=3e-3, b2=0.95, **how)


def simulation(method: str, column: str, size: Size) -> afl.Simulation:
    """The simulation of a method."""
    compute = afl.clock.constant(1 / SPEEDS, per="step")
    far = np.where(REGIONS == 1, FAR[column], NEAR)
    times = compute + afl.clock.constant(2 * far)  # the model is downloaded, and the update uploaded
    clients = worker(size)
    if method in ("DiLoCo", "MuLoCo"):
        clients = worker(size, muon=method == "MuLoCo", dylu=False)
        parts = afl.presets.diloco(times)
    elif method == "HALoS":
        links = [NEAR, FAR[column]]
        inside = compute + afl.clock.constant(2 * NEAR)
        clock = afl.clock.tiers(regions=REGIONS.tolist(), durations=inside, up=links, down=links, after=8)
        parts = afl.presets.Preset(afl.server.halos(), clock)
    elif method == "asynchronous, plain":
        parts = afl.presets.async_diloco(WORKERS, times, momentum=0.0)
    else:
        parts = afl.presets.async_diloco(WORKERS, times, window=3.0 if "grace" in method else 0.0)
    return afl.Simulation(data(size.length), model(size), clients, *parts)


def cell(method: str, column: str, scale: str) -> Cell:
    """As many server steps as there are in the simulated seconds; times are constant, so all seeds have them."""
    size = SIZES[scale]
    made = simulation(method, column, size)
    most = int(4 * size.seconds * SPEEDS.sum() / size.steps) + 10
    schedule = made.schedule(most)
    steps = int((schedule.time <= size.seconds).sum())
    work = int(made.schedule(steps).of_arrivals("local_steps").sum())
    return Cell(lambda: made, steps, work, eval_every=max(1, steps // 20))


def with_costs(runs: Any) -> Any:
    """The runs with the megabytes between regions and the kilojoules until each evaluation, [seed, evaluation].

    The work of a run is counted when its update arrives. Workers of HALoS send within their regions, and regions send
    to each other.
    """
    order = ("seed", "step", "arrival")
    client = runs.client_id.transpose(*order).values
    arrived = client >= 0
    up = runs.bytes_up.transpose("seed", "step").values
    size = up.sum() / arrived.sum()  # bytes of an update
    work = np.where(arrived, runs.local_steps.transpose(*order).values / SPEEDS[client], 0.0).sum(axis=2)
    if "event" in runs:
        moves = runs.event.transpose("seed", "step").values >= 2
        between = size * (moves & (runs.region.transpose("seed", "step").values == 1))
    else:
        moves = np.zeros(up.shape, bool)
        between = 2 * size * (arrived & (REGIONS[client] == 1)).sum(axis=2)
    sent = up + runs.bytes_down.transpose("seed", "step").values + size * moves
    joules = (WATTS - IDLE) * work.cumsum(1) + IDLE * WORKERS * runs.time.transpose("seed", "step").values
    costs = {SENT: between.cumsum(1) / 1e6, ENERGY: (joules + JOULE_PER_BYTE * sent.cumsum(1)) / 1e3}
    steps = np.broadcast_to(runs.eval_step.values.astype(int), runs.perplexity.shape)
    dims = runs.perplexity.dims
    return runs.assign(
        {
            NAMES[name]: (dims, np.take_along_axis(np.pad(cost, ((0, 0), (1, 0))), steps, 1))
            for name, cost in costs.items()
        }
    )


def reached(along: str, unit: str, digits: int) -> Measure:
    """The cost at which a run first has the perplexity `TARGET`; infinite if it never has."""

    def of(runs: Any) -> Array:
        values = runs.perplexity.values
        found = values <= TARGET
        where = np.broadcast_to(runs[along].values, values.shape)
        first = np.take_along_axis(where, found.argmax(-1)[..., None], -1)[..., 0]
        return np.where(found.any(-1), first, np.inf)

    return Measure(of, unit, digits)


def last(runs: Any) -> Array:
    """The perplexity per byte of the last model."""
    return runs.perplexity.values[..., -1]


def lower(text: str, one: str, other: str, column: str) -> Claim:
    """Returns the claim that one method ends with a lower perplexity than another."""
    return Claim(f"{column}: {text}", lambda values: values(other, column) - values(one, column))


METHODS = ["DiLoCo", "MuLoCo", "asynchronous, plain", LATE, f"{LATE}, grace", "HALoS"]
EXPERIMENT = Experiment(
    title="Low-communication training: a decoder on Shakespeare, workers of different speed in two regions",
    family="lowcomm_decoder",
    cell=cell,
    methods=METHODS,
    columns=list(FAR),
    measures={
        PERPLEXITY: Measure(last, "", 3),
        f"seconds until {TARGET:g}": reached("eval_time", " s", 0),
        f"MB between regions until {TARGET:g}": reached(NAMES[SENT], " MB", 1),
        f"kJ until {TARGET:g}": reached(NAMES[ENERGY], " kJ", 0),
    },
    scales={
        "smoke": "width 16, one layer, a minute",
        "cpu": "width 64, two layers, windows of 64 bytes, 180 simulated seconds, six seeds",
        "paper": "no paper, but larger: width 256, six layers, windows of 256 bytes, an hour",
    },
    claims=[
        claim
        for column in FAR
        for claim in (
            lower("plain asynchronous steps end better than DiLoCo's rounds", "asynchronous, plain", "DiLoCo", column),
            lower("Delayed Nesterov ends better than plain steps", LATE, "asynchronous, plain", column),
            lower("a grace window ends better than none", f"{LATE}, grace", LATE, column),
            lower("HALoS ends better than Delayed Nesterov", "HALoS", LATE, column),
            lower("MuLoCo ends better than DiLoCo", "MuLoCo", "DiLoCo", column),
        )
    ],
    seeds=6,
    curve=("loss", "eval_time"),
    derived=with_costs,
    note=(
        "Nothing here was published at this size. Six workers have a play each and make 5.7, 4.4, 2.2, 1, 4.4 and 2.2 "
        "local steps per second; the three fastest are in region 0 with the global server. A "
        "transfer of the model to or from region 1 takes 10 s (slow links) or 0.5 s, within a region 0.1 s. All "
        "methods have the same simulated time. Without rounds slow workers make fewer local steps (DyLU). Rates are "
        "published ones, and were not tuned: η = 0.7, β = 0.9 (DiLoCo, Delayed Nesterov), HALoS's own with K_s = 8; "
        "AdamW 0.003, Muon 0.01. A worker takes 300 W at work and 60 W idle, and a byte 1 µJ; the work of a run is "
        "counted at its arrival."
    ),
)


def against(cost: str) -> Experiment:
    """Returns the experiment of the same runs whose figure shows the loss against a cost, `SENT` or `ENERGY`."""
    shown = {name: one for name, one in EXPERIMENT.measures.items() if name == PERPLEXITY or name.startswith(cost)}
    title = f"Low-communication training: the decoder against {cost}"
    return dataclasses.replace(EXPERIMENT, title=title, measures=shown, claims=(), curve=("loss", NAMES[cost]))


if __name__ == "__main__":
    main(EXPERIMENT)
