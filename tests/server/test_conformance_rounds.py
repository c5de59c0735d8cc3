"""The servers of rounds and buffers, step by step, against their slow references on recorded schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import xarray as xr

from jaxafl import server
from jaxafl.clock import constant, sampled, semi_async, stale_rounds, synchronous, trace
from tests.oracle import clock as oracle_clock
from tests.oracle import server as oracle
from tests.oracle.clock_sampled import sampled as oracle_sampled
from tests.oracle.clock_semi_async import semi_async as oracle_semi_async
from tests.oracle.clock_stale_rounds import stale_rounds as oracle_stale_rounds
from tests.oracle.server_adaptive import FedAdagrad, FedAdam, FedYogi, fedams
from tests.oracle.server_buffered import CA2FL, DeFedAvgIID, DeFedAvgNonIID
from tests.oracle.server_rounds import SAFA
from tests.oracle.simulate_safa import simulate_safa
from tests.problems import ORACLE_GD, START, assert_same, quadratic, record, reference, simulate
from tests.problems_protocols import KINDS, durations, in_client_order, lookup, sets_without_repeats
from tests.variants import slow_but

CLIENTS, STEPS = 6, 12
PRECISIONS = {"float64": (True, 1e-9), "float32": (False, 1e-5)}
Steps = list[oracle_clock.ServerStep]
Schedule = tuple[Any, Steps]


def synchronous_rounds(seed: int, kind: str, replacement: bool = False) -> Schedule:
    rng = np.random.default_rng(seed)
    sets = rng.integers(0, CLIENTS, (STEPS, 3)) if replacement else sets_without_repeats(rng, STEPS, 3, CLIENTS)
    if replacement:
        sets[2] = [4, 4, 4]
    times = durations(rng, CLIENTS, STEPS, kind)
    protocol = synchronous(cohort=3, replacement=replacement, durations=constant(0))
    return trace(protocol, sets=sets, durations=times), oracle_clock.synchronous(sets.tolist(), lookup(times))


def stale(seed: int, kind: str, replacement: bool = False) -> Schedule:
    rng = np.random.default_rng(seed)
    sets = rng.integers(0, CLIENTS, (STEPS, 3)) if replacement else sets_without_repeats(rng, STEPS, 3, CLIENTS)
    ages = rng.integers(0, 5, (STEPS, 3))
    times = durations(rng, CLIENTS, 3 * STEPS, kind)
    protocol = stale_rounds(participants=3, max_staleness=4, durations=constant(0), replacement=replacement)
    steps = oracle_stale_rounds(sets.tolist(), ages.tolist(), lookup(times), num_clients=CLIENTS)
    return trace(protocol, sets=sets, stale=ages, durations=times), in_client_order(steps)


def buffered(seed: int, kind: str, concurrency: int = 4, buffer: int = 3) -> Schedule:
    recorded = record(seed, CLIENTS, STEPS, kind, concurrency=concurrency, buffer=buffer)
    return recorded.clock(), recorded.oracle(STEPS)


def send_buffers(seed: int, kind: str, receive: str, send: str) -> Schedule:
    rng = np.random.default_rng(seed)
    sets, times = rng.integers(0, CLIENTS, (STEPS, 3)), durations(rng, CLIENTS, 500, kind)
    sets[3], sets[4] = [2, 2, 2], [2, 1, 2]
    protocol = sampled(drawn=3, durations=constant(0), receive_buffer=receive, send_buffer=send)
    steps = oracle_sampled(sets.tolist(), lookup(times), num_clients=CLIENTS, receive_buffer=receive, send_buffer=send)
    return trace(protocol, sets=sets, durations=times), steps


def check(make: Callable[..., Schedule], mine: Any, theirs: Any, precision: str, *choices: Any) -> xr.Dataset:
    """The engine's run is the reference's, whatever the order within a step."""
    wide, tolerance = PRECISIONS[precision]
    clock, steps = make(*choices)
    with jax.enable_x64(wide):
        result = simulate(quadratic(), mine, clock, STEPS)
    assert_same(result, reference(quadratic(), theirs, steps), tolerance, ordered=False)
    return result


ADAPTIVE: dict[str, tuple[Any, Callable[[], Any]]] = {
    "fedadagrad": (server.fedadagrad(0.2, 0.8, 1e-2), lambda: FedAdagrad(eta=0.2, b1=0.8, eps=1e-2)),
    "fedadam": (server.fedadam(0.2, 0.8, 0.95, 1e-2), lambda: FedAdam(eta=0.2, b1=0.8, b2=0.95, eps=1e-2)),
    "fedyogi": (server.fedyogi(0.2, 0.8, 0.95, 1e-2), lambda: FedYogi(eta=0.2, b1=0.8, b2=0.95, eps=1e-2)),
    "fedadam as published": (server.fedadam(0.1), lambda: FedAdam(eta=0.1, b1=0.9, b2=0.99, eps=1e-3)),
    "fedams": (server.fedams(0.1, 0.8, 0.95), lambda: fedams(eta=0.1, b1=0.8, b2=0.95)),
    "fedams as its authors run it": (
        server.fedams(0.1, eps=0.0, bias_correction="authors", max_init=1e-3),
        lambda: fedams(eta=0.1, eps=0.0, bias_correction="authors", max_init=1e-3),
    ),
    "fedams with a high floor": (server.fedams(0.1, max_init=0.05), lambda: fedams(eta=0.1, max_init=0.05)),
    "fedams with Optax's correction": (
        server.fedams(0.1, bias_correction="optax"),
        lambda: fedams(eta=0.1, bias_correction="optax"),
    ),
}


# all of them run in the slow test below
@pytest.mark.parametrize(
    "name",
    slow_but(
        ["fedadagrad", "fedadam", "fedyogi", "fedams as its authors run it", "fedams with a high floor"], "fedyogi"
    ),
)
def test_adaptive_servers_of_rounds(name: str) -> None:
    mine, theirs = ADAPTIVE[name]
    check(synchronous_rounds, mine, theirs(), "float64", 0, "real")


@pytest.mark.slow
def test_adaptive_servers_in_single_precision() -> None:
    mine, theirs = ADAPTIVE["fedyogi"]
    check(synchronous_rounds, mine, theirs(), "float32", 1, "ties")


@pytest.mark.slow
def test_adaptive_servers_count_a_client_as_often_as_it_is_drawn() -> None:
    mine, theirs = ADAPTIVE["fedams"]
    result = check(synchronous_rounds, mine, theirs(), "float64", 2, "real", True)
    assert result.multiplicity.max() == 3


def ca2fl() -> CA2FL:
    return CA2FL(eta=0.7, num_clients=CLIENTS, dim=len(START))


@pytest.mark.slow
def test_ca2fl_on_rounds() -> None:
    check(synchronous_rounds, server.ca2fl(0.7), ca2fl(), "float64", 0, "real")


@pytest.mark.slow
@pytest.mark.parametrize(("buffer", "precision"), [(1, "float64"), (5, "float32")])
def test_ca2fl_on_buffers(buffer: int, precision: str) -> None:
    result = check(buffered, server.ca2fl(0.7), ca2fl(), precision, 0, "late", 4, buffer)
    twice = [len(set(row)) < len(row) for row in result.client_id.values.tolist()]
    assert any(twice) == (buffer > 1)  # a client arrives twice in one buffer


@pytest.mark.slow
def test_defedavg_iid() -> None:
    check(buffered, server.defedavg_iid(0.7), DeFedAvgIID(eta=0.7), "float64", 0, "late", CLIENTS, 2)


@pytest.mark.parametrize(
    ("receive", "send", "precision"),
    [
        ("keep", "overwrite", "float64"),
        pytest.param("keep", "hold", "float64", marks=pytest.mark.slow),
        pytest.param("consume", "overwrite", "float32", marks=pytest.mark.slow),
        ("consume", "hold", "float64"),
    ],
)
def test_defedavg_niid(receive: str, send: str, precision: str) -> None:
    result = check(
        send_buffers, server.defedavg_niid(0.7), DeFedAvgNonIID(eta=0.7), precision, 0, "late", receive, send
    )
    assert result.multiplicity.max() == 3 and result.staleness.max() > 3


STALE: dict[str, tuple[Any, Callable[[], Any]]] = {
    "fedasync": (
        server.fedasync(0.6, "polynomial", exponent=0.7),
        lambda: oracle.FedAsync(alpha=0.6, weighting="polynomial", a=0.7),
    ),
    "fedasync delta": (
        server.fedasync(0.3, "hinge", exponent=0.5, threshold=3.0, mix="delta"),
        lambda: oracle.FedAsync(alpha=0.3, weighting="hinge", a=0.5, b=3.0, mix="delta"),
    ),
    "fedbuff": (
        server.fedbuff(0.7, staleness="polynomial", momentum=0.3),
        lambda: oracle.FedBuff(eta=0.7, scaling="sqrt", momentum=0.3),
    ),
    "fadas": (
        server.fadas(0.3, delay_scaling="eq77", tau_c=1),
        lambda: oracle.FADAS(eta=0.3, delay_scaling="eq77", tau_c=1),
    ),
}


@pytest.mark.parametrize("name", slow_but(STALE, "fedasync"))
def test_servers_on_stale_rounds(name: str) -> None:
    mine, theirs = STALE[name]
    result = check(stale, mine, theirs(), "float64", 0, "real")
    assert result.staleness.max() == 4


@pytest.mark.slow
def test_a_client_drawn_twice_into_a_stale_round_makes_two_runs() -> None:
    """In the order of places: fedasync applies both, one after another."""
    mine, theirs = STALE["fedasync"]
    clock, steps = stale(5, "real", True)
    assert any(len({arrival.client for arrival in step.arrivals}) < 3 for step in steps)
    with jax.enable_x64(True):
        result = simulate(quadratic(), mine, clock, STEPS)
    expected = np.asarray(reference(quadratic(), theirs(), steps).versions[1:])
    np.testing.assert_allclose(result.observe_w.values[1:], expected, rtol=1e-9)


def lagging(seed: int, kind: str, fraction: float, lag: int) -> Schedule:
    times = durations(np.random.default_rng(seed), CLIENTS, STEPS + 1, kind)
    steps = oracle_semi_async(num_clients=CLIENTS, fraction=fraction, lag=lag, duration=lookup(times), rounds=STEPS)
    return trace(semi_async(fraction=fraction, lag=lag, durations=constant(0)), durations=times), steps


def check_safa(seed: int, kind: str, fraction: float, lag: int, precision: str) -> xr.Dataset:
    wide, tolerance = PRECISIONS[precision]
    clock, steps = lagging(seed, kind, fraction, lag)
    clients = quadratic().clients
    theirs = SAFA(num_samples=[client.num_samples for client in clients], x0=np.asarray(START))
    expected = simulate_safa(steps, ORACLE_GD, theirs, np.asarray(START), clients)
    with jax.enable_x64(wide):
        result = simulate(quadratic(), server.safa(), clock, STEPS)
    assert_same(result, expected, tolerance, ordered=False)
    for name in ("picked", "undrafted", "deprecated"):
        counted = [sum(arrival.kind == name for arrival in step.arrivals) for step in steps]
        assert result[name].values.tolist() == counted
    return result


@pytest.mark.slow
def test_safa_sorts_arrivals_out() -> None:
    result = check_safa(0, "late", 0.33, 1, "float64")
    assert (result.picked > 0).all() and (result.undrafted > 0).any() and (result.deprecated > 0).any()


@pytest.mark.slow
def test_safa_in_single_precision() -> None:
    check_safa(1, "ties", 0.5, 2, "float32")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_everything_on_every_kind_of_schedule(kind: str) -> None:
    def checked(make: Any, mine: Any, theirs: Any, *more: Any) -> None:
        for seed in range(3):  # which are of one program, as long as it is kept
            check(make, mine, theirs(), "float64", seed, kind, *more)

    for mine, theirs in ADAPTIVE.values():
        checked(synchronous_rounds, mine, theirs)
    checked(synchronous_rounds, *ADAPTIVE["fedadam"], True)
    for mine, theirs in STALE.values():
        checked(stale, mine, theirs)
    for buffer in (1, 3, 5):
        checked(buffered, server.ca2fl(0.7), ca2fl, 4, buffer)
        checked(buffered, server.defedavg_iid(0.7), lambda: DeFedAvgIID(eta=0.7), CLIENTS, buffer)
    for receive, send in (("keep", "overwrite"), ("keep", "hold"), ("consume", "overwrite"), ("consume", "hold")):
        checked(send_buffers, server.defedavg_niid(0.7), lambda: DeFedAvgNonIID(eta=0.7), receive, send)
    for fraction in (0.1, 0.34, 0.5, 1.0):
        for lag in (0, 1, 3):
            for seed in range(3):
                check_safa(seed, kind, fraction, lag, "float64")
