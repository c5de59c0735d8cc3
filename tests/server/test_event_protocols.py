"""Servers on clocks that refuse, stop, count or restart runs, against their formulas along the schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
import pytest

import jaxafl as afl
from jaxafl import clock, presets, server
from jaxafl.clock import Schedule
from tests.problems import START, descent, observe_w, quadratic
from tests.server.test_by_hand import centred
from tests.variants import slow_but

GRADIENT = afl.Client(optax.sgd, learning_rate=1.0, steps=1, batch_size=None)
CLIENTS, STEPS, ETA = 6, 40, 0.3
DURATIONS = clock.uniform(0.5, 4.0, per="client") * clock.uniform(0.8, 1.2)
Step = Callable[[np.ndarray, list[int], list[np.ndarray], list[int]], np.ndarray]
"""(x, clients, deltas, kinds) -> next x."""


def along(schedule: Schedule, step: Step) -> np.ndarray:
    """x_0 .. x_T, by one formula per server step."""
    xs = [np.asarray(START)]
    for t in range(schedule.server_steps):
        here = np.flatnonzero(schedule.mask[t])
        clients = schedule.client[t][here].tolist()
        deltas = [
            -quadratic().clients[c].gradient(xs[s]) for c, s in zip(clients, schedule.version[t][here], strict=True)
        ]
        xs.append(step(xs[-1], clients, deltas, schedule.kind[t][here].tolist()) if clients else xs[-1])
    return np.stack(xs)


def mean(x, clients, deltas, kinds):
    return x + ETA * np.mean(deltas, axis=0)


def mean_of_means(x, clients, deltas, kinds):
    each = [np.mean([d for c, d in zip(clients, deltas, strict=True) if c == one], axis=0) for one in set(clients)]
    return x + ETA * np.mean(each, axis=0)


def median_of_buffers(x, clients, deltas, kinds):
    held: dict[int, list[np.ndarray]] = {}
    for client, delta in zip(clients, deltas, strict=True):
        held.setdefault(client % 3, []).append(delta)
    assert len(held) == 3
    return x + ETA * np.median([np.mean(one, axis=0) for one in held.values()], axis=0)


def clip(v: np.ndarray, radius: float | None) -> np.ndarray:
    length = float(np.linalg.norm(v))
    return v if radius is None or length <= radius else v * (radius / length)


class Throttle:
    """Algorithm 1, with centred clipping or truncation of first updates."""

    def __init__(self, q, tau, lam, bound, truncates=False):
        self.q, self.tau, self.lam, self.bound, self.truncates = q, tau, lam, bound, truncates
        self.counts, self.side, self.first = np.zeros(CLIENTS, int), np.zeros(len(START)), []

    def __call__(self, x, clients, deltas, kinds):
        (client,), (delta,) = clients, deltas
        if self.counts[client] == 0:
            self.first.append(delta)
            near = clip(delta - self.side, self.tau)
            far = self.truncates and not np.array_equal(near, delta - self.side)
            x = x + ETA / CLIENTS * (self.side + (0 if far else near))
        else:
            x = x + ETA / self.q ** self.counts[client] * clip(delta, self.lam)
        self.counts[client] += 1
        if (self.counts > 0).all():
            assert kinds == [2]
            self.side, self.first = clip(np.mean(self.first, axis=0), self.bound), []
            self.counts[:] = 0
        return x


class Ringleader:
    """The sums and numbers of both tables."""

    def __init__(self, clients, dim, eta):
        self.eta, self.sums, self.ahead = eta, np.zeros((clients, dim)), np.zeros((clients, dim))
        self.number, self.later, self.steps = np.zeros(clients, int), np.zeros(clients, int), 0

    def __call__(self, x, clients, deltas, kinds):
        for client, delta, kind in zip(clients, deltas, kinds, strict=True):
            sums, number = (self.ahead, self.later) if kind == 2 else (self.sums, self.number)
            sums[client] += delta
            number[client] += 1
        assert kinds.index(1) == len(kinds) - 1
        x = x + self.eta * np.mean(self.sums / self.number[:, None], axis=0)
        self.steps += 1
        if self.steps == len(self.sums):
            self.sums, self.number, self.steps = self.ahead, self.later, 0
            self.ahead, self.later = np.zeros_like(self.sums), np.zeros_like(self.number)
        return x


def table() -> Step:
    """The mean of the last updates of all clients; a client that arrives twice counts by its later update."""
    rows: dict[int, Any] = {}

    def step(x, clients, deltas, kinds):
        rows.update(zip(clients, deltas, strict=True))
        assert len(rows) == CLIENTS  # from the first step on
        return x + ETA * np.mean(list(rows.values()), axis=0)

    return step


TIMES = [3.0, 1.0, 2.5, 1.0, 2.0, 2.5]
FREE = clock.free_running(concurrency=CLIENTS, durations=DURATIONS)
P = np.array([0.3, 0.1, 0.1, 0.2, 0.05, 0.25])


RADII: dict[str, Any] = {"first_radius": 0.4, "later_radius": 0.3, "side_radius": 0.5}
CASES: dict[str, tuple[Any, Callable[[], Step]]] = {
    "ringmaster": (presets.ringmaster(CLIENTS, DURATIONS, max_staleness=4, learning_rate=ETA), lambda: mean),
    "ringmaster without stops": (
        presets.ringmaster(CLIENTS, DURATIONS, max_staleness=4, learning_rate=ETA, stop=False),
        lambda: mean,
    ),
    "rennala": (presets.rennala(CLIENTS, DURATIONS, batch=5, learning_rate=ETA), lambda: mean),
    "naive_optimal": (presets.naive_optimal(TIMES, fastest=4, learning_rate=ETA), lambda: mean),
    "fedcompass": (
        (server.fedcompass(ETA, "none"), clock.compass(durations=DURATIONS, min_steps=1, max_steps=1)),
        lambda: lambda x, clients, deltas, kinds: x + ETA / CLIENTS * np.sum(deltas, axis=0),
    ),
    "routed": (
        (server.routed_sgd(ETA), clock.routed(tasks=9, durations=DURATIONS, probabilities=P)),
        lambda: lambda x, clients, deltas, kinds: x + ETA / (CLIENTS * P[clients[0]]) * deltas[0],
    ),
    "basgd": ((server.basgd(ETA, 3), clock.every_buffer(durations=DURATIONS, buffers=3)), lambda: median_of_buffers),
    "malenia": ((server.malenia(ETA), clock.harmonic(durations=DURATIONS, batch=8)), lambda: mean_of_means),
    "throttle": (
        (server.throttle(ETA), clock.rounds_until_all(durations=DURATIONS)),
        lambda: Throttle(1.5, None, None, None),
    ),
    "throttle, clipped": (
        (server.throttle(ETA, 2.0, **RADII), clock.rounds_until_all(durations=DURATIONS)),
        lambda: Throttle(2.0, *RADII.values()),
    ),
    "throttle, truncated": (
        (server.throttle(ETA, 2.0, **RADII, beyond="truncate"), clock.rounds_until_all(durations=DURATIONS)),
        lambda: Throttle(2.0, *RADII.values(), truncates=True),
    ),
    "ringleader": (
        (server.ringleader(ETA), clock.ringleader(durations=DURATIONS)),
        lambda: Ringleader(CLIENTS, len(START), ETA),
    ),
    "ia2sgd": ((server.ia2sgd(ETA), clock.warm_up(FREE, first="next")), table),
    "ace": ((server.ace(ETA), clock.warm_up(FREE, first="all")), table),
    "mifa": ((server.mifa(ETA), clock.warm_up(clock.synchronous(cohort=2, durations=DURATIONS), first="next")), table),
    "windows": (
        (server.fedbuff(ETA, "none"), clock.free_running(concurrency=4, durations=DURATIONS, period=0.7, lost=0.2)),
        lambda: mean,
    ),
    "at a rate, weighted": (
        (
            server.fedbuff(ETA, "none"),
            clock.free_running(
                concurrency=5, buffer=2, durations=DURATIONS, rate=2.0, select="samples", max_staleness="sqrt", lost=0.1
            ),
        ),
        lambda: mean,
    ),
}


QUIET = {"ringleader", "ace", "routed", "fedcompass", "basgd", "naive_optimal"}


@pytest.mark.parametrize("name", slow_but(CASES, "fedcompass", "malenia", "ringleader", "throttle"))
def test_servers_follow_their_formulas_along_the_schedule(name: str) -> None:
    (made, protocol), expected = CASES[name]
    sim = descent(client=GRADIENT, server=made, clock=protocol)
    schedule = sim.schedule(STEPS, seed=2)
    with jax.enable_x64(True):
        result = sim.run(STEPS, seed=2, eval_every=7, lanes=3, observe=observe_w)
    np.testing.assert_allclose(result.observe_w.values, along(schedule, expected()), rtol=1e-12, atol=1e-14)
    counted = {word: int(getattr(schedule, f"runs_{word}")[-1]) for word in ("refused", "stopped", "lost")}
    assert {word: result.attrs.get(f"runs_{word}", 0) for word in counted} == counted
    assert sum(counted.values()) > 0 or name.split(",")[0] in QUIET
    sent = schedule.mask.sum() + counted["refused"] + counted["lost"]
    assert int(result.bytes_up.sum()) == sent * len(START) * 8


TWO = clock.constant(np.array([1.0, 2.5]))
THROTTLED = np.asarray([1, 0.8, 0.64, 0.44, 0.352, 0.2816, 0.1936])  # η = 0.4, q = 2
FRESH, LATER = 0.9 ** np.arange(7), np.asarray([1, 0.9, 0.81, 0.71, 0.629, 0.5661, 0.50949])
BY_HAND: dict[str, tuple[Any, list[float], Any]] = {  # server and clock; centres; versions
    f"{name}, stop={stop}": (of(stop), points, versions)
    for stop in (True, False)
    for name, of, points, versions in (
        ("ringmaster, R=2", lambda stop: presets.ringmaster(2, TWO, max_staleness=2, stop=stop), [-1, -1], FRESH - 1),
        ("ringmaster, R=3", lambda stop: presets.ringmaster(2, TWO, max_staleness=3, stop=stop), [-1, -1], LATER - 1),
        (
            "rennala",
            lambda stop: presets.rennala(2, TWO, batch=3, learning_rate=0.3, stop=stop),
            [1, -1],
            [0, 0.1, 0.17],
        ),
        (
            "malenia",
            lambda stop: (server.malenia(0.3), clock.harmonic(durations=TWO, batch=2, stop=stop)),
            [1, -1],
            [0, 0],
        ),
    )
} | {"throttle": ((server.throttle(0.4, 2.0), clock.rounds_until_all(durations=TWO)), [-1, -1], THROTTLED - 1)}


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_HAND)
def test_optimal_methods_by_hand(name: str) -> None:
    """Runs of 1 and 2.5 s; Ringmaster and Throttle: f = x²/2 from 1, shifted by 1. Malenia stays at the optimum."""
    made, points, expected = BY_HAND[name]
    problem = centred(points)
    sim = afl.Simulation(problem.data, problem.model, GRADIENT, *made)
    versions = sim.run(len(expected) - 1, observe=observe_w).observe_w.values.ravel()
    np.testing.assert_allclose(versions, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_ringleader_by_hand() -> None:
    """The timeline of the authors' poster: runs of 43, 61 and 87 s, η = 0.3; the same inside the loop."""
    durations = clock.recorded(np.tile([[43.0], [61.0], [87.0]], (1, 20)))
    protocol = clock.ringleader(durations=durations)
    problem = centred([1.0, 0.0, -4.0])
    sim = afl.Simulation(problem.data, problem.model, GRADIENT, server.ringleader(0.3), protocol)
    schedule = sim.schedule(9)
    assert schedule.time.tolist() == [87, 122, 129, 183, 215, 261, 348, 366, 387]
    assert (schedule.client[schedule.mask & (schedule.kind == 1)] + 1).tolist() == [3, 2, 1, 2, 1, 3, 3, 2, 1]
    stored = schedule.mask & (schedule.kind == 2)
    assert schedule.arrived[stored].tolist() == [244, 258] and (schedule.client[stored] + 1).tolist() == [2, 1]
    assert schedule.version[schedule.mask & (schedule.client == 2)].tolist() == [0, 1, 1, 6]
    expected = [-0.3, -0.6, -0.9, -1.02, -1.14, -1.26, -1.218, -1.176, -1.134]
    result = sim.run(9, observe=observe_w)
    np.testing.assert_allclose(result.observe_w.values.ravel(), [0, *expected], rtol=1e-5)
    state, records = sim.step(sim.init(0, 9), 9)
    np.testing.assert_allclose(state.params["w"], expected[-1:], rtol=1e-5)
    found = records["staleness"][:, : schedule.mask.shape[1]]
    np.testing.assert_array_equal(found, np.where(schedule.mask, schedule.staleness, 0))


@pytest.mark.slow
def test_a_limit_of_bytes_counts_refused_uploads() -> None:
    (made, protocol), _ = CASES["ringmaster without stops"]
    sim = descent(client=GRADIENT, server=made, clock=protocol)
    whole = sim.run(40, seed=2)
    assert whole.attrs["runs_refused"] > 0
    sent = (whole.bytes_up + whole.bytes_down).values.cumsum()
    assert sim.run(until={"bytes": int(sent[29])}, seed=2).sizes["step"] == 30


@pytest.mark.slow
def test_naive_optimal_trains_the_fastest_clients_only() -> None:
    for fastest, expected in ((1, [1]), (2, [1, 3]), (4, [1, 2, 3, 4])):
        made = presets.naive_optimal(TIMES, fastest=fastest).clock
        assert made.weights is not None and np.flatnonzero(made.weights).tolist() == expected
        schedule = afl.clock.schedule(made, CLIENTS, 1, 30, seed=fastest)
        arrived = {client: int(schedule.time[-1] / TIMES[client] + 1e-9) for client in expected}  # by the last time
        found, counts = np.unique(schedule.client, return_counts=True)
        assert found.tolist() == expected
        assert all(n - 1 <= count <= n for n, count in zip(arrived.values(), counts, strict=True))
    assert presets.naive_optimal(np.array(TIMES), fastest=CLIENTS).clock.weights is None
    effort = afl.theory.optimal_times.effort(0.1, smoothness=1.0, local_variance=0.05, gap=1.0)
    best = afl.theory.optimal_times.homogeneous(TIMES, effort).clients
    assert 1 < best < CLIENTS and presets.naive_optimal(TIMES, fastest=best).clock.concurrency == best


@pytest.mark.parametrize(
    ("times", "fastest"), [([1.0, 0.0], 1), ([1.0, np.inf], 1), ([], 1), (2.0, 1), ([1.0, 2.0], 3), ([1.0, 2.0], 0)]
)
def test_naive_optimal_needs_the_seconds_of_every_client(times: Any, fastest: int) -> None:
    with pytest.raises((ValueError, TypeError), match=r"presets.naive_optimal: .*(times|fastest)|unsized"):
        presets.naive_optimal(times, fastest=fastest)


@pytest.mark.slow
def test_picky_sgd_says_what_it_rejects() -> None:
    """Distances are those of the versions."""
    made = clock.free_running(concurrency=4, durations=DURATIONS)
    with jax.enable_x64(True):
        sim = descent(client=GRADIENT, server=server.picky_sgd(ETA, 0.6), clock=made)
        picky = sim.run(STEPS, observe=observe_w)
    xs, rejected = picky.observe_w.values, picky.rejected.values.astype(bool)
    starts = xs[np.arange(STEPS) - picky.staleness.values[:, 0].astype(int)]
    distances = np.sqrt(((xs[:-1] - starts) ** 2).sum(axis=1))
    np.testing.assert_allclose(picky.distance, distances, rtol=1e-12, atol=1e-15)
    assert rejected.tolist() == (distances > 0.6).tolist() and 0 < rejected.sum() == picky.attrs["count_rejected"]
    assert (np.abs(np.diff(xs, axis=0)).sum(axis=1) == 0).tolist() == rejected.tolist()
