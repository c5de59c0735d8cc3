"""Durations that depend on when a run starts: the engine sees it, and nobody has to say so."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxafl as afl
from jaxafl.clock import Draw, Duration, Run, constant, suspension, worked
from jaxafl.clock import schedule as run_clock
from jaxafl.options import UserError
from tests.problems import classifier

HOUR, DAY = 3600.0, 86400.0


class by_day(Duration):
    """Twice as slow at night; finite at any time, NaN included."""

    def draw(self, prepared: Any, run: Run) -> Draw:
        return worked(jnp.where(run.now % DAY < 12 * HOUR, 1.0, 2.0))


def test_a_factor_may_depend_on_the_time_of_day() -> None:
    clock = afl.clock.synchronous(durations=constant(HOUR) * by_day())
    time = run_clock(clock, 2, 1, 20).time
    np.testing.assert_array_equal(np.unique(np.diff(time)), [HOUR, 2 * HOUR])


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
    with pytest.raises(UserError, match=words):
        classifier(server=afl.server.favano(), clock=clock).run(2)


def test_a_duration_that_reads_an_unknown_field_raises() -> None:
    class of_version(Duration):
        def draw(self, prepared: Any, run: Any) -> Draw:
            return worked(1.0 + run.version)

    with pytest.raises(AttributeError) as caught:
        run_clock(afl.clock.synchronous(durations=of_version()), 2, 1, 2)
    assert any("`draw` of the duration of_version" in note for note in caught.value.__notes__)
