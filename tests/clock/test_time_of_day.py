"""Durations that depend on when a run starts: the engine sees it, and nobody has to say so."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxafl as afl
from jaxafl.clock import Draw, Duration, Run, constant, mac_network, suspension, uniform, worked
from jaxafl.clock import schedule as run_clock
from jaxafl.clock.durations.runs import reads
from jaxafl.options import UserError

HOUR, DAY = 3600.0, 86400.0


class by_day(Duration):
    """Twice as slow at night; finite at any time, NaN included."""

    def draw(self, prepared: Any, run: Run) -> Draw:
        return worked(jnp.where(run.now % DAY < 12 * HOUR, 1.0, 2.0))


class until_morning(Duration):
    waits = True

    def draw(self, prepared: Any, run: Run) -> Draw:
        return Draw(jnp.float64(1), jnp.where(run.now % DAY < 12 * HOUR, 0.0, DAY - run.now % DAY))


def test_what_a_duration_reads_is_seen() -> None:
    assert "now" in reads(by_day(), 3) and "now" in reads(until_morning(), 3)
    assert reads(uniform(1, 2, per="step"), 3) & {"now", "longest", "local_steps"} == {"local_steps"}
    assert "longest" in reads(uniform(1, 2) + suspension(0.1), 3)


def test_a_factor_may_depend_on_the_time_of_day() -> None:
    clock = afl.clock.synchronous(durations=constant(HOUR) * by_day())
    time = run_clock(clock, 2, 1, 20).time
    np.testing.assert_array_equal(np.unique(np.diff(time)), [HOUR, 2 * HOUR])


def test_scaling_a_wait_raises() -> None:
    with pytest.raises(ValueError, match="waits depend on the time at which a run starts"):
        run_clock(afl.clock.synchronous(durations=2 * (until_morning() + 1)), 2, 1, 2)
    with pytest.raises(ValueError, match="interrupting needs durations that are a latency plus a time per local step"):
        run_clock(afl.clock.interrupting(period=1.0, contacted=1, durations=until_morning()), 2, 1, 2)


def test_freezing_all_clients_with_durations_by_time_of_day_raises() -> None:
    with pytest.raises(ValueError, match=r"give mac_network.freeze=False."):
        run_clock(afl.clock.synchronous(durations=by_day() + mac_network(17.0, 2.2)), 2, 1, 2)


@pytest.mark.parametrize(
    ("durations", "words"),
    [
        (constant(0.1, per="step") * by_day(), r"depend on when a run starts \(Run.now\): give a normaliser"),
        (constant(0.1, per="step") + suspension(0.5), r"depend on the longest run before it \(Run.longest\)"),
    ],
    ids=["now", "longest"],
)
def test_favano_does_not_take_some_value_for_all(durations: Duration, words: str) -> None:
    clock = afl.clock.interrupting(period=1.0, contacted=2, durations=durations)
    data, client = afl.data.synthetic(1.0, 1.0, clients=4, max_size=20), afl.Client(steps=4, learning_rate=0.1)
    with pytest.raises(UserError, match=words):
        afl.Simulation(data, afl.models.logistic(10), client, afl.server.favano(), clock).run(2)


def test_a_duration_that_reads_an_unknown_field_raises() -> None:
    class of_version(Duration):
        def draw(self, prepared: Any, run: Any) -> Draw:
            return worked(1.0 + run.version)

    with pytest.raises(AttributeError) as caught:
        run_clock(afl.clock.synchronous(durations=of_version()), 2, 1, 2)
    assert any("`draw` of the duration of_version" in note for note in caught.value.__notes__)
