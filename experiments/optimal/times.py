"""Simulated seconds until a quadratic is solved to ε against the number of workers, beside the predicted times."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import jaxafl as afl
from experiments.optimal import setting
from experiments.optimal.setting import EFFORT, RATIO, of_cell, seconds
from experiments.suite import Cell, Claim, Experiment, Measure, Values, main, sooner
from experiments.suite.experiment import Array
from jaxafl.theory import optimal_times

MOST_PLACES = {"smoke": 1e6, "cpu": 1e6, "paper": 2e7}  # of arrivals, padding too, in a run; others are left out
SIZES = (10, 100, 1000, 6174)
DRAWN = np.arange(1.0, SIZES[-1] + 1)
DRAWN += np.abs(np.random.default_rng(0).normal(scale=np.sqrt(DRAWN)))
LAWS = {"τ about i": DRAWN, "τ = √i": np.sqrt(np.arange(1.0, SIZES[-1] + 1))}
COLUMNS = {f"{law}, n = {size:,}": (law, size) for law in LAWS for size in SIZES}
SECONDS, PREDICTED, SHARE = "seconds to ε", "predicted, an order", "seconds / lower bound"
CONSTANTS = optimal_times.Effort(EFFORT, EFFORT * RATIO)


class Method(NamedTuple):
    """A method for given times τ [n].

    Attributes:
        server, clock: of its simulation.
        server_steps: after which its theorem has reached ε.
        gradients: about how many server steps take.
        predicted: seconds, an order.
    """

    server: afl.server.Server
    clock: afl.clock.Clock
    server_steps: int
    gradients: float
    predicted: float


def _batch(size: float) -> tuple[float, int]:
    """Rate and server steps of SGD with batches: γ = min(1, εB/(2σ²))/L and K = 4Δ/(γε)."""
    rate = min(1.0, size / (2 * RATIO))
    return rate, math.ceil(4 * EFFORT / rate)


def _single(bound: int) -> tuple[float, int]:
    """Rate and server steps of Ringmaster's theorem with the bound R: min{1/(2R), ε/(4σ²)}/L, 4RLΔ/ε + 8σ²LΔ/ε²."""
    return min(1 / (2 * bound), 1 / (4 * RATIO)), 4 * bound * EFFORT + 8 * RATIO * EFFORT


def ringmaster(times: Array) -> Method:
    """R = σ²/ε, with stops."""
    rate, steps = _single(RATIO)
    made = afl.presets.ringmaster(
        len(times), afl.clock.constant(times), max_staleness=RATIO, learning_rate=rate, stop=True
    )
    return Method(*made, steps, steps, optimal_times.homogeneous(times, CONSTANTS).seconds)


def rennala(times: Array) -> Method:
    """B = σ²/ε, with stops."""
    rate, steps = _batch(RATIO)
    made = afl.presets.rennala(len(times), afl.clock.constant(times), batch=RATIO, learning_rate=rate)
    return Method(*made, steps, steps * RATIO, optimal_times.homogeneous(times, CONSTANTS).seconds)


def malenia(times: Array) -> Method:
    """S = σ²/ε."""
    rate, steps = _batch(max(RATIO, len(times)))
    received = np.floor(optimal_times.malenia_round(times, RATIO).seconds / times * (1 + 1e-9)).sum()
    clock = afl.clock.harmonic(durations=afl.clock.constant(times), batch=float(RATIO))
    return Method(
        afl.server.malenia(rate), clock, steps, steps * received, optimal_times.heterogeneous(times, CONSTANTS)
    )


def ringleader(times: Array) -> Method:
    """η = min{1/(8n), εB/(10σ²)}/L with the B that the clock guarantees, and K = 2Δ/(ηε)."""
    n, least = len(times), times.max() / (2 * times.mean())
    rate = min(1 / (8 * n), least / (10 * RATIO))
    steps = math.ceil(2 * EFFORT / rate)
    round_of_all = np.ceil(2 * times.max() / times).sum()
    clock = afl.clock.ringleader(durations=afl.clock.constant(times))
    predicted = optimal_times.heterogeneous(times, CONSTANTS)
    return Method(afl.server.ringleader(rate), clock, steps, steps / n * round_of_all, predicted)


def asynchronous(server: Callable[[float], afl.server.Server]) -> Callable[[Array], Method]:
    """All workers, none refused: the rate of Ringmaster's theorem with R = n."""

    def of(times: Array) -> Method:
        rate, steps = _single(len(times))
        clock = afl.clock.free_running(concurrency=len(times), durations=afl.clock.constant(times))
        return Method(server(rate), clock, steps, steps, optimal_times.asynchronous_sgd(times, CONSTANTS))

    return of


def minibatch(times: Array) -> Method:
    """A gradient of each worker per server step."""
    rate, steps = _batch(len(times))
    clock = afl.clock.synchronous(cohort=len(times), durations=afl.clock.constant(times))
    server = afl.server.fedbuff(rate, staleness="none")
    return Method(server, clock, steps, steps * len(times), optimal_times.minibatch_sgd(times, CONSTANTS))


METHODS: dict[str, Callable[[Array], Method]] = {
    "Ringmaster": ringmaster,
    "Rennala": rennala,
    "Malenia": malenia,
    "Ringleader": ringleader,
    "delay-adaptive SGD": asynchronous(afl.server.delay_adaptive),
    "asynchronous SGD": asynchronous(afl.server.asysg),
    "minibatch SGD": minibatch,
}


def times_of(column: str) -> Array:
    """τ_1 ... τ_n of a column; the workers of a smaller n are the first ones of a larger n."""
    law, size = COLUMNS[column]
    return LAWS[law][:size]


def cell(method: str, column: str, scale: str) -> Cell | None:
    """As many server steps as the method's theorem needs; `None` if they have too many places for arrivals."""
    times = times_of(column)
    one = METHODS[method](times)
    if one.server_steps * (one.clock.arrivals(len(times)) or len(times)) > MOST_PLACES[scale]:
        return None
    steps = min(one.server_steps, 20) if scale == "smoke" else one.server_steps
    known = {"predicted": one.predicted, "bound": optimal_times.homogeneous(times, CONSTANTS).seconds}
    return setting.cell_of(scale, len(times), one.server, one.clock, steps, one.gradients / one.server_steps, known)


FAST, SLOW = ("Ringmaster", "Rennala"), ("delay-adaptive SGD", "asynchronous SGD", "minibatch SGD")


def near(values: Values, method: str, law: str) -> Array:
    """How far the growth of the time from the smallest to the largest n, over the predicted one, is inside ½ ... 2."""
    small, large = (f"{law}, n = {size:,}" for size in (SIZES[0], SIZES[-1]))
    grown, predicted = (values(method, large, name) / values(method, small, name) for name in (SECONDS, PREDICTED))
    return np.minimum(2 - grown / predicted, grown / predicted - 0.5)


def claims(law: str) -> list[Claim]:
    """Which methods are sooner with the most workers, how times grow with their number, and a theorem's bound."""
    few, many = f"{law}, n = {SIZES[1]}", f"{law}, n = {SIZES[-1]:,}"
    limits = {
        column: optimal_times.ringmaster(times_of(column), CONSTANTS).seconds
        for column in COLUMNS
        if COLUMNS[column][0] == law
    }
    return [
        *(
            Claim(
                f"{many}: {one} is sooner than {', '.join(SLOW)}",
                lambda v, m=one: np.min([sooner(v(m, many), v(other, many)) for other in SLOW], axis=0),
            )
            for one in FAST
        ),
        *(
            Claim(
                f"{law}: the time of {one} does not grow from n = {SIZES[1]} to {SIZES[-1]:,}, within 5 %",
                lambda v, m=one: 1.05 * v(m, few) - v(m, many),
            )
            for one in FAST
        ),
        *(
            Claim(
                f"{law}: from n = {SIZES[0]} to {SIZES[-1]:,} {one} slows down as predicted, within a factor of 2",
                lambda v, m=one: near(v, m, law),
            )
            for one in SLOW
        ),
        Claim(
            f"{law}: Ringmaster takes at most the seconds of its theorem, for all n",
            lambda v: np.fmin.reduce([limit - v("Ringmaster", column) for column, limit in limits.items()]),
        ),
    ]


EXPERIMENT = Experiment(
    title="Optimal times: simulated seconds until a quadratic is solved to ε, and the predicted ones",
    family="optimal_times",
    cell=cell,
    methods=list(METHODS),
    columns=list(COLUMNS),
    measures={
        SECONDS: Measure(seconds, digits=1),
        PREDICTED: of_cell("predicted"),
        SHARE: Measure(lambda runs: seconds(runs) / runs.attrs["bound"]),
    },
    scales={
        "smoke": "dimension 10, 20 server steps",
        "cpu": "dimension 100; no Ringleader from n = 100 on; no Malenia for τ about i, n = 6,174",
        "paper": "dimension 1,729, as published; no Ringleader from n = 1,000 on",
    },
    claims=[claim for law in LAWS for claim in claims(law)],
    seeds=5,
    few=3,
    against=("workers n", {column: (law, size) for column, (law, size) in COLUMNS.items()}),
    predicted={SECONDS: PREDICTED},
    note=(
        f"{setting.NOTE}'τ about i' is i + |N(0, i)|, drawn once; only the noise differs between seeds. No rate is "
        "tuned. "
        "Ringmaster: R = σ²/ε and η = min{1/(2RL), ε/(4Lσ²)}, as published; delay-adaptive and asynchronous SGD: the "
        "same with R = n. Rennala (B = σ²/ε), Malenia (S = σ²/ε, and B is at least n) and minibatch SGD (B = n): η = "
        "min{1/L, εB/(2Lσ²)}. Ringleader: η = min{1/(8nL), εB/(10Lσ²)} with the B that its clock guarantees. "
        "Predictions (dashed) are orders without constants, so compare slopes. That of Ringmaster and Rennala is the "
        "lower bound. Malenia and Ringleader also work if every worker has another f, so they wait for the slowest. "
        "Their prediction is the lower bound of that problem."
    ),
)

if __name__ == "__main__":
    main(EXPERIMENT)
