"""What all clocks have in common: options as fields, schedules, replay, clocks of one's own."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxafl.clock as clocks
from jaxafl.clock import Clock, Delivery, constant, trace, uniform
from jaxafl.clock import schedule as run_clock
from jaxafl.clock.contract import Workload
from jaxafl.device import as_arrays
from jaxafl.device.keys import seed_key
from tests.variants import slow_but

DURATIONS = uniform(1, 5)
MADE: dict[str, Clock] = {
    "bernoulli": clocks.bernoulli(0.5, 0.7),
    "free_running": clocks.free_running(concurrency=3, durations=DURATIONS, buffer=2),
    "interrupting": clocks.interrupting(period=2.0, contacted=2, durations=uniform(0.1, 1, per="step")),
    "sampled": clocks.sampled(drawn=2, durations=DURATIONS),
    "semi_async": clocks.semi_async(fraction=0.4, lag=1, durations=DURATIONS),
    "stale_rounds": clocks.stale_rounds(participants=2, max_staleness=2, durations=DURATIONS),
    "synchronous": clocks.synchronous(cohort=2, durations=DURATIONS),
}
PARTS = [
    getattr(clocks, name)
    for name in clocks.__all__
    if name[0].islower() and name not in ("schedule", "trace", "no_starts", "worked")
]


@pytest.mark.parametrize("part", PARTS)
def test_every_option_is_documented(part: Any) -> None:
    described = inspect.cleandoc(part.__doc__).split("Args:")[1]  # Python 3.13 has done so itself
    hidden = {f.name for f in dataclasses.fields(part) if f.metadata.get("recording") or "option" in f.metadata}
    for option in set(inspect.signature(part).parameters) - hidden:
        assert re.search(rf"^    {option}: \S", described, re.MULTILINE), option


@pytest.mark.parametrize("name", slow_but(MADE, "semi_async", "bernoulli"))
def test_arrivals_are_what_the_clock_delivers(name: str) -> None:
    clock = MADE[name]
    schedule = run_clock(clock, 5, 4, 60)
    delivers, mask = clock.delivers, schedule.mask
    assert schedule.protocol == clock.name == name and schedule.kinds == clock.kinds
    assert (schedule.staleness[mask] > 0).any() == (Delivery.STALE in delivers)
    assert mask.any(axis=1).all() or Delivery.EMPTY in delivers
    if Delivery.BY_CLIENT in delivers:
        assert (schedule.client == np.arange(5)).all()
    if Delivery.MULTIPLE not in delivers:
        assert (schedule.multiplicity[mask] == 1).all()
    if Delivery.PARTIAL not in delivers:
        assert (schedule.local_steps[mask] == 4).all()
    taken = schedule.run_id[mask]
    assert (len(set(taken.tolist())) < len(taken)) == (Delivery.REPEATED in delivers)
    assert (schedule.kind[mask] > 0).any() == (Delivery.KINDS in delivers)
    assert schedule.runs_started > taken.max()
    assert repr(schedule).startswith(f"Schedule(protocol={name}, clients=5, server_steps=60, arrivals={mask.sum()}, ")


@pytest.mark.parametrize("name", slow_but(MADE, "synchronous"))
def test_clocks_are_pytrees(name: str) -> None:
    """A batch of clocks runs under `vmap` as each by itself."""
    clock = MADE[name]
    with jax.enable_x64(True):
        arrays = as_arrays(clock, jnp.float64)
        batch = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), arrays)
        workload = Workload(jnp.int32(3), 5)

        def first(clock: Clock) -> Any:
            return clock.next(clock.init(seed_key(0), 5), workload)[1].time

        both = jax.jit(jax.vmap(first))(batch)
    np.testing.assert_allclose(both, run_clock(clock, 5, 3, 1).time[0])


def test_a_schedule_needs_no_placeholder_durations() -> None:
    times = np.random.default_rng(0).uniform(1, 5, (4, 30))
    options: dict[str, Any] = {"concurrency": 3, "buffer": 2}
    starts = [0, 1, 2, 3, 0, 1]
    made = trace(clocks.free_running(**options, durations=constant(0)), durations=times, starts=starts)
    by_class = trace(clocks.free_running, **options, durations=times, starts=starts)
    for name in ("client", "time", "run_id"):
        mine, theirs = (getattr(run_clock(clock, 4, 1, 2), name) for clock in (by_class, made))
        np.testing.assert_array_equal(mine, theirs)
    with pytest.raises(TypeError, match="free_running draws no 'sets'; it can replay: durations, starts"):
        trace(clocks.free_running, **options, durations=times, sets=starts)
    with pytest.raises(ValueError, match="the number of clients in flight is not given"):
        run_clock(trace(clocks.free_running, durations=times), 4, 1, 2)


def test_rounds_last_a_second_by_default() -> None:
    np.testing.assert_array_equal(run_clock(clocks.synchronous(), 4, 1, 3).time, [1, 2, 3])


class deadline(clocks.synchronous):
    """Rounds that end after a while, whoever has arrived.

    Args:
        seconds: how long a round lasts.
    """

    seconds: float = 2.0

    delivers = clocks.synchronous.delivers | Delivery.EMPTY

    def next(self, state: Any, workload: Workload) -> Any:
        after, step = super().next(state, workload)
        end = state.now + self.seconds
        mask = step.mask & (step.runs.arrived <= end)
        return after._replace(now=end), step._replace(time=end, mask=mask)


def test_a_clock_of_ones_own() -> None:
    clock = deadline(cohort=4, durations=uniform(1, 5), seconds=3.0)
    schedule = run_clock(clock, 9, 1, 200)
    assert schedule.protocol == clock.name == "deadline" and repr(clock).startswith("deadline(cohort=4")
    np.testing.assert_array_equal(schedule.time, 3.0 * np.arange(1, 201))
    assert abs(schedule.mask.mean() - 0.5) < 0.1
    with pytest.raises(ValueError, match="deadline: cohort=10 is more than the 9 clients"):
        run_clock(deadline(cohort=10), 9, 1, 5)
