"""Every server, step by step, against its slow reference on recorded schedules."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
import pytest
import xarray as xr

import jaxafl as afl
from jaxafl import clock, server
from jaxafl.clock import trace
from tests.oracle import server as oracle
from tests.oracle.client import LocalTraining
from tests.oracle.clock import ServerStep, steps_of
from tests.oracle.simulate import simulate_halos, simulate_regional
from tests.problems import GD, ORACLE_GD, START, assert_same, quadratic, record, reference, simulate
from tests.problems_protocols import durations, in_client_order, sets_without_repeats

CLIENTS, STEPS = 6, 16
REGIONS = [0, 1, 2, 0, 1, 0]
SAMPLES = [client.num_samples for client in quadratic().clients]
X0 = np.asarray(START)
SIZES: dict[str, Any] = {"num_clients": CLIENTS, "dim": 3}
PRECISIONS = {"float64": (True, 1e-9), "float32": (False, 1e-5)}
KINDS = ("real", "ties", "late")
GRADIENT = afl.Client(optax.sgd, learning_rate=1.0, steps=1, batch_size=None)
ORACLE_GRADIENT = LocalTraining(learning_rate=1.0, steps=1)
Steps = Sequence[ServerStep]
Schedule = tuple[Any, Steps]
"""The engine's clock, and the steps of the reference."""


def free(concurrency: int = 4, buffer: int = 1, *, in_order: bool = False, **options: Any) -> Any:
    """FedAsync applies the arrivals of one server step in client order."""

    def made(seed: int, kind: str) -> Schedule:
        recorded = record(seed, CLIENTS, STEPS, kind, concurrency=concurrency, buffer=buffer, **options)
        steps = recorded.oracle(STEPS)
        return recorded.clock(), in_client_order(steps) if in_order else steps

    return made


def replay(protocol: Any, local_steps: Any = None, **recordings: Any) -> Schedule:
    made = trace(protocol, **recordings)
    return made, steps_of(made, CLIENTS, STEPS, local_steps)


def sets_of(rng: np.random.Generator, replacement: bool) -> np.ndarray:
    sets = rng.integers(0, CLIENTS, (STEPS, 3)) if replacement else sets_without_repeats(rng, STEPS, 3, CLIENTS)
    if replacement:
        sets[2], sets[3] = [4, 4, 4], [2, 1, 2]
    return sets


def rounds(replacement: bool = False, local_steps: Any = None) -> Any:
    """Cohorts of three."""

    def made(seed: int, kind: str) -> Schedule:
        rng = np.random.default_rng(seed)
        sets, times = sets_of(rng, replacement), durations(rng, CLIENTS, STEPS, kind)
        return replay(clock.synchronous(cohort=3, replacement=replacement), local_steps, sets=sets, durations=times)

    return made


def stale(replacement: bool = False) -> Any:
    def made(seed: int, kind: str) -> Schedule:
        rng = np.random.default_rng(seed)
        sets, ages = sets_of(rng, replacement), rng.integers(0, 5, (STEPS, 3))
        times = durations(rng, CLIENTS, 3 * STEPS, kind)
        protocol = clock.stale_rounds(
            participants=3, max_staleness=4, durations=clock.constant(0), replacement=replacement
        )
        recorded, steps = replay(protocol, sets=sets, stale=ages, durations=times)
        return recorded, in_client_order(steps)

    return made


def send_buffers(receive: Any, send: Any) -> Any:
    def made(seed: int, kind: str) -> Schedule:
        rng = np.random.default_rng(seed)
        sets, times = sets_of(rng, True), durations(rng, CLIENTS, 500, kind)
        protocol = clock.sampled(drawn=3, durations=clock.constant(0), receive_buffer=receive, send_buffer=send)
        return replay(protocol, sets=sets, durations=times)

    return made


def ticks(seed: int, kind: str) -> Schedule:
    """Nobody arrives at ticks 0, 7 and 8; client 5 never does, client 4 only at the last tick."""
    rng = np.random.default_rng(seed)
    uploads, downloads = rng.random((STEPS, CLIENTS)) < 0.35, rng.random((STEPS, CLIENTS)) < 0.6
    uploads[:, 4:] = uploads[[0, 7, 8]] = False
    uploads[-1, 4] = True
    return replay(clock.bernoulli(0.5), uploads=uploads, downloads=downloads)


class Case(NamedTuple):
    """A server, its reference, a schedule by seed and kind, and local training of both."""

    mine: Any
    theirs: Callable[[], Any]
    schedule: Callable[[int, str], Schedule]
    client: Any = GD
    training: Any = ORACLE_GD


def pair(schedule: Any, mine: Any, theirs: Callable[[], Any]) -> Case:
    return Case(mine, theirs, schedule)


def fadas(correction: Any, scaling: Any) -> Case:
    """FADAS with a rate at which both delay scalings act."""
    options: dict[str, Any] = {
        "b1": 0.8,
        "b2": 0.95,
        "bias_correction": correction,
        "delay_scaling": scaling,
        "tau_c": 1,
    }
    return pair(free(4, 2), server.fadas(0.6, **options), lambda: oracle.FADAS(eta=0.6, **options))


def power(exponent: float) -> Callable[[int], float]:
    return lambda tau: float((1 + tau) ** -exponent)


def hinge(slope: float, threshold: float) -> Callable[[int], float]:
    return lambda tau: 1 / (slope * max(tau - threshold, 0) + 1)


def aged(buffer: int, mine: Any, **options: Any) -> Case:
    return pair(free(4, buffer, in_order=True), mine, lambda: oracle.FedAsync(**options))


def buffered(mine: Any, **options: Any) -> Case:
    return pair(free(4, 2), mine, lambda: oracle.FedBuff(**options))


def table(begin: str, eta: float = 0.7) -> Callable[[], Any]:
    return lambda: oracle.LastUpdates(eta=eta, begin=begin, **SIZES)


def fedstale(p: Any, beta: float = 0.5, eta: float = 0.8, alpha: Any = None) -> Callable[[], Any]:
    shares = np.asarray(SAMPLES) / sum(SAMPLES) if alpha is None else alpha
    return lambda: oracle.FedStale(alpha=shares, p=p, beta=beta, dim=3, eta=eta)


def kardam(dampening: Callable[[int], float], quantile: float, window: int) -> Callable[[], Any]:
    options: dict[str, Any] = {"dampening": dampening, "quantile": quantile, "window": window}
    return lambda: oracle.Kardam(eta=0.7, num_clients=CLIENTS, **options)


EQUAL, P = [1 / CLIENTS] * CLIENTS, np.linspace(0.2, 0.7, CLIENTS)
UNEVEN = tuple(range(1, CLIENTS + 1))
STARTS: dict[str, dict[str, Any]] = {
    "arrival": {"concurrency": 3, "buffer": 2},
    "step, everyone": {"concurrency": 6, "buffer": 6, "dispatch": "step"},
    "before the step": {"concurrency": 3, "buffer": 2, "before_step": True},
    "skew": {"concurrency": 5, "buffer": 3, "dispatch": "step", "start_skew": True},
}
CASES: dict[str, Case] = {
    "fedasync polynomial": aged(1, server.fedasync(0.6, exponent=0.7), alpha=0.6, discount=power(0.7)),
    "fedasync delta, buffer": aged(
        3, server.fedasync(0.3, "hinge", 0.5, 2.0, "delta"), alpha=0.3, discount=hinge(0.5, 2.0), mix="delta"
    ),
    "fedbuff hinge of samples": buffered(
        server.fedbuff(0.7, "hinge", exponent=2.0, threshold=1.0, weights="samples"),
        eta=0.7,
        discount=hinge(2.0, 1.0),
        weights="samples",
    ),
    "fedbuff exponential": buffered(
        server.fedbuff(0.3, "exponential", exponent=0.3, reduce="sum", weights="samples"),
        eta=0.3,
        discount=lambda tau: math.exp(-0.3 * tau),
        reduce="sum",
        weights="samples",
    ),
    "fedbuff function": buffered(
        server.fedbuff(0.7, lambda tau: 1 / (1 + tau**2)), eta=0.7, discount=lambda tau: 1 / (1 + tau**2)
    ),
    "fedbuff momentum": buffered(server.fedbuff(0.7, "none", 0.4), eta=0.7, momentum=0.4),
    **{f"fadas {c} {s}": fadas(c, s) for c in ("none", "authors", "optax") for s in (None, "eq4", "eq77")},
    **{
        f"fedbuff, {name}": pair(
            free(**options), server.fedbuff(0.7), lambda: oracle.FedBuff(eta=0.7, discount=power(0.5))
        )
        for name, options in STARTS.items()
    },
    # buffers and tables
    "ca2fl": pair(free(4, 5), server.ca2fl(0.7), lambda: oracle.CA2FL(eta=0.7, **SIZES)),
    "defedavg_iid": pair(free(CLIENTS, 2), server.defedavg_iid(0.7), lambda: oracle.FedAvg(eta=0.7, weights="uniform")),
    **{
        f"defedavg_niid, {receive}, {send}": pair(
            send_buffers(receive, send), server.defedavg_niid(0.7), lambda: oracle.FedAvg(eta=0.7, weights="uniform")
        )
        for receive in ("keep", "consume")
        for send in ("overwrite", "hold")
    },
    "ia2sgd, buffer": pair(free(CLIENTS, 3), server.ia2sgd(0.7), table("later")),
    "ace": pair(free(CLIENTS), server.ace(0.7), table("full")),
    "aced": pair(free(CLIENTS), server.aced(0.7, 3), lambda: oracle.ACED(max_age=3, eta=0.7, **SIZES)),
    "aced by row": pair(
        free(CLIENTS, 2), server.aced(0.7, 4, "row"), lambda: oracle.ACED(max_age=4, age="row", eta=0.7, **SIZES)
    ),
    "aced, default": pair(free(CLIENTS), server.aced(0.7), lambda: oracle.ACED(max_age=CLIENTS, eta=0.7, **SIZES)),
    "mifa": pair(free(4, 2), server.mifa(0.7), table("later")),
    "mifa, ticks": pair(ticks, server.mifa(0.3, wait=False), table("at once", 0.3)),
    "area": pair(free(4, 3), server.area(), lambda: oracle.AREA(num_clients=CLIENTS, x0=X0)),
    "fedstale, estimate": pair(rounds(), server.fedstale(0.8, estimate=True), fedstale(None)),
    "fedstale, ticks": pair(ticks, server.fedstale(0.5, 0.4, P, "uniform"), fedstale(P, 0.4, 0.5, EQUAL)),
    "fedvarp": pair(
        rounds(), afl.presets.fedvarp(3, clock.constant(0)).server, fedstale([0.5] * CLIENTS, 1.0, 1.0, EQUAL)
    ),
    # rates and weights of their own
    "delay_adaptive": pair(free(), server.delay_adaptive(0.7), lambda: oracle.DelayAdaptive(eta=0.7, c=4)),
    "delayed_nesterov": pair(
        free(),
        server.delayed_nesterov(0.7, 0.8, period=3, activation=0.2),
        lambda: oracle.DelayedNesterov(eta=0.7, beta=0.8, period=3, c=0.2),
    ),
    "delay_adaptive koloskova": pair(
        free(CLIENTS),
        server.delay_adaptive(0.7, "koloskova", smoothness=0.05),
        lambda: oracle.DelayAdaptive(eta=0.7, c=CLIENTS, rule="koloskova", smoothness=0.05),
    ),
    "kardam": pair(free(CLIENTS), server.kardam(0.7), kardam(lambda tau: 1 / (1 + tau), 2 / 3, 26)),
    "kardam, window": pair(
        free(),
        server.kardam(0.7, "exponential", exponent=0.2, quantile=0.4, window=2),
        kardam(lambda tau: math.exp(-0.2 * tau), 0.4, 2),
    ),
    "picky_sgd": pair(free(CLIENTS), server.picky_sgd(0.7, 0.8), lambda: oracle.PickySGD(eta=0.7, distance=0.8)),
    "fedfa": pair(free(), server.fedfa(3), lambda: oracle.FedFa(window=3)),
    "port": pair(
        free(4, 2, dispatch="step"),
        server.port(0.5, 2.0, 4.0),
        lambda: oracle.PORT(similarity=0.5, staleness=2.0, bound=4.0),
    ),
    # rounds
    "fedavg uniform": pair(rounds(), server.fedavg(0.8, "uniform"), lambda: oracle.FedAvg(eta=0.8, weights="uniform")),
    "fedavg, drawn twice": pair(rounds(True), server.fedavg(), oracle.FedAvg),
    "fedadagrad": pair(
        rounds(), server.fedadagrad(0.2, 0.8, 1e-2), lambda: oracle.Adaptive("adagrad", eta=0.2, b1=0.8, eps=1e-2)
    ),
    "fedadam": pair(rounds(), server.fedadam(0.1), lambda: oracle.Adaptive("adam", eta=0.1)),
    "fedyogi": pair(
        rounds(),
        server.fedyogi(0.2, 0.8, 0.95, 1e-2),
        lambda: oracle.Adaptive("yogi", eta=0.2, b1=0.8, b2=0.95, eps=1e-2),
    ),
    "fedams, drawn twice": pair(
        rounds(True), server.fedams(0.1, 0.8, 0.95), lambda: oracle.FADAS(eta=0.1, b1=0.8, b2=0.95)
    ),
    "fedams as its authors run it": pair(
        rounds(),
        server.fedams(0.1, eps=0.0, bias_correction="authors", max_init=1e-3),
        lambda: oracle.FADAS(eta=0.1, eps=0.0, bias_correction="authors", max_init=1e-3),
    ),
    **{
        f"fednova {weights}": Case(
            server.fednova(0.8, weights),  # type: ignore[arg-type]
            lambda weights=weights: oracle.FedNova(eta=0.8, weights=weights),
            rounds(local_steps=UNEVEN),
            afl.Client(learning_rate=0.2, steps=UNEVEN, batch_size=None),
            LocalTraining(learning_rate=0.2),
        )
        for weights in ("samples", "uniform")
    },
    "fadas, stale rounds": pair(
        stale(),
        server.fadas(0.3, delay_scaling="eq77", tau_c=1),
        lambda: oracle.FADAS(eta=0.3, delay_scaling="eq77", tau_c=1),
    ),
    # both runs of a client are applied, one after another
    "fedasync, drawn twice": pair(
        stale(True), server.fedasync(0.6, exponent=0.7), lambda: oracle.FedAsync(alpha=0.6, discount=power(0.7))
    ),
    # ticks: an empty one changes neither the parameters nor momentum, moments or counts
    "fedbuff, ticks": pair(
        ticks, server.fedbuff(0.5, momentum=0.5), lambda: oracle.FedBuff(eta=0.5, discount=power(0.5), momentum=0.5)
    ),
    "fadas, ticks": pair(
        ticks,
        server.fadas(0.3, bias_correction="authors", delay_scaling="eq4", tau_c=2),
        lambda: oracle.FADAS(eta=0.3, bias_correction="authors", delay_scaling="eq4", tau_c=2),
    ),
    "audg": Case(server.audg(0.3), lambda: oracle.AUDG(eta=0.3, num_samples=SAMPLES), ticks, GRADIENT, ORACLE_GRADIENT),
    "psurdg": Case(
        server.psurdg(0.1), lambda: oracle.PSURDG(eta=0.1, num_samples=SAMPLES, dim=3), ticks, GRADIENT, ORACLE_GRADIENT
    ),
    "asysg": Case(
        server.asysg(0.2), lambda: oracle.FedAvg(eta=0.2, weights="uniform"), free(4, 3), GRADIENT, ORACLE_GRADIENT
    ),
}
QUICK = {"fedasync polynomial", "fedbuff momentum", "fadas authors eq77", "defedavg_niid, consume, hold", "aced by row"}
QUICK |= {"kardam, window", "psurdg"}


def compared(
    expected: Any, mine: Any, made: Any, precision: str, steps: int = STEPS, client: Any = GD, ordered: bool = False
) -> xr.Dataset:
    """The engine's run, which is the reference's, whatever the order within a step unless it is `ordered`."""
    wide, tolerance = PRECISIONS[precision]
    with jax.enable_x64(wide):
        result = simulate(quadratic(), mine, made, steps, client)
    assert_same(result, expected, tolerance, ordered)
    return result


def check(name: str, kind: str, precision: str, seed: int) -> xr.Dataset:
    """Compares the engine's run with the reference's, whatever the order within a step."""
    one = CASES[name]
    wide, tolerance = PRECISIONS[precision]
    made, steps = one.schedule(seed, kind)
    expected = reference(quadratic(), one.theirs(), steps, one.training)
    with jax.enable_x64(wide):
        result = simulate(quadratic(), one.mine, made, STEPS, one.client)
    if name == "fedasync, drawn twice":  # whose two runs of one client and step have no order
        np.testing.assert_allclose(result.observe_w, np.asarray(expected.versions), rtol=tolerance, atol=tolerance)
    else:
        assert_same(result, expected, tolerance, ordered=False)
    return result


@pytest.mark.parametrize("name", sorted(QUICK))
def test_servers_follow_their_references(name: str) -> None:
    check(name, "late", "float64", 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_servers_follow_their_references_on_every_kind_of_schedule(name: str) -> None:
    for seed, kind in enumerate(("real", "ties", "ties", "late")):
        check(name, kind, "float64" if seed else "float32", seed)


@pytest.mark.parametrize(
    ("kind", "fraction", "lag", "precision"),
    [
        ("late", 0.33, 1, "float64"),
        pytest.param("ties", 0.5, 2, "float32", marks=pytest.mark.slow),
        *(
            pytest.param(kind, fraction, lag, "float64", marks=pytest.mark.slow)
            for kind in KINDS
            for fraction, lag in ((0.1, 0), (0.5, 3), (1.0, 1))
        ),
    ],
)
def test_safa(kind: str, fraction: float, lag: int, precision: str) -> None:
    times = durations(np.random.default_rng(0), CLIENTS, STEPS + 1, kind)
    made, steps = replay(clock.semi_async(fraction=fraction, lag=lag, durations=clock.constant(0)), durations=times)
    expected = reference(quadratic(), oracle.SAFA(num_samples=SAMPLES, x0=X0), steps)
    result = compared(expected, server.safa(), made, precision)
    for name in ("picked", "undrafted", "deprecated"):
        counted = [sum(arrival.kind == name for arrival in step.arrivals) for step in steps]
        assert result[name].values.tolist() == counted and (kind != "late" or lag != 1 or fraction == 1 or sum(counted))


MOST, PERIOD, CONTACTED = 4, 2.0, 3
LOCAL = afl.Client(optax.sgd, learning_rate=0.2, momentum=0.5, steps=MOST, batch_size=None)
ORACLE_LOCAL = LocalTraining(learning_rate=0.2, momentum=0.5)


def contacts(seed: int, constant_times: bool) -> tuple[Any, Steps, np.ndarray]:
    """Returns the clock, the steps, and seconds per step [client, run]; client 0 seldom ends one, 5 never arrives."""
    rng = np.random.default_rng(seed)
    sets = sets_without_repeats(rng, STEPS, CONTACTED, CLIENTS - 1)
    times = rng.integers(1, 12, (CLIENTS, 1 if constant_times else STEPS + 1)) / 4
    times = np.broadcast_to(times, (CLIENTS, STEPS + 1)).copy()
    times[0] = 4.5
    protocol = clock.interrupting(period=PERIOD, contacted=CONTACTED, durations=clock.constant(0))
    return *replay(protocol, MOST, sets=sets, durations=times, per="step"), times


def normalisers(times: np.ndarray, which: int) -> list[float]:
    """Returns E[min(E, K)] or P(E > 0) of every client, whose recorded times are equally likely."""
    how: dict[str, Any] = {"period": PERIOD, "contact_probability": CONTACTED / CLIENTS, "max_steps": MOST}
    return [oracle.gap_expectations(step_times=row.tolist(), **how)[which] for row in times]


@pytest.mark.parametrize(
    ("reweight", "own", "precision", "seed"),
    [
        ("deterministic", False, "float64", 0),
        pytest.param("deterministic", False, "float32", 1, marks=pytest.mark.slow),
        pytest.param("stochastic", False, "float64", 3, marks=pytest.mark.slow),
        pytest.param("stochastic", True, "float64", 4, marks=pytest.mark.slow),
    ],
)
def test_favano(reweight: Any, own: bool, precision: str, seed: int) -> None:
    """Numbers of one's own stand for E[min(E_i, K)], or for the P(E_i > 0) that multiplies the steps made."""
    made, steps, times = contacts(seed, seed % 2 == 0)
    numbers = [1.0, 2.0, 0.5, 3.0, 1.5, 9.0] if own else normalisers(times, int(reweight == "stochastic"))
    theirs = oracle.FAVANO(normaliser=numbers, reweight=reweight)
    expected = reference(quadratic(), theirs, steps, ORACLE_LOCAL)
    mine = server.favano(reweight, np.asarray(numbers) if own else None)
    result = compared(expected, mine, made, precision, client=LOCAL)
    assert result.local_steps.min() == 0 and result.local_steps.max() == MOST
    factor = result.local_steps.values if reweight == "stochastic" else 1
    np.testing.assert_allclose(result.normaliser, factor * np.asarray(numbers)[result.client_id.values], rtol=1e-5)


@pytest.mark.parametrize(
    ("scaled", "precision", "seed"), [(True, "float64", 0), pytest.param(False, "float32", 1, marks=pytest.mark.slow)]
)
def test_quafl(scaled: bool, precision: str, seed: int) -> None:
    made, steps, _ = contacts(seed, False)
    factor = (CONTACTED + 1) / CONTACTED if scaled else 1.0
    training = dataclasses.replace(ORACLE_LOCAL, learning_rate=factor * ORACLE_LOCAL.learning_rate)
    expected = reference(quadratic(), oracle.QuAFL(num_clients=CLIENTS, x0=X0), steps, training)
    result = compared(expected, server.quafl(scaled), made, precision, client=LOCAL)
    assert result.local_steps.min() == 0 and result.local_steps.max() == MOST


@pytest.mark.parametrize(
    ("kind", "precision"),
    [("late", "float64"), *(pytest.param(kind, "float32", marks=pytest.mark.slow) for kind in ("real", "ties"))],
)
def test_halos(kind: str, precision: str) -> None:
    times = durations(np.random.default_rng(5), CLIENTS, 60, kind)
    made = clock.tiers(regions=REGIONS, durations=clock.recorded(times), up=[0.5, 0.0, 3.0], down=1.0, after=2)
    regions = clock.schedule(made, CLIENTS, 1, 60).columns["region"].tolist()
    regional = [oracle.DelayedNesterov(eta=0.9, beta=0.6, period=3, c=0.2) for _ in range(3)]
    world = oracle.DelayedNesterov(eta=0.8, beta=0.7, period=2, c=0.1)
    steps, clients = steps_of(made, CLIENTS, 60), quadratic().clients
    expected = simulate_halos(steps, regions, 2, 0.3, ORACLE_GD, regional, world, X0, clients)
    mine = server.halos(0.8, 0.7, 2, 0.1, 0.9, 0.6, 3, 0.2, 0.3)
    compared(expected, mine, made, precision, 60, ordered=True)
    assert not np.allclose(expected.versions[-1], X0)


WAITING = {"up": [0.5, 0.0, 3.0], "down": 1.0, "after": 2, "waits": True}


@pytest.mark.parametrize(
    ("mine", "shares", "options"),
    [
        (server.fedat(), lambda times: times[::-1] / times.sum(), {"cohort": 2}),
        (server.hierfavg(), lambda _: np.bincount(REGIONS, SAMPLES) / sum(SAMPLES), WAITING),
    ],
)
def test_rounds_of_regions(mine: Any, shares: Any, options: Any) -> None:
    times = clock.recorded(durations(np.random.default_rng(5), CLIENTS, 60, "real"))
    made = clock.regional_rounds(regions=REGIONS, durations=times, **options)
    steps, clients = steps_of(made, CLIENTS, 40), quadratic().clients
    expected = simulate_regional(steps, made, shares, ORACLE_GD, X0, clients)
    compared(expected, mine, made, "float64", 40, ordered=True)
    assert not np.allclose(expected.versions[-1], X0)


@pytest.mark.parametrize(
    ("made", "protocol", "client"),
    [
        # a run that is overwritten in the send buffer is never computed
        (server.defedavg_niid(), clock.sampled(drawn=3, durations=clock.uniform(1, 5)), GD),
        # a client trains the steps that it makes until its contact
        (
            server.favano(),
            clock.interrupting(period=1.0, contacted=2, durations=clock.uniform(0.2, 3.0, per="step")),
            afl.Client(optax.sgd, learning_rate=0.1, steps=50, batch_size=None),
        ),
        # a gradient that is offered again is computed once
        (server.audg(), clock.bernoulli(0.6, 0.2), GRADIENT),
    ],
)
def test_only_what_a_step_takes_is_trained(made: Any, protocol: Any, client: Any) -> None:
    simulation = afl.Simulation(quadratic().data, quadratic().model, client, made, protocol)
    schedule, plan = simulation.schedule(60), simulation.plan(60)
    runs, first = np.unique(schedule.of_arrivals("run_id"), return_index=True)
    assert plan.runs <= len(runs) and plan.needed == schedule.of_arrivals("local_steps")[first].sum()
