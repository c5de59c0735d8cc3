"""Generalized AsyncSGD: throughput, staleness, energy and time to ε against the number of tasks and their routes."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import xarray as xr

import jaxafl as afl
from experiments.optimal import setting
from experiments.optimal.setting import EFFORT, RATIO, of_cell, seconds
from experiments.suite import Cell, Claim, Experiment, Measure, Values, main
from experiments.suite.experiment import Array
from jaxafl.theory import queues

CLIENTS, SLOW = 20, 10  # clients 0 ... 9 are the slow ones
SPEED = np.repeat([1.0, 5.0], [SLOW, CLIENTS - SLOW])  # μ_i, tasks per second
POWER = np.repeat([1.0, 10.0], [SLOW, CLIENTS - SLOW])  # watts of a client at work
ROUTES = {"p uniform": SPEED**0, "p by root of speed": SPEED**0.5, "p by speed": SPEED}
PANEL = "20 clients, ten of them five times as fast"
TASKS = {f"m = {tasks}": tasks for tasks in (1, 2, 5, 10, 20, 50, 100, 200)}
LEAST = {"smoke": 100, "cpu": 100_000, "paper": 1_000_000}  # server steps
THROUGHPUT, SLOWEST = "server steps per second", "staleness of slow clients' tasks"
ENERGY, TIME, SPENT = "energy per server step", "seconds to ε", "energy to ε"


def known(tasks: int, p: Array) -> dict[str, float]:
    """Stationary means of the network by Buzen's recursion, a loop over clients and tasks."""
    network = queues.closed_network(p, SPEED, tasks)
    throughput = network.throughput.item()
    return {
        "throughput": throughput,
        "staleness": network.staleness.values[:SLOW].mean(),
        "energy": POWER @ network.busy.values / throughput,
    }


def rate_of(tasks: int, p: Array) -> tuple[float, float]:
    """Rate and server steps of Ringmaster's theorem with R = m, for weights w_i = 1/(N p_i) of the gradients.

    η = min{1/(2m max w), ε/(4σ² Σ p_i w_i²)}/L, and K = 4m max w LΔ/ε + 8σ² Σ p_i w_i² LΔ/ε².
    """
    weights = 1 / (CLIENTS * p)
    late, noise = tasks * weights.max(), RATIO * (p @ weights**2)
    return 1 / max(2 * late, 4 * noise), EFFORT * (4 * late + 8 * noise)


def cell(method: str, column: str, scale: str) -> Cell:
    """As many server steps as the theorem needs, and enough of them for means of the second half."""
    p, tasks = ROUTES[method] / ROUTES[method].sum(), TASKS[column]
    rate, needed = rate_of(tasks, p)
    steps = LEAST[scale] if scale == "smoke" else max(LEAST[scale], math.ceil(needed))
    clock = afl.clock.routed(tasks=tasks, durations=afl.clock.exponential(1 / SPEED), probabilities=p)
    return setting.cell_of(scale, CLIENTS, afl.server.routed_sgd(rate), clock, steps, 1, known(tasks, p))


def second_half(of: Callable[[xr.Dataset], Array]) -> Callable[[xr.Dataset], Array]:
    """A measure of the server steps after the first half."""
    return lambda runs: of(runs.isel(step=slice(runs.sizes["step"] // 2, None)))


def throughput(runs: xr.Dataset) -> Array:
    times = runs.time.transpose("seed", "step").values
    return (times.shape[1] - 1) / (times[:, -1] - times[:, 0])


def staleness(runs: xr.Dataset) -> Array:
    """Mean over the tasks of slow clients; NaN without any."""
    of_slow = runs.staleness.where(runs.client_id < SLOW)
    return of_slow.mean(("step", "arrival")).values


def joules(runs: xr.Dataset) -> xr.DataArray:
    """Power times working time of the task of each server step, [seed, step]."""
    power = xr.DataArray(POWER, dims="client")[runs.client_id.clip(0, CLIENTS - 1)]
    return (power * (runs.arrived_at - runs.started_at)).sum("arrival").transpose("seed", "step")


def spent(runs: xr.Dataset) -> Array:
    """Joules of the tasks that arrive before ε is reached."""
    before = runs.time.transpose("seed", "step").values <= seconds(runs)[:, None]
    return np.where(before.all(axis=1), np.inf, (joules(runs).values * before).sum(axis=1))


def close(values: Values, measure: str, within: float, most: int) -> Array:
    """A tolerance, less the largest error of a prediction, relative to it or to 1, over all routes and few tasks."""
    places = [(p, column) for p in ROUTES for column, tasks in TASKS.items() if tasks <= most]
    pairs = [(values(*place, measure), values(*place, PREDICTED[measure])) for place in places]
    return within - np.max([np.abs(found - theory) / np.maximum(theory, 1) for found, theory in pairs], axis=0)


MEASURES = {
    TIME: Measure(seconds, " s", 1),
    THROUGHPUT: Measure(second_half(throughput)),
    SLOWEST: Measure(second_half(staleness)),
    ENERGY: Measure(second_half(lambda runs: joules(runs).mean("step").values), " J"),
    SPENT: Measure(spent, " J", 0),
}
PREDICTED = {name: f"{name}, predicted" for name in (THROUGHPUT, SLOWEST, ENERGY)}
EXPERIMENT = Experiment(
    title="Generalized AsyncSGD: the number of tasks and their routes, simulated and by the theory of queues",
    family="routing_network",
    cell=cell,
    methods=list(ROUTES),
    columns=list(TASKS),
    measures=MEASURES
    | {
        PREDICTED[name]: of_cell(key)._replace(unit=MEASURES[name].unit, digits=2)
        for name, key in zip(PREDICTED, ("throughput", "staleness", "energy"), strict=True)
    },
    scales={
        "smoke": "dimension 10, 100 server steps",
        "cpu": "dimension 100, at least 100,000 server steps",
        "paper": "no paper, but larger: dimension 1,729, at least 1,000,000 server steps",
    },
    claims=[
        Claim("throughput is within 5 % of Buzen's, for all p and m", lambda v: close(v, THROUGHPUT, 0.05, 200)),
        Claim(
            "the staleness of slow clients is within 10 % of theory's, for m <= 50",
            lambda v: close(v, SLOWEST, 0.1, 50),
        ),
        Claim(
            "energy per server step is within 5 % of theory's, for all p and m", lambda v: close(v, ENERGY, 0.05, 200)
        ),
        *(
            Claim(
                f"{p}: m = 20 is sooner than m = 1 and m = 200",
                lambda v, p=p: np.minimum(v(p, "m = 1"), v(p, "m = 200")) - v(p, "m = 20"),
                " s",
            )
            for p in ROUTES
        ),
        Claim(
            "m = 20: p by speed is sooner than p uniform",
            lambda v: v("p uniform", "m = 20") - v("p by speed", "m = 20"),
            " s",
        ),
        Claim(
            "m = 20: p by speed spends less energy until ε than p uniform",
            lambda v: v("p uniform", "m = 20", SPENT) - v("p by speed", "m = 20", SPENT),
            " J",
        ),
    ],
    seeds=5,
    few=3,
    against=("tasks m", {column: (PANEL, tasks) for column, tasks in TASKS.items()}),
    shown=list(MEASURES),
    predicted=PREDICTED,
    note=(
        f"{setting.NOTE}Ten clients work off a task per second in the mean, ten work off five; times are exponential. "
        "p by speed is p ∝ μ. At work a slow client takes 1 W and a fast one 10 W, and idle ones nothing. Nothing here "
        "was published. Throughput, staleness and energy per step are means of the second half of each run, and "
        "predicted (dashed) by Buzen's recursion and the arrival theorem, which need no simulation. No rate is tuned: "
        "η is that of Ringmaster's theorem with R = m for gradients of weight w_i = 1/(N p_i), min{1/(2mL max w), "
        "ε/(4Lσ² Σ p_i w_i²)}. The mean staleness is m - 1. So few tasks leave clients idle, and many need a small "
        "rate. Long queues change slowly, so with m = 200 the mean staleness of one run is uncertain."
    ),
)

if __name__ == "__main__":
    main(EXPERIMENT)
