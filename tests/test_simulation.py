"""Whole runs: AsyncFedED's loop against its reference and its replay, results, and what is compiled once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxafl import server
from jaxafl.client import Client
from jaxafl.clock import constant, free_running, synchronous, trace, uniform
from jaxafl.clock import schedule as compute_schedule
from jaxafl.models import from_functions
from jaxafl.results import load
from tests.oracle import server as oracle
from tests.oracle.clock import answered
from tests.problems import START, assert_same, descent, observe_w, quadratic, quadratic_loss, reference, simulate

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
    theirs = oracle.AsyncFedED(lam=rule.pop("base_rate"), **rule)
    return reference(problem, theirs, answered(adaptive_clock(times), 6, STEPS, 3))


def adaptive_clock(times: np.ndarray) -> Any:
    return trace(free_running(concurrency=6, durations=constant(0)), durations=times, per="step")


@pytest.mark.parametrize(
    ("name", "lanes"), [("floor", 4), *(pytest.param(name, 1, marks=pytest.mark.slow) for name in ASYNCFEDED)]
)
def test_asyncfeded_follows_its_reference(name: str, lanes: int) -> None:
    problem, options = quadratic(), ASYNCFEDED[name]
    expected = asyncfeded_by_hand(problem, options, TIMES)
    with jax.enable_x64(True):
        result = simulate(problem, server.asyncfeded(**options), adaptive_clock(TIMES), STEPS, lanes=lanes)
    assert_same(result, expected, 1e-9)
    gammas = [record.info.gamma for record in expected.records]
    np.testing.assert_allclose(result.gamma.values.ravel(), gammas, rtol=1e-7, atol=1e-9)
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


def test_another_seed_or_rate_traces_nothing() -> None:
    """The model's functions are Python; a run whose programs are kept does not call them again."""
    calls = []

    def counted(function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            calls.append(None)
            return function(*arguments)

        return call

    model = from_functions(counted(lambda key, batch: {"w": jnp.zeros(len(START))}), counted(quadratic_loss))
    clock = synchronous(cohort=3, durations=uniform(1, 5))
    one, slower = (descent(model=model, server=server.fedavg(rate), clock=clock) for rate in (1.0, 0.5))
    one.run(4, eval_every=4, seed=0)
    before = len(calls)
    one.run(4, eval_every=4, seed=1)
    slower.run(4, eval_every=4, seed=0)
    assert len(calls) == before > 0


def test_the_result_has_what_was_asked_for() -> None:
    result = descent().run(10, eval_every=4, seed=5, observe=observe_w)
    assert [result.sizes[name] for name in ("step", "arrival", "evaluation")] == [10, 2, 4]
    assert result.eval_step.values.tolist() == [0, 4, 8, 10]
    np.testing.assert_array_equal(result.eval_updates, [0, 8, 16, 20])
    np.testing.assert_array_equal(result.eval_local_steps, [0, 24, 48, 60])
    np.testing.assert_array_equal(result.eval_time, [0, *result.time.values[[3, 7, 9]]])
    # the evaluated model is the one that the server step has made
    x, _ = quadratic().data.test_arrays()
    for step, loss in zip(result.eval_step.values[1:], result.loss.values[1:], strict=True):
        w = result.observe_w.values[step]
        np.testing.assert_allclose(loss, np.mean(0.5 * np.sum(x[:, :3] * (w - x[:, 3:]) ** 2, axis=1)), rtol=1e-5)
    assert result.attrs["seed"] == 5 and result.attrs["server_steps"] == 10
    assert result.attrs["runs_started"] - result.attrs["runs_never_consumed"] == 20
    assert 0 <= result.attrs["runs_never_consumed"] <= 4


@pytest.mark.slow
def test_a_failed_run_counts_the_runs_that_had_started(tmp_path: Any) -> None:
    """And not those of the schedule that came after it. Seeds may be NumPy's."""
    client = Client(optax.sgd, learning_rate=3.4e38, steps=3, batch_size=None)
    clock = free_running(concurrency=4, durations=uniform(1, 2))
    result = descent(client=client, server=server.fedasync(), clock=clock).run(
        200, eval_every=4, seed=np.int64(1), save=tmp_path / "failed.nc"
    )
    assert result.attrs["failed_step"] == 0
    assert (result.attrs["runs_started"], result.attrs["runs_never_consumed"]) == (4, 3)
    assert load(tmp_path / "failed.nc").attrs["seed"] == 1
    schedule = compute_schedule(clock, 6, 3, 200, 1)
    assert schedule.runs_started == 203
    assert schedule.runs_begun.tolist() == list(range(4, 204))
