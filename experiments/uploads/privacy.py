"""Accuracy against ε: noise at the server or at the clients, on an asynchronous clock and in rounds."""

from __future__ import annotations

import functools
import json
import math
from typing import Any

import numpy as np

import jaxafl as afl
from experiments.suite import Cell, Claim, Experiment, Measure, last, main
from experiments.suite.experiment import Array
from experiments.uploads import setting
from experiments.uploads.setting import above

DELTA, MAX_NORM = 1e-5, 0.3
ASYNCHRONOUS, ROUNDS, LOCAL = "FedBuff, noise at the server", "rounds, noise at the server", "FedBuff, noise at clients"
COLUMNS = {"ε = 2": 2.0, "ε = 4": 4.0, "ε = 8": 8.0, "ε = 16": 16.0, "no noise": math.inf}
ACCURACY, NOISE, TIME = "accuracy, last 5 evaluations", "noise multiplier z", "simulated seconds"
SIZES = {"smoke": (20, 5, 4), "cpu": (1000, 100, 40), "paper": (1000, 100, 100)}  # clients, arrivals, server steps


def simulation(method: str, scale: str, z: float) -> afl.Simulation:
    """Returns a simulation with the noise multiplier z; all methods clip every update to the same norm."""
    clients, arrivals, _ = SIZES[scale]
    local = setting.client()
    aggregate: afl.aggregate.Aggregate | None = afl.aggregate.private_mean(MAX_NORM, z)
    if method == LOCAL:
        noise = (afl.upload.add_noise(z * MAX_NORM),) if z else ()
        local = setting.client(afl.upload.chain(afl.upload.clip_by_global_norm(MAX_NORM), *noise))
        aggregate = None
    server = afl.server.fedbuff(learning_rate=1.0, weights="uniform", aggregate=aggregate)
    clock = afl.clock.free_running(concurrency=3 * arrivals, buffer=arrivals, durations=setting.TIMES)
    if method == ROUNDS:
        clock = afl.clock.synchronous(cohort=arrivals, durations=setting.TIMES)
    return afl.Simulation(setting.data(scale, clients), afl.models.logistic(10), local, server, clock)


@functools.lru_cache(None)
def exposure(epsilon: float) -> float:
    """The sensitivity over the noise, μ, of a Gaussian mechanism with this ε at δ = 10⁻⁵."""
    once = afl.clock.schedule(afl.clock.synchronous(), num_clients=1, local_steps=1, server_steps=1)
    low, high = 1e-3, 1e3
    for _ in range(40):
        middle = math.sqrt(low * high)
        exceeds = once.privacy(1 / middle, delta=DELTA).max_epsilon[-1].item() > epsilon
        low, high = (low, middle) if exceeds else (middle, high)
    return low


@functools.lru_cache(None)
def largest_exposure(method: str, scale: str) -> float:
    """μ of the client that participates most in any of ten seeds, if z = 1."""
    one = simulation(method, scale, 1.0)
    found = (one.schedule(SIZES[scale][2], seed).privacy(delta=DELTA) for seed in range(setting.SEEDS))
    return max(float(each.sensitivity.max()) for each in found)


def noise_of(method: str, column: str, scale: str) -> float:
    """The noise multiplier z with which no client exceeds the column's ε; 0 without noise."""
    epsilon = COLUMNS[column]
    return largest_exposure(method, scale) / exposure(epsilon) if math.isfinite(epsilon) else 0.0


def cell(method: str, column: str, scale: str) -> Cell:
    _, arrivals, steps = SIZES[scale]

    def make() -> afl.Simulation:
        return simulation(method, scale, noise_of(method, column, scale))

    return Cell(make, steps, steps * arrivals * setting.LOCAL_STEPS, eval_every=max(1, steps // 20))


def multiplier(runs: Any) -> Array:
    """The noise multiplier z that the results name, once per seed; NaN without noise."""
    found = json.loads(runs.attrs["mechanism"])["noise_multiplier"] if "mechanism" in runs.attrs else None
    return np.full(runs.sizes["seed"], np.nan if found is None else found)


PRIVATE = [name for name, epsilon in COLUMNS.items() if math.isfinite(epsilon)]
EXPERIMENT = Experiment(
    title="Uploads, privacy: accuracy against ε, Fashion-MNIST on 1,000 clients",
    family="uploads_privacy",
    cell=cell,
    methods=[ASYNCHRONOUS, ROUNDS, LOCAL],
    columns=list(COLUMNS),
    measures={
        ACCURACY: last(),
        NOISE: Measure(multiplier),
        TIME: Measure(lambda runs: runs.final_time.values, " s", 0),
    },
    scales=setting.scales("40 server steps", "100 server steps"),
    against=("ε at δ = 10⁻⁵", {name: ("all methods", COLUMNS[name]) for name in PRIVATE}),
    claims=[
        *(
            above(f"{name}: noise at the server costs less than at clients", (ASYNCHRONOUS, name), (LOCAL, name))
            for name in PRIVATE
        ),
        *(
            above(f"{name}: rounds are more accurate than FedBuff", (ROUNDS, name), (ASYNCHRONOUS, name))
            for name in COLUMNS
        ),
        Claim(
            "FedBuff takes less time than rounds for as many updates",
            lambda v: v(ROUNDS, "no noise", TIME) - v(ASYNCHRONOUS, "no noise", TIME),
            " s",
        ),
    ],
    seeds=setting.SEEDS,
    few=3,
    note=setting.DATA_NOTE
    + (
        "Here there are 1,000 clients with 60 samples each, logistic regression, a clipping norm of 0.3, 300 clients "
        "in flight, and 100 updates per server step. The noise multiplier is the smallest with which no client "
        "exceeds ε at δ = 10⁻⁵ in any of the seeds 0 .. 9: the client that participates most sets it for all."
    ),
)

if __name__ == "__main__":
    main(EXPERIMENT)
