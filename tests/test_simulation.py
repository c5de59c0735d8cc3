"""Whole runs: AsyncFedED's loop against its reference and its replay, results, and what is compiled once."""

from __future__ import annotations

import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxafl import server
from jaxafl.client import Client
from jaxafl.clock import constant, free_running, suspension, synchronous, trace, uniform
from jaxafl.clock import schedule as compute_schedule
from jaxafl.models import from_functions
from jaxafl.results import load
from jaxafl.server import Delivery, Needs
from jaxafl.simulation import Simulation
from tests.oracle import server as oracle
from tests.oracle.clock import answered
from tests.problems import (
    GD,
    ORACLE_GD,
    START,
    assert_same,
    observe_w,
    quadratic,
    quadratic_loss,
    reference,
    simulate,
)
from tests.variants import slow_but

STEPS = 30
TIMES = np.random.default_rng(0).uniform(0.5, 2.0, (6, 60))

# name: options of AsyncFedED
RULE: dict[str, Any] = {"base_rate": 0.8, "eps": 0.9, "target_staleness": 1.5, "kappa": 1.3, "max_steps": 30}
ASYNCFEDED: dict[str, dict[str, Any]] = {
    "floor": RULE,
    "truncate": RULE | {"rounding": "truncate"},
    "cosine": RULE | {"distance": "cosine"},
    "clipped": {"base_rate": 0.5, "eps": 0.5, "target_staleness": 4.0, "kappa": 1.0, "max_steps": 5},
}


def asyncfeded_by_hand(problem: Any, options: dict[str, Any], times: np.ndarray) -> Any:
    """The reference, its clock fed with the server's replies."""
    rule = dict(options)
    return reference(
        problem,
        oracle.AsyncFedED(lam=rule.pop("base_rate"), **rule),
        answered(adaptive_clock(times), 6, STEPS, 3),
        ORACLE_GD,
    )  # fmt: skip


def adaptive_clock(times: np.ndarray) -> Any:
    return trace(free_running(concurrency=6, durations=constant(0)), durations=times, per="step")


@pytest.mark.parametrize(
    ("name", "lanes"),
    [
        pytest.param("floor", 1, marks=pytest.mark.slow),
        pytest.param("cosine", 1, marks=pytest.mark.slow),
        pytest.param("truncate", 1, marks=pytest.mark.slow),
        pytest.param("clipped", 1, marks=pytest.mark.slow),
        ("floor", 4),
    ],
)
def test_asyncfeded_follows_its_reference(name: str, lanes: int) -> None:
    problem, options = quadratic(), ASYNCFEDED[name]
    expected = asyncfeded_by_hand(problem, options, TIMES)
    with jax.enable_x64(True):
        result = simulate(problem, server.asyncfeded(**options), adaptive_clock(TIMES), STEPS, lanes=lanes)
    assert_same(result, expected, 1e-9)
    gammas = [record.info.gamma for record in expected.records]
    np.testing.assert_allclose(
        result.gamma[:, 0] if result.gamma.ndim == 2 else result.gamma, gammas, rtol=1e-7, atol=1e-9
    )
    np.testing.assert_allclose(
        result.server_rate.values.ravel(), [record.info.eta for record in expected.records], rtol=1e-8
    )
    replies = [next(iter(record.info.replies.values())) for record in expected.records]
    np.testing.assert_array_equal(result.next_local_steps.values.ravel(), replies)
    assert result.attrs["count_clipped"] == sum(record.info.clipped for record in expected.records)
    assert len(set(replies)) > 2
    assert result.attrs["count_clipped"] > 0 or name != "clipped"


@pytest.mark.slow
def test_asyncfeded_drops_an_empty_update_of_a_model_that_moved() -> None:
    """Client 2 has no curvature: its Δ is 0. Its first update is dropped unless it comes first; K stays."""
    problem, options = quadratic(flat=2), ASYNCFEDED["floor"]
    expected = asyncfeded_by_hand(problem, options, TIMES)
    with jax.enable_x64(True):
        result = simulate(problem, server.asyncfeded(**options), adaptive_clock(TIMES), STEPS)
    assert_same(result, expected, 1e-9)
    dropped = [record.info.dropped for record in expected.records]
    assert sum(dropped) == result.attrs["count_dropped"] > 2
    np.testing.assert_array_equal(result.dropped.values.ravel(), dropped)
    assert np.isinf(result.gamma.values.ravel()[np.asarray(dropped, bool)]).all()


HANGING = uniform(1, 3, per="client") * constant(1.0, per="step") + suspension(0.3)
REPLAYED = {
    "recorded, everyone in flight": adaptive_clock(TIMES),
    "hangs": free_running(concurrency=4, durations=HANGING),
    "ties": free_running(concurrency=3, durations=constant(1.0, per="step")),
    "step": free_running(concurrency=4, durations=HANGING, dispatch="step"),
    "before_step": free_running(concurrency=4, durations=HANGING, before_step=True),
}


def recorded_steps(result: Any) -> np.ndarray:
    """[N, R]: the local steps of every run, from the replies of a run of AsyncFedED that began with 3."""
    steps = np.full((6, STEPS + 2), 3)
    replies = (result.client_id, result.run_index, result.next_local_steps)
    for client, run, reply in zip(*(column.values.ravel() for column in replies), strict=True):
        steps[client, run + 1 :] = reply
    return steps


class WithoutReplies(server.asyncfeded):
    """AsyncFedED whose replies nobody reads, so that its clock can run ahead."""

    requires = Delivery.CONTINUOUS
    needs = Needs(base=True)

    def update(self, params, state, arrivals):
        return super().update(params, state, arrivals)._replace(next_steps=None)


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(REPLAYED, "recorded, everyone in flight"))
def test_a_plan_with_the_recorded_steps_reproduces_asyncfeded(name: str) -> None:
    """The clock beside the training agrees with the same clock run ahead with the recorded K; so do the models."""
    problem, options, clock = quadratic(), ASYNCFEDED["floor"], REPLAYED[name]
    with jax.enable_x64(True):
        online = simulate(problem, server.asyncfeded(**options), clock, STEPS)
        steps = recorded_steps(online)
        client = Client(optax.sgd, learning_rate=0.2, momentum=0.5, steps=steps, batch_size=None)
        planned = simulate(problem, WithoutReplies(**options), clock, STEPS, client, lanes=3)
    assert len(np.unique(online.local_steps)) > 2
    for column in ("client_id", "run_index", "staleness", "local_steps", "next_local_steps"):
        np.testing.assert_array_equal(planned[column], online[column], err_msg=column)
    for column in ("time", "started_at", "arrived_at", "observe_w", "delta_norm", "local_loss"):
        np.testing.assert_allclose(planned[column], online[column], rtol=1e-9, atol=1e-12, err_msg=column)
    schedule = compute_schedule(clock, 6, steps, STEPS, 0)
    np.testing.assert_array_equal(schedule.client, online.client_id)
    np.testing.assert_array_equal(schedule.staleness, online.staleness)


@pytest.mark.slow
def test_other_seeds_and_rates_compile_nothing() -> None:
    """Synchronous rounds have the same shapes whatever the seed; so has an adaptive run."""
    problem = quadratic()
    for make, clock in (
        (server.fedavg, synchronous(cohort=3, durations=uniform(1, 5))),
        (server.asyncfeded, free_running(concurrency=4, durations=uniform(1, 5))),
    ):
        first, again, slower = (
            Simulation(problem.data, problem.model, GD, make(rate), clock).run(12, eval_every=4, seed=seed)
            for rate, seed in ((1.0, 0), (1.0, 1), (0.5, 0))
        )
        assert again.attrs["compile_seconds"] == slower.attrs["compile_seconds"] == 0
        assert not np.array_equal(first.client_id, again.client_id)
        assert abs(float(first.loss[-1]) - float(slower.loss[-1])) > 1e-3


def test_another_seed_traces_nothing() -> None:
    """The model's functions are Python; a run whose programs are kept does not call them again."""
    problem, calls = quadratic(), []

    def counted(function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            calls.append(None)
            return function(*arguments)

        return call

    model = from_functions(counted(lambda key, batch: {"w": jnp.zeros(len(START))}), counted(quadratic_loss))
    simulation = Simulation(problem.data, model, GD, server.fedavg(), synchronous(cohort=3, durations=uniform(1, 5)))
    simulation.run(4, eval_every=4, seed=0)
    before = len(calls)
    simulation.run(4, eval_every=4, seed=1)
    assert len(calls) == before > 0


def test_the_result_has_what_was_asked_for() -> None:
    problem = quadratic()
    clock = free_running(concurrency=4, buffer=2, durations=uniform(1, 5))
    simulation = Simulation(problem.data, problem.model, GD, server.fedbuff(), clock)
    result = simulation.run(10, eval_every=4, seed=5, observe=observe_w)
    assert {name: result.sizes[name] for name in ("step", "arrival", "evaluation")} == {
        "step": 10,
        "arrival": 2,
        "evaluation": 4,
    }
    assert result.eval_step.values.tolist() == [0, 4, 8, 10]
    np.testing.assert_array_equal(result.eval_updates, [0, 8, 16, 20])
    np.testing.assert_array_equal(result.eval_local_steps, [0, 24, 48, 60])
    np.testing.assert_array_equal(result.eval_time, [0, *result.time.values[[3, 7, 9]]])
    # the evaluated model is the one that the server step has made
    x, _ = problem.data.test_arrays()
    for step, loss in zip(result.eval_step.values[1:], result.loss.values[1:], strict=True):
        w = result.observe_w.values[step]
        np.testing.assert_allclose(loss, np.mean(0.5 * np.sum(x[:, :3] * (w - x[:, 3:]) ** 2, axis=1)), rtol=1e-5)
    assert result.attrs["seed"] == 5 and result.attrs["server_steps"] == 10
    assert result.attrs["runs_started"] - result.attrs["runs_never_consumed"] == 20
    assert 0 <= result.attrs["runs_never_consumed"] <= 4


@pytest.mark.slow
def test_a_failed_run_counts_the_runs_that_had_started(tmp_path: Any) -> None:
    """And not those of the schedule that came after it. Seeds may be NumPy's."""
    problem = quadratic()
    client = Client(optax.sgd, learning_rate=3.4e38, steps=3, batch_size=None)
    clock = free_running(concurrency=4, durations=uniform(1, 2))
    simulation = Simulation(problem.data, problem.model, client, server.fedasync(), clock)
    result = simulation.run(200, eval_every=4, seed=np.int64(1), save=tmp_path / "failed.nc")
    assert result.attrs["failed_step"] == 0
    assert (result.attrs["runs_started"], result.attrs["runs_never_consumed"]) == (4, 3)
    assert load(tmp_path / "failed.nc").attrs["seed"] == 1
    schedule = compute_schedule(clock, 6, 3, 200, 1)
    assert schedule.runs_started == 203
    assert schedule.runs_begun.tolist() == list(range(4, 204))


@pytest.mark.slow
def test_asyncfeded_counts_epochs_where_the_client_does() -> None:
    """K_i ← max(1, K_i + ⌊κ (γ̄ - γ_i)⌋) epochs of ⌈n_i / B⌉ mini-batches."""
    problem = quadratic()
    batches = -(-np.asarray(problem.data.counts) // 2)
    assert len(set(batches)) > 2
    algorithm = server.asyncfeded(kappa=1.0, target_staleness=2.0, max_steps=6)
    simulation = Simulation(
        problem.data, problem.model, Client(optax.sgd, learning_rate=0.1, epochs=3, batch_size=2), algorithm,
        free_running(concurrency=4, durations=uniform(1, 2)),
    )  # fmt: skip
    result = simulation.run(40, eval_every=40)
    epochs, seen = {}, set()
    who, made_steps = result.client_id.values[:, 0], result.local_steps.values[:, 0]
    for client, steps, gamma, reply in zip(
        who, made_steps, result.gamma.values, result.next_local_steps.values, strict=True
    ):
        made = epochs.get(int(client), 3)
        assert steps == made * batches[client]
        epochs[int(client)] = min(6, max(1, made + int(np.floor(2.0 - gamma))))
        assert reply == epochs[int(client)]
        seen.add(int(reply))
    assert len(seen) > 2


@pytest.mark.slow
def test_a_saved_result_is_the_result(tmp_path: Any) -> None:
    clock = free_running(concurrency=4, buffer=2, durations=uniform(1, 5))
    simulation = Simulation(quadratic().data, quadratic().model, GD, server.fedbuff(), clock)
    result = simulation.run(10, eval_every=4, seed=5, observe=observe_w, save=tmp_path / "run.nc")
    stored = load(tmp_path / "run.nc")
    assert set(stored.variables) == set(result.variables)
    for name in result.variables:
        np.testing.assert_array_equal(stored[name], result[name], err_msg=name)
    assert stored.attrs == result.attrs


@pytest.mark.slow
def test_the_schedule_alone_is_that_of_the_run() -> None:
    clock = free_running(concurrency=4, buffer=2, durations=uniform(1, 5))
    simulation = Simulation(quadratic().data, quadratic().model, GD, server.fedbuff(), clock)
    schedule, result = simulation.schedule(15, seed=2), simulation.run(15, eval_every=15, seed=2)
    for name in ("client_id", "run_index", "staleness", "started_at", "arrived_at", "time"):
        of_schedule = getattr(schedule, name.removesuffix("_at").removesuffix("_index").removesuffix("_id"))
        np.testing.assert_array_equal(of_schedule, result[name].values)


def test_a_deep_copy_is_the_simulation_itself() -> None:
    """It never changes."""
    problem = quadratic()
    simulation = Simulation(problem.data, problem.model, GD, server.fedbuff(), free_running(durations=uniform(1, 5)))
    assert copy.deepcopy({"one": [simulation]})["one"][0] is simulation
    assert copy.deepcopy(problem.model) is problem.model
