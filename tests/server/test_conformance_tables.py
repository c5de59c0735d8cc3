"""Servers with tables, weights and rates of their own, step by step, against their slow references."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxafl as afl
from jaxafl import server
from jaxafl.clock import bernoulli, constant, synchronous, trace
from tests.oracle import clock as oracle_clock
from tests.oracle.clock_bernoulli import bernoulli as oracle_bernoulli
from tests.oracle.server_tables import ACED, AREA, FedStale, Kardam, LastUpdates, PickySGD
from tests.oracle.server_weighted import PORT, DelayAdaptive, FedFa, FedNova
from tests.problems import (
    GD,
    ORACLE_GD,
    START,
    Problem,
    assert_same,
    quadratic,
    quadratic_loss,
    record,
    reference,
    simulate,
)
from tests.variants import slow_but

CLIENTS, STEPS = 6, 24
SAMPLES = np.asarray([client.num_samples for client in quadratic().clients])
PRECISIONS = {"float64": (True, 1e-10), "float32": (False, 1e-5)}
EVERYONE = {"concurrency": CLIENTS, "buffer": 1}
SIZES = {"num_clients": CLIENTS, "dim": len(START)}


def table(begin: str, eta: float = 0.7) -> Callable[[], Any]:
    return lambda: LastUpdates(eta=eta, begin=begin, **SIZES)


def area() -> AREA:
    return AREA(num_clients=CLIENTS, x0=np.asarray(START))


# server, reference, options of `free_running`
FREE: dict[str, tuple[Any, Callable[[], Any], dict[str, Any]]] = {
    "ia2sgd": (server.ia2sgd(0.7), table("later"), EVERYONE),
    "ia2sgd, buffer": (server.ia2sgd(0.7), table("later"), EVERYONE | {"buffer": 3}),
    "ace": (server.ace(0.7), table("full"), EVERYONE),
    "aced": (server.aced(0.7, 3), lambda: ACED(max_age=3, eta=0.7, **SIZES), EVERYONE),
    "aced by row": (
        server.aced(0.7, 4, age="row"),
        lambda: ACED(max_age=4, age="row", eta=0.7, **SIZES),
        EVERYONE | {"buffer": 2},
    ),
    "aced, default": (server.aced(0.7), lambda: ACED(max_age=CLIENTS, eta=0.7, **SIZES), EVERYONE),
    "mifa": (server.mifa(0.7), table("later"), {"concurrency": 4, "buffer": 2}),
    "area": (server.area(), area, {"concurrency": 4, "buffer": 3}),
    "area, single": (server.area(), area, EVERYONE),
    "delay_adaptive": (
        server.delay_adaptive(0.7),
        lambda: DelayAdaptive(eta=0.7, c=4),
        {"concurrency": 4, "buffer": 1},
    ),
    "delay_adaptive drop": (
        server.delay_adaptive(0.7, "drop", 2.0),
        lambda: DelayAdaptive(eta=0.7, c=2, rule="drop"),
        EVERYONE,
    ),
    "delay_adaptive koloskova": (
        server.delay_adaptive(0.7, "koloskova", smoothness=0.05),
        lambda: DelayAdaptive(eta=0.7, c=CLIENTS, rule="koloskova", smoothness=0.05),
        EVERYONE,
    ),
    "kardam": (
        server.kardam(0.7),
        lambda: Kardam(eta=0.7, dampening=lambda tau: 1 / (1 + tau), quantile=2 / 3, window=26, num_clients=CLIENTS),
        EVERYONE,
    ),
    "kardam, window": (
        server.kardam(0.7, "exponential", exponent=0.2, quantile=0.4, window=2),
        lambda: Kardam(eta=0.7, dampening=lambda tau: np.exp(-0.2 * tau), quantile=0.4, window=2, num_clients=CLIENTS),
        {"concurrency": 4, "buffer": 1},
    ),
    "picky_sgd": (server.picky_sgd(0.7, 0.8), lambda: PickySGD(eta=0.7, distance=0.8), EVERYONE),
    "picky_sgd, infinite": (
        server.picky_sgd(0.7, np.inf),
        lambda: PickySGD(eta=0.7, distance=np.inf),
        {"concurrency": 4, "buffer": 1},
    ),
    "fedfa": (server.fedfa(3), lambda: FedFa(window=3), {"concurrency": 4, "buffer": 1}),
    "port": (
        server.port(0.5, 2.0, 4.0),
        lambda: PORT(similarity=0.5, staleness=2.0, bound=4.0),
        {"concurrency": 4, "buffer": 2, "dispatch": "step"},
    ),
    "port, single": (server.port(), PORT, {"concurrency": 4, "buffer": 1}),
}


def check_free_running(name: str, kind: str, precision: str, seed: int = 3) -> None:
    mine, theirs, options = FREE[name]
    wide, tolerance = PRECISIONS[precision]
    recorded = record(seed, CLIENTS, STEPS, kind, **options)
    expected = reference(quadratic(), theirs(), recorded.oracle(STEPS))
    with jax.enable_x64(wide):
        result = simulate(quadratic(), mine, recorded.clock(), STEPS)
    assert_same(result, expected, tolerance)


@pytest.mark.parametrize("name", slow_but(FREE, "fedfa", "kardam"))
def test_free_running_servers_follow_their_references(name: str) -> None:
    check_free_running(name, "late", "float64")


@pytest.mark.slow
@pytest.mark.parametrize("name", FREE)
def test_every_server_on_every_kind_of_schedule(name: str) -> None:
    for seed, kind in enumerate(("real", "ties", "heavy")):
        check_free_running(name, kind, "float64" if seed else "float32", seed)


ROUNDS: dict[str, tuple[Any, Callable[[], Any]]] = {
    "fednova": (server.fednova(0.8), lambda: FedNova(eta=0.8)),
    "fednova uniform": (server.fednova(weights="uniform"), lambda: FedNova(weights="uniform")),
    "mifa": (server.mifa(0.7), table("later")),
    "mifa at once": (server.mifa(0.7, wait=False), table("at once")),
    "fedstale": (
        server.fedstale(0.8),
        lambda: FedStale(alpha=SAMPLES / SAMPLES.sum(), p=[0.5] * CLIENTS, beta=0.5, dim=3, eta=0.8),
    ),
    "fedstale, estimate": (
        server.fedstale(0.8, estimate=True),
        lambda: FedStale(alpha=SAMPLES / SAMPLES.sum(), p=None, beta=0.5, dim=3, eta=0.8),
    ),
    "fedvarp": (
        afl.presets.fedvarp(3, constant(0)).server,
        lambda: FedStale(alpha=[1 / CLIENTS] * CLIENTS, p=[0.5] * CLIENTS, beta=1.0, dim=3),
    ),
    "area": (server.area(), area),
}


@pytest.mark.parametrize("name", slow_but(ROUNDS, "fednova", "fedstale, estimate"))
def test_servers_of_rounds_follow_their_references(name: str) -> None:
    """Clients with 1 to 6 local steps, in cohorts of three."""
    mine, theirs = ROUNDS[name]
    problem, rng, given = quadratic(), np.random.default_rng(0), tuple(range(1, CLIENTS + 1))
    client = afl.Client(learning_rate=0.2, steps=given, batch_size=None)
    training = dataclasses.replace(ORACLE_GD, momentum=0.0)
    sets = np.stack([rng.permutation(CLIENTS)[:3] for _ in range(STEPS)])
    durations = rng.uniform(1, 5, (CLIENTS, STEPS))
    rounds = [
        oracle_clock.ServerStep(
            step.step,
            step.time,
            tuple(dataclasses.replace(one, local_steps=given[one.client]) for one in step.arrivals),
        )
        for step in oracle_clock.synchronous(sets.tolist(), lambda client, run: durations[client, run])
    ]
    with jax.enable_x64(True):
        clock = trace(synchronous(cohort=3, durations=constant(0)), durations=durations, sets=sets)
        result = simulate(problem, mine, clock, STEPS, client)
    assert_same(result, reference(problem, theirs(), rounds, training), 1e-10, ordered=False)


P = np.linspace(0.2, 0.7, CLIENTS)
TICKS: dict[str, tuple[Any, Callable[[], Any]]] = {
    "mifa": (server.mifa(0.3, wait=False), table("at once", 0.3)),
    "mifa that waits": (server.mifa(0.3), table("later", 0.3)),
    "fedstale": (
        server.fedstale(0.5, 0.4, P, "uniform"),
        lambda: FedStale(alpha=[1 / CLIENTS] * CLIENTS, p=P, beta=0.4, dim=3, eta=0.5),
    ),
}


@pytest.mark.parametrize("name", slow_but(TICKS, "fedstale"))
def test_servers_of_ticks_follow_their_references(name: str) -> None:
    """Ticks at which nobody arrives step along the table."""
    mine, theirs = TICKS[name]
    rng = np.random.default_rng(1)
    uploads, downloads = rng.random((STEPS, CLIENTS)) < 0.35, rng.random((STEPS, CLIENTS)) < 0.6
    uploads[[0, 9, 10]] = False
    steps = oracle_bernoulli(uploads.tolist(), downloads.tolist())
    with jax.enable_x64(True):
        result = simulate(quadratic(), mine, trace(bernoulli(0.5), uploads=uploads, downloads=downloads), STEPS)
    assert_same(result, reference(quadratic(), theirs(), steps), 1e-10)
    moved = np.abs(np.diff(result.observe_w.values, axis=0)).sum(axis=1)
    assert moved[0] == 0 and (moved[[9, 10]] > 0).all() == ("waits" not in name or moved[8] > 0)


SWEPT: dict[str, tuple[Any, tuple[float, float]]] = {
    "max_age": (server.aced(0.1, 1.0), (0.0, 3.0)),
    "threshold": (server.delay_adaptive(0.2, threshold=2.0), (0.5, 9.0)),
    "distance": (server.picky_sgd(0.2), (0.05, np.inf)),
    "exponent": (server.fedbuff(exponent=0.5), (0.0, 2.0)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SWEPT)
def test_numbers_are_swept_without_compilation(name: str) -> None:
    """The members of a sweep are the single runs, whether they share a program or not."""
    clock = afl.clock.free_running(concurrency=CLIENTS, durations=afl.clock.uniform(1, 5))
    of, (one, values) = quadratic(), SWEPT[name]
    found = afl.sweep(afl.Simulation(of.data, of.model, GD, one, clock), {f"server.{name}": values}, 8)
    for place, value in enumerate(values):
        member = dataclasses.replace(one, **{name: value})
        single = afl.Simulation(of.data, of.model, GD, member, clock).run(8)
        np.testing.assert_allclose(found.loss.values.reshape(2, -1)[place], single.loss.values, rtol=1e-5)
    assert not np.allclose(*found.loss.values.reshape(2, -1))


def plain(protocol: Any) -> Any:
    return protocol


def warm(first: Any) -> Callable[[Any], Any]:
    return lambda protocol: afl.clock.warm_up(protocol, first=first)


# server, clock of a protocol, x_0, x_1 ...
TIMELINES: dict[str, tuple[Any, Callable[[Any], Any], list[float]]] = {
    # the table is full at 3; client 1 computes its second gradient at x_0 again
    "ia2sgd": (server.ia2sgd(0.5), plain, [2, 2, 2, 2, 2, 1, 0.25, -0.3125, -0.875]),
    # the same, without the versions of the warm-up
    "ia2sgd, published": (server.ia2sgd(0.5), warm("next"), [2, 1, 0.25, -0.3125, -0.875]),
    # x_1 of gradients at x_0 at time 0; steps at 1, 2, 3, 3
    "ace, published": (server.ace(0.5), warm("all"), [2, 1, 0.25, -0.3125, -0.734375, -0.90625]),
    # at 2 the second client has been silent for too long
    "aced, published": (server.aced(0.5, 1), warm("all"), [2, 1, 0.25, 0.625]),
    # the arrival at 3 that fills the table steps with gradients 1 and 3, all at x_0
    "ace": (server.ace(0.5), plain, [2, 2, 2, 2, 1]),
    # uploads 1, 1, 1, -1
    "fedfa": (server.fedfa(2), plain, [2, 2, 1, 1, 0]),
    # at 3 client 1 steps from 1.25; then client 2, whose start is 2 and x = 1.125, is too far
    "picky_sgd": (server.picky_sgd(0.5, 0.8), plain, [2, 1.5, 1.25, 1.125, 1.125]),
    # at distance 7/8 it is not, and its gradient at 2 is 3
    "picky_sgd, at the bound": (server.picky_sgd(0.5, 0.875), plain, [2, 1.5, 1.25, 1.125, 1.125 - 0.5 * 3]),
    # c = 2: the client that takes three seconds has staleness 3, so that its step is 2/3 as long
    "delay_adaptive": (server.delay_adaptive(0.5), plain, [2, 1.5, 1.25, 1.125, 1.125 - 0.5 * 2 / 3 * 3]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TIMELINES)
def test_two_clients_by_hand(name: str) -> None:
    """f_0' = x - 1 and f_1' = x + 1, x_0 = 2; runs of one and of three seconds, one gradient each."""
    one, begins, expected = TIMELINES[name]
    points = np.asarray([[1.0, 1.0], [1.0, -1.0]])  # curvature and centre
    data = afl.data.from_arrays(points, np.zeros(2, int), np.arange(2), x_test=points, y_test=np.zeros(2, int))
    model = afl.models.from_functions(lambda key, batch: {"w": jnp.full(1, 2.0)}, quadratic_loss, "quadratic")
    clock = begins(trace(afl.clock.free_running, concurrency=2, durations=np.tile([[1.0], [3.0]], 12)))
    client = afl.Client(learning_rate=1.0, steps=1, batch_size=None)
    result = simulate(Problem(data, model, []), one, clock, len(expected) - 1, client)
    np.testing.assert_allclose(result.observe_w.values[:, 0], expected, rtol=1e-6)


ALL = {
    "ace": (server.ace(0.3), EVERYONE),
    "aced": (server.aced(0.3, 2), EVERYONE),
    "area": (server.area(), {"concurrency": 4, "buffer": 2}),
    "delay_adaptive": (server.delay_adaptive(0.3), {"concurrency": 4}),
    "fedbuff": (server.fedbuff(0.5, lambda tau: 1 / (1 + tau**2)), {"concurrency": 4, "buffer": 2}),
    "fedfa": (server.fedfa(3), {"concurrency": 4}),
    "mifa": (server.mifa(0.3), {"concurrency": 4, "buffer": 2}),
    "picky_sgd": (server.picky_sgd(0.3), {"concurrency": 4}),
    "port": (server.port(), {"concurrency": 4, "buffer": 2}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_a_resumed_run_is_the_uninterrupted_one(name: str, tmp_path: Any) -> None:
    one, options = ALL[name]
    of = quadratic()
    clock = afl.clock.free_running(durations=afl.clock.uniform(1, 5), **options)
    sim = afl.Simulation(of.data, of.model, GD, one, clock)
    sim.run(9, folder=tmp_path)
    found, expected = sim.run(STEPS, folder=tmp_path), sim.run(STEPS)
    np.testing.assert_array_equal(found.loss.values[-1], expected.loss.values[-1])
    np.testing.assert_array_equal(found.staleness, expected.staleness)
