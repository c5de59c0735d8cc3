"""A class with methods of its own promises only what it says itself."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import optax
import pytest

import jaxafl as afl
from jaxafl import clock as clocks
from jaxafl.clock.order import steps_change_order

DATA = afl.data.synthetic(1.0, 1.0, clients=6, max_size=40)
PER_STEP = clocks.constant(0.05, per="step") * clocks.uniform(1, 5, per="client")


class deadline(clocks.synchronous):
    """The round of the README."""

    seconds: float = 4.0

    def next(self, state: Any, workload: Any) -> Any:
        after, step = super().next(state, workload)
        first = jnp.min(step.runs.arrived, where=step.mask, initial=jnp.inf)
        time = jnp.clip(state.now + self.seconds, first, step.time)
        return after._replace(now=time), step._replace(time=time, mask=step.mask & (step.runs.arrived <= time))


class says_so(deadline):
    order_free = True


def simulation(clock: clocks.Clock) -> afl.Simulation:
    client = afl.Client(optax.adam, learning_rate=0.03, epochs=30, batch_size=16, patience=1, charge="executed")
    return afl.Simulation(DATA, afl.models.logistic(10), client, afl.server.fedavg(), clock)


def test_who_arrives_is_not_said_of_a_next_of_ones_own() -> None:
    """Runs that stop early would be charged for all of their epochs when it is decided who is late."""
    assert clocks.synchronous.order_free and clocks.stale_rounds.order_free and not deadline.order_free
    with pytest.raises(ValueError, match=r"clocks with `order_free = True` in the class that defines `next`"):
        simulation(deadline(durations=PER_STEP)).run(3)


def test_what_a_clock_says_wrongly_is_found_out() -> None:
    assert says_so.order_free
    with pytest.raises(ValueError, match=r"clock says_so says .*`order_free`.*: say order_free = False"):
        simulation(says_so(durations=PER_STEP)).run(3)


@pytest.mark.parametrize(
    ("clock", "changes"),
    [
        (clocks.synchronous(durations=PER_STEP), False),
        (clocks.synchronous(cohort=3, durations=PER_STEP), False),
        (clocks.synchronous(cohort=3, replacement=True, durations=PER_STEP + clocks.suspension(0.1)), False),
        (clocks.stale_rounds(participants=3, max_staleness=2, durations=PER_STEP), False),
        (clocks.bernoulli(0.5), False),
        (clocks.free_running(concurrency=2, durations=PER_STEP), True),
        (clocks.sampled(drawn=2, durations=PER_STEP), True),
        (clocks.semi_async(fraction=0.5, lag=2, durations=PER_STEP), True),
        (deadline(durations=PER_STEP), True),
    ],
    ids=repr,
)
def test_whether_durations_change_who_arrives_is_seen(clock: clocks.Clock, changes: bool) -> None:
    assert steps_change_order(clock, 6) == changes
    assert not (clock.order_free and changes)


def test_times_per_step_are_those_of_the_draws() -> None:
    """FAVANO would divide by the expectation of the distribution function."""

    class twice(clocks.constant):
        def draw(self, prepared: Any, run: Any) -> Any:
            return clocks.worked(2 * super().draw(prepared, run).work)

    one, two = (made(1.5, per="step").step_times(2)[1].mean() for made in (clocks.constant, twice))
    assert (one, two) == (1.5, 3.0)


def test_transfers_that_stop_everyone_count_in_any_option() -> None:
    class named(clocks.synchronous):
        compute: clocks.Duration = clocks.mac_network(17.0, 2.2)

    assert named().pause == clocks.mac_network(17.0, 2.2).pause > 0


def test_clocks_take_all_completed_runs_unless_their_options_or_arrives_say_otherwise() -> None:
    class picky(clocks.free_running):
        def arrives(self, rules: Any, event: Any) -> Any:
            return super().arrives(rules, event)._replace(refused=event.run.client == 0)

    given: dict[str, Any] = dict(concurrency=4, durations=PER_STEP)
    assert clocks.free_running(**given).takes_all
    assert clocks.free_running(**given, max_staleness=3, on_bound="wait").takes_all
    assert not clocks.free_running(**given, max_staleness=3).takes_all
    assert not clocks.free_running(**given, lost=0.1).takes_all
    assert not picky(**given).takes_all
    assert clocks.synchronous().takes_all and not clocks.synchronous(lost=0.1).takes_all
    assert not deadline(durations=PER_STEP).takes_all
