"""Every server, step by step, against its slow reference on recorded schedules."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from jaxafl import server
from jaxafl.clock import constant, synchronous, trace
from tests.oracle import clock as oracle_clock
from tests.oracle import server as oracle
from tests.oracle.clock import ServerStep
from tests.problems import assert_same, quadratic, record, reference, simulate
from tests.variants import slow_but

STEPS = 12
PRECISIONS = {"float64": (True, 1e-9), "float32": (False, 1e-5)}

SYNCHRONOUS: dict[str, tuple[Any, Callable[[], Any]]] = {
    "fedavg": (server.fedavg(0.8), lambda: oracle.FedAvg(eta=0.8)),
    "fedavg uniform": (server.fedavg(0.8, weights="uniform"), lambda: oracle.FedAvg(eta=0.8, weights="uniform")),
    "fedbuff": (server.fedbuff(0.8, momentum=0.3), lambda: oracle.FedBuff(eta=0.8, momentum=0.3)),
    "fadas": (server.fadas(0.1), lambda: oracle.FADAS(eta=0.1)),
}

FREE: dict[str, tuple[Any, Callable[[], Any], int]] = {
    "fedasync constant": (server.fedasync(0.6, "constant"), lambda: oracle.FedAsync(alpha=0.6), 1),
    "fedasync polynomial": (
        server.fedasync(0.6, "polynomial", exponent=0.7),
        lambda: oracle.FedAsync(alpha=0.6, weighting="polynomial", a=0.7),
        1,
    ),
    "fedasync hinge": (
        server.fedasync(0.6, "hinge", exponent=2.0, threshold=1.0),
        lambda: oracle.FedAsync(alpha=0.6, weighting="hinge", a=2.0, b=1.0),
        1,
    ),
    "fedasync delta": (
        server.fedasync(0.6, "polynomial", mix="delta"),
        lambda: oracle.FedAsync(alpha=0.6, weighting="polynomial", mix="delta"),
        1,
    ),
    "fedasync polynomial, buffer": (
        server.fedasync(0.6, "polynomial", exponent=0.7),
        lambda: oracle.FedAsync(alpha=0.6, weighting="polynomial", a=0.7),
        3,
    ),
    "fedasync delta, buffer": (
        server.fedasync(0.3, "hinge", exponent=0.5, threshold=2.0, mix="delta"),
        lambda: oracle.FedAsync(alpha=0.3, weighting="hinge", a=0.5, b=2.0, mix="delta"),
        3,
    ),
    "fedbuff, buffer 1": (server.fedbuff(0.7, "none"), lambda: oracle.FedBuff(eta=0.7), 1),
    "fedbuff": (server.fedbuff(0.7, "none"), lambda: oracle.FedBuff(eta=0.7), 2),
    "fedbuff polynomial": (
        server.fedbuff(0.7, staleness="polynomial"),
        lambda: oracle.FedBuff(eta=0.7, scaling="sqrt"),
        2,
    ),
    "fedbuff hinge of samples": (
        server.fedbuff(0.7, "hinge", exponent=2.0, threshold=1.0, weights="samples"),
        lambda: oracle.FedBuff(eta=0.7, scaling=lambda tau: 1 / (2.0 * max(tau - 1, 0) + 1), weights="samples"),
        2,
    ),
    "fedbuff exponential": (
        server.fedbuff(0.3, "exponential", exponent=0.3, reduce="sum", weights="samples"),
        lambda: oracle.FedBuff(eta=0.3, scaling=lambda tau: math.exp(-0.3 * tau), reduce="sum", weights="samples"),
        2,
    ),
    "fedbuff function": (
        server.fedbuff(0.7, lambda tau: 1 / (1 + tau**2)),
        lambda: oracle.FedBuff(eta=0.7, scaling=lambda tau: 1 / (1 + tau**2)),
        2,
    ),
    "fedasync exponential": (
        server.fedasync(0.6, "exponential", exponent=0.2),
        lambda: oracle.FedAsync(alpha=0.6, weighting=lambda tau: math.exp(-0.2 * tau)),
        1,
    ),
    "fedbuff momentum": (server.fedbuff(0.7, "none", momentum=0.4), lambda: oracle.FedBuff(eta=0.7, momentum=0.4), 2),
    "fedbuff sum": (
        server.fedbuff(0.3, staleness="polynomial", momentum=0.4, reduce="sum"),
        lambda: oracle.FedBuff(eta=0.3, scaling="sqrt", momentum=0.4, reduce="sum"),
        2,
    ),
}


def fadas_pair(correction: str, scaling: str | None) -> tuple[Any, Callable[[], Any], int]:
    """FADAS with a rate at which both delay scalings act."""
    options: dict[str, Any] = {
        "b1": 0.8,
        "b2": 0.95,
        "bias_correction": correction,
        "delay_scaling": scaling,
        "tau_c": 1,
    }
    return server.fadas(0.6, **options), lambda: oracle.FADAS(eta=0.6, **options), 2


FREE |= {
    f"fadas {correction} {scaling}": fadas_pair(correction, scaling)
    for correction in ("none", "authors", "optax")
    for scaling in (None, "eq4", "eq77")
}


def in_client_order(steps: list[ServerStep]) -> list[ServerStep]:
    """FedAsync applies the arrivals of one server step in client order."""
    return [ServerStep(s.step, s.time, tuple(sorted(s.arrivals, key=lambda arrival: arrival.client))) for s in steps]


def check_free_running(name: str, kind: str, precision: str, seed: int = 3) -> None:
    mine, theirs, buffer = FREE[name]
    wide, tolerance = PRECISIONS[precision]
    problem = quadratic()
    recorded = record(seed, problem.num_clients, STEPS, kind, concurrency=4, buffer=buffer)
    steps = recorded.oracle(STEPS)
    fedasync = name.startswith("fedasync")
    expected = reference(problem, theirs(), in_client_order(steps) if fedasync else steps)
    assert max(arrival.staleness for step in steps for arrival in step.arrivals) > 1
    with jax.enable_x64(wide):
        result = simulate(problem, mine, recorded.clock(), STEPS)
    assert_same(result, expected, tolerance, ordered=not fedasync)


# all of them run in the slow test below
USUAL = [
    name
    for name in FREE
    if name not in ("fadas none eq77", "fadas authors eq4", "fadas optax None", "fadas optax eq77")
]


@pytest.mark.parametrize("name", slow_but(USUAL, "fedasync polynomial"))
def test_free_running_servers_follow_their_references(name: str) -> None:
    check_free_running(name, "ties", "float64")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedasync polynomial, buffer", "fadas authors eq77"])
def test_single_precision_follows_too(name: str) -> None:
    check_free_running(name, "ties", "float32")


@pytest.mark.slow
@pytest.mark.parametrize("name", FREE)
def test_every_server_on_every_kind_of_schedule(name: str) -> None:
    for seed, kind in enumerate(("real", "ties", "late", "heavy")):
        check_free_running(name, kind, "float64", seed)


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("fedavg", "float64"),
        pytest.param("fedavg uniform", "float64", marks=pytest.mark.slow),
        pytest.param("fedbuff", "float64", marks=pytest.mark.slow),
        pytest.param("fadas", "float64", marks=pytest.mark.slow),
        pytest.param("fedavg", "float32", marks=pytest.mark.slow),
    ],
)
def test_synchronous_servers_follow_their_references(name: str, precision: str) -> None:
    mine, theirs = SYNCHRONOUS[name]
    wide, tolerance = PRECISIONS[precision]
    problem, rng = quadratic(), np.random.default_rng(0)
    sets = np.stack([rng.permutation(6)[:3] for _ in range(STEPS)])
    durations = rng.uniform(1, 5, (6, STEPS))
    rounds = oracle_clock.synchronous(sets.tolist(), lambda client, run: durations[client, run])
    with jax.enable_x64(wide):
        clock = trace(synchronous(cohort=3, durations=constant(0)), durations=durations, sets=sets)
        result = simulate(problem, mine, clock, STEPS)
    assert_same(result, reference(problem, theirs(), rounds), tolerance, ordered=False)


def test_a_client_drawn_twice_counts_twice() -> None:
    problem = quadratic()
    sets = np.asarray([[0, 2, 2], [1, 1, 1], [5, 3, 5], [4, 0, 1]])
    durations = np.random.default_rng(1).uniform(1, 5, (6, 4))
    rounds = oracle_clock.synchronous(sets.tolist(), lambda client, run: durations[client, run])
    clock = trace(synchronous(cohort=3, replacement=True, durations=constant(0)), durations=durations, sets=sets)
    with jax.enable_x64(True):
        result = simulate(problem, server.fedavg(), clock, 4)
    assert_same(result, reference(problem, oracle.FedAvg(), rounds), 1e-9, ordered=False)
    assert result.attrs["runs_started"] == 8
    assert result.attrs["runs_never_consumed"] == 0


SCHEDULES: dict[str, dict[str, Any]] = {
    "arrival": {"concurrency": 3, "buffer": 2},
    "arrival, buffer above the concurrency": {"concurrency": 2, "buffer": 3},
    "arrival, everyone": {"concurrency": 6, "buffer": 2},
    "step": {"concurrency": 4, "buffer": 3, "dispatch": "step"},
    "step, everyone": {"concurrency": 6, "buffer": 6, "dispatch": "step"},
    "before_step": {"concurrency": 3, "buffer": 2, "before_step": True},
    "before_step, everyone, buffer 1": {"concurrency": 6, "buffer": 1, "before_step": True},
    "start_skew": {"concurrency": 5, "buffer": 3, "dispatch": "step", "start_skew": True},
    "start_skew, everyone": {"concurrency": 6, "buffer": 2, "dispatch": "step", "start_skew": True},
    "one at a time": {"concurrency": 1, "buffer": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_way_of_starting_clients_follows_the_reference(name: str) -> None:
    problem = quadratic()
    for kind in ("ties", "late") if name in ("arrival", "step") else ("ties",):
        recorded = record(0, 6, STEPS, kind, **SCHEDULES[name])
        expected = reference(problem, oracle.FedBuff(eta=0.7, scaling="sqrt"), recorded.oracle(STEPS))
        with jax.enable_x64(True):
            result = simulate(problem, server.fedbuff(0.7, staleness="polynomial"), recorded.clock(), STEPS)
        assert_same(result, expected, 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULES)
def test_many_random_schedules_follow_the_reference(name: str) -> None:
    problem = quadratic()
    for seed in range(12):
        recorded = record(seed, 6, STEPS, ("ties", "real", "late", "heavy")[seed % 4], **SCHEDULES[name])
        expected = reference(problem, oracle.FedBuff(eta=0.7, scaling="sqrt"), recorded.oracle(STEPS))
        with jax.enable_x64(True):
            result = simulate(problem, server.fedbuff(0.7, staleness="polynomial"), recorded.clock(), STEPS)
        assert_same(result, expected, 1e-9)
