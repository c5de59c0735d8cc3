"""A server step with fewer arrivals than its clock can bring, ahead of training, in lockstep and beside training."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxafl as afl
from jaxafl.callbacks.hooks import Hook
from jaxafl.clock import Delivery
from jaxafl.engine.lockstep import lockstep
from jaxafl.engine.loop import run_to_end
from jaxafl.engine.online import online
from jaxafl.engine.planned import planned
from jaxafl.engine.problem import Speed
from jaxafl.options import UserError, static
from jaxafl.server import Needs, Outcome, Server, norm
from tests.variants import slow_but

STEPS = 6
WAYS = ("planned", "lockstep", "online")


class gaps(afl.clock.free_running):
    """`free_running` that leaves out one of its two arrivals, the first, the second, or both, in turn."""

    delivers = afl.clock.free_running.delivers | Delivery.EMPTY

    def next(self, state: Any, workload: Any) -> Any:
        after, step = super().next(state, workload)
        left_out = jnp.asarray([[0, 1], [1, 0], [0, 0]], bool)[state.version % 3]
        return after, step._replace(mask=step.mask & left_out)


class silent_gaps(gaps):
    """The same, without a word of it."""

    delivers = afl.clock.free_running.delivers


class late_gaps(gaps):
    """A step says of its arrivals that they arrived after it."""

    def next(self, state: Any, workload: Any) -> Any:
        after, step = super().next(state, workload)
        return after, step._replace(runs=step.runs._replace(arrived=step.runs.arrived + 1))


class watching(Server):
    """x ← x + 1, and what padding holds, added up."""

    replies: bool = static(default=False)
    empty: bool = static(default=False)

    accepts = Server.accepts | Delivery.EMPTY
    counters = ("steps",)

    @property
    def needs(self) -> Needs:
        return Needs(replies=self.replies, empty_steps=self.empty)

    def update(self, params: Any, state: Any, arrivals: Any) -> Outcome:
        def held(mask: Any) -> Any:
            columns = (arrivals.staleness, arrivals.samples, arrivals.local_steps, arrivals.loss)
            each = [jnp.where(mask, jnp.abs(column), 0).sum() for column in columns]
            delta = jax.tree.map(lambda d: jnp.where(mask.reshape(-1, *(1,) * (d.ndim - 1)), d, 0), arrivals.delta)
            return norm(delta) + sum(each)

        info = {"padding": held(~arrivals.mask), "updates": held(arrivals.mask), "steps": jnp.float32(1)}
        info["each"] = 1 + arrivals.client
        replies = arrivals.local_steps if self.replies else None
        return Outcome(jax.tree.map(lambda x: x + 1, params), state, info, next_steps=replies)


def simulation(clock: type[gaps], way: str, **options: Any) -> afl.Simulation:
    return afl.Simulation(
        afl.data.synthetic(1.0, 1.0, clients=6, max_size=60),
        afl.models.logistic(10),
        afl.Client(optax.sgd, learning_rate=0.01, steps=3, batch_size=8),
        watching(replies=way == "online", **options),
        clock(concurrency=4, buffer=2, durations=afl.clock.uniform(1.0, 2.0)),
    )


@functools.cache  # two tests look at the same runs
def trained(clock: type[gaps], way: str, **options: Any) -> Any:
    sim = simulation(clock, way, **options)
    sim.check()
    recording = sim.recording(lambda params: {"first": jax.tree.leaves(params)[0].ravel()[0]})
    problem = sim.problem(0, recording)
    if way == "online":
        execution = online(problem, STEPS, Speed())
    else:
        ahead = sim.compute_schedule(STEPS, 0)
        execution = planned([problem], ahead, STEPS, Speed())
        if way == "lockstep":
            schedules, problems = [ahead, sim.compute_schedule(STEPS, 1)], [problem, sim.problem(1, recording)]
            execution = lockstep(problems, schedules, STEPS, Speed(2))
    found = run_to_end(execution, STEPS, STEPS, Hook(), 0.0)[0]
    return found, execution.updates(STEPS) // len(execution.problems)


@pytest.mark.parametrize("way", slow_but(WAYS, "online"))
def test_padding_is_zero_and_an_empty_step_changes_nothing(way: str) -> None:
    found, updates = trained(gaps, way)
    arrivals = found.schedule.mask.sum(axis=1)
    np.testing.assert_array_equal(arrivals, [1, 1, 0] * 2)
    assert updates == arrivals.sum()
    np.testing.assert_array_equal(found.records["padding"], np.where(arrivals > 0, 0, np.nan))
    np.testing.assert_array_equal(found.records["updates"] > 0, arrivals > 0)
    np.testing.assert_array_equal(found.records["steps"], arrivals > 0)
    np.testing.assert_array_equal(found.records["each"] > 0, found.schedule.mask)
    np.testing.assert_array_equal(np.diff(found.records["observe_first"]), (arrivals > 0).astype(np.float32))


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_asks_for_empty_steps_takes_them(way: str) -> None:
    found, _ = trained(gaps, way, empty=True)
    np.testing.assert_array_equal(found.records["padding"], 0)
    np.testing.assert_array_equal(found.records["steps"], 1)
    np.testing.assert_array_equal(np.diff(found.records["observe_first"]), 1)


@pytest.mark.slow
def test_who_is_left_out_does_not_change_the_updates_of_the_others() -> None:
    """The runs are the same ahead of training and beside it, whichever entry is padding."""
    ahead, beside = (trained(gaps, way)[0] for way in ("planned", "online"))
    for name in ("delta_norm", "local_loss", "updates"):
        mask = np.broadcast_to(ahead.schedule.mask.T, (2, STEPS)).T if ahead.records[name].ndim > 1 else slice(None)
        np.testing.assert_allclose(ahead.records[name][mask], beside.records[name][mask], rtol=1e-6)


@pytest.mark.parametrize("way", slow_but(WAYS, "planned"))
@pytest.mark.parametrize(
    ("clock", "message"), [(silent_gaps, "need Delivery.EMPTY"), (late_gaps, "started <= arrived <= time")]
)
def test_a_schedule_that_cannot_have_happened_is_refused(way: str, clock: type[gaps], message: str) -> None:
    with pytest.raises(UserError, match=message):
        trained(clock, way)


class wordless(gaps):
    """Returns no state."""

    def next(self, state: Any, workload: Any) -> Any:
        return super().next(state, workload)[1]


@pytest.mark.parametrize("way", slow_but(WAYS, "planned"))
def test_a_clock_that_returns_something_else_is_refused(way: str) -> None:
    with pytest.raises(UserError, match="must return"):
        trained(wordless, way)
