"""Cases in which two algorithms are the same, and what a plan trains."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax
import pytest
import xarray as xr

from jaxafl import server
from jaxafl.client import Client
from jaxafl.clock import bernoulli, constant, free_running, interrupting, sampled, synchronous, uniform
from jaxafl.simulation import Simulation
from tests.problems import GD, START, quadratic, simulate

CLIENTS, STEPS = 6, 10
GRADIENT = Client(optax.sgd, learning_rate=1.0, steps=1, batch_size=None)
LONG = Client(optax.sgd, learning_rate=0.1, steps=50, batch_size=None)
TOGETHER = free_running(concurrency=CLIENTS, buffer=CLIENTS, durations=constant(2.0))
ROUNDS = synchronous(durations=constant(2.0))
MIXED = free_running(concurrency=4, buffer=2, durations=uniform(1, 5))
ONE_BY_ONE = free_running(concurrency=4, durations=uniform(1, 5))


@pytest.fixture(autouse=True)
def double_precision() -> Any:
    with jax.enable_x64(True):
        yield


def run(the_server: Any, clock: Any, client: Any = GD) -> xr.Dataset:
    return simulate(quadratic(), the_server, clock, STEPS, client)


def assert_equal(one: xr.Dataset, other: xr.Dataset, steps: slice = slice(None)) -> None:
    np.testing.assert_allclose(one.observe_w[1:][steps], other.observe_w[1:][steps], rtol=1e-12, atol=1e-14)
    assert np.abs(np.asarray(START) - one.observe_w.values[-1]).max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("make", [server.fedbuff, server.defedavg_iid])
def test_equal_speeds_and_a_buffer_of_everyone_are_federated_averaging(make: Any) -> None:
    averaging = run(server.fedavg(0.8, weights="uniform"), ROUNDS)
    buffered = run(make(0.8), TOGETHER)
    assert_equal(averaging, buffered)
    np.testing.assert_array_equal(averaging.time, buffered.time)
    assert (buffered.staleness == 0).all()


def full_gradient_descent(rate: float) -> np.ndarray:
    """x ← x - η Σ (n_i/Σn) ∇f_i(x), x_1 .. x_T."""
    clients = quadratic().clients
    share = np.asarray([client.num_samples for client in clients]) / sum(client.num_samples for client in clients)
    x, versions = np.asarray(START), []
    for _ in range(STEPS):
        x = x - rate * sum(weight * client.gradient(x) for weight, client in zip(share, clients, strict=True))
        versions.append(x)
    return np.asarray(versions)


@pytest.mark.slow
@pytest.mark.parametrize("make", [server.audg, server.psurdg])
def test_sure_uploads_are_gradient_descent(make: Any) -> None:
    result = run(make(0.3), bernoulli(1.0), GRADIENT)
    np.testing.assert_allclose(result.observe_w[1:], full_gradient_descent(0.3), rtol=1e-12)


@pytest.mark.slow
def test_asysg_with_everyone_at_one_speed_is_gradient_descent_on_equal_clients() -> None:
    result = run(server.asysg(0.3), TOGETHER, GRADIENT)
    averaging = run(server.fedavg(0.3, weights="uniform"), ROUNDS, GRADIENT)
    assert_equal(averaging, result)


@pytest.mark.slow
def test_a_buffer_of_one_is_fedasync_on_updates() -> None:
    assert_equal(
        run(server.fedbuff(1.0, staleness="none"), ONE_BY_ONE),
        run(server.fedasync(1.0, mix="delta", staleness="constant"), ONE_BY_ONE),
    )


@pytest.mark.slow
def test_defedavg_iid_is_fedbuff_when_everyone_trains() -> None:
    clock = free_running(concurrency=CLIENTS, buffer=2, durations=uniform(1, 5))
    assert_equal(run(server.fedbuff(0.7, staleness="none"), clock), run(server.defedavg_iid(0.7), clock))


@pytest.mark.slow
def test_the_first_buffer_of_ca2fl_is_that_of_fedbuff() -> None:
    fedbuff, ca2fl = run(server.fedbuff(0.7, staleness="none"), MIXED), run(server.ca2fl(0.7), MIXED)
    assert_equal(fedbuff, ca2fl, slice(1))
    assert np.abs(fedbuff.observe_w[-1] - ca2fl.observe_w[-1]).max() > 1e-3


@pytest.mark.slow
def test_ca2fl_with_everyone_in_the_cohort_is_federated_averaging() -> None:
    assert_equal(run(server.fedavg(0.7, weights="uniform"), ROUNDS), run(server.ca2fl(0.7), ROUNDS))


@pytest.mark.slow
@pytest.mark.parametrize("correction", ["none", "authors"])
def test_fadas_on_rounds_is_fedams(correction: str) -> None:
    assert_equal(run(server.fadas(0.1, bias_correction=correction), ROUNDS),
                 run(server.fedams(0.1, bias_correction=correction), ROUNDS))  # fmt: skip


@pytest.mark.slow
def test_fedadam_without_memory_is_a_normalised_step() -> None:
    """β1 = β2 = 0: x + η D / (|D| + ε) with D the mean update."""
    result = run(server.fedadam(0.1, 0.0, 0.0, 1e-3), ROUNDS)
    first = run(server.fedavg(1.0, weights="uniform"), ROUNDS).observe_w.values[1] - START
    np.testing.assert_allclose(result.observe_w[1], START + 0.1 * first / (np.abs(first) + 1e-3), rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("make", [server.favano, server.quafl])
def test_clients_that_make_no_step_hand_in_where_they_started(make: Any) -> None:
    """All start from x_0 and never end a step: every average is x_0."""
    clock = interrupting(period=1.0, contacted=2, durations=constant(50.0, per="step"))
    result = run(make(), clock)
    assert (result.local_steps == 0).all() and (result.delta_norm == 0).all()
    np.testing.assert_allclose(result.observe_w, np.tile(START, (STEPS + 1, 1)), rtol=1e-12)


@pytest.mark.slow
def test_favano_averages_the_versions_of_idle_clients() -> None:
    """Client 0 works, the others never do: x ← (x + Σ x_s) / (s + 1) where 0 is not contacted."""
    clock = interrupting(period=1.0, contacted=2, durations=constant(np.asarray([0.1] + [1e3] * 5), per="step"))
    result = simulate(quadratic(), server.favano(), clock, 30)
    versions = list(result.observe_w.values)
    checked = 0
    for t in range(30):
        clients = result.client_id.values[t]
        if 0 in clients:
            continue
        starts = [versions[t - int(staleness)] for staleness in result.staleness.values[t]]
        np.testing.assert_allclose(versions[t + 1], (versions[t] + sum(starts)) / 3, rtol=1e-12)
        checked += np.ptp([*starts, versions[t]], axis=0).max() > 1e-3
    assert checked > 3


@pytest.mark.parametrize(
    ("made", "protocol", "client"),
    [
        # a run that is overwritten in the send buffer is never computed
        (server.defedavg_niid(), sampled(drawn=3, durations=uniform(1, 5)), GD),
        # a client trains the steps that it makes until its contact
        (server.favano(), interrupting(period=1.0, contacted=2, durations=uniform(0.2, 3.0, per="step")), LONG),
        # a gradient that is offered again is computed once
        (server.audg(), bernoulli(0.6, 0.2), GRADIENT),
    ],
)
def test_only_what_a_step_takes_is_trained(made: Any, protocol: Any, client: Any) -> None:
    problem = quadratic()
    simulation = Simulation(problem.data, problem.model, client, made, protocol)
    schedule, plan = simulation.schedule(60), simulation.plan(60)
    runs, first = np.unique(schedule.of_arrivals("run_id"), return_index=True)
    assert plan.runs <= len(runs) and plan.needed == schedule.of_arrivals("local_steps")[first].sum()
