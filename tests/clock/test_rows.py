"""Schedules whose server steps are several rows of arrivals, against those of whole server steps."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from jaxafl import clock
from jaxafl.clock import Schedule
from jaxafl.clock import schedule as run_clock
from jaxafl.clock.ragged import Ragged
from jaxafl.clock.schedules import Clockwork
from jaxafl.clock.tables import cut, first_steps, joined
from jaxafl.clock.versions import rows_of_versions
from jaxafl.device import compiled, float64_on_cpu, on_device

CLIENTS, STEPS = 24, 20
DURATIONS = clock.uniform(1, 5)
COLUMNS = ("client", "run", "run_id", "version", "reference", "local_steps", "started", "arrived", "kind")
FREE = clock.free_running(concurrency=CLIENTS, durations=DURATIONS)
PROTOCOLS: dict[str, Any] = {
    "ringleader": clock.ringleader(durations=DURATIONS),
    "harmonic": clock.harmonic(durations=DURATIONS, batch=40.0, max_arrivals=300),
    "every_buffer": clock.every_buffer(durations=DURATIONS, buffers=20),
    "period": clock.free_running(concurrency=CLIENTS, durations=DURATIONS, period=3.0, max_arrivals=40),
    "compass": clock.compass(durations=DURATIONS, min_steps=5, max_steps=30),
    "warm_up": clock.warm_up(FREE),
    "warm_up, next": clock.warm_up(FREE, first="next"),
    "warm_up, all": clock.warm_up(FREE, first="all"),
}


def whole(protocol: Any) -> Schedule:
    """Returns the schedule of the clock as one of the user, whose server steps are gathered one by one and checked."""
    work = Clockwork(protocol, CLIENTS, 1, STEPS, 1)
    work.user_defined = True
    return work.complete(STEPS)


@pytest.mark.slow  # by default `tests/clock/test_events.py` compares them with event loops
@pytest.mark.parametrize("name", PROTOCOLS)
def test_rows_are_the_server_steps(name: str) -> None:
    found = run_clock(PROTOCOLS[name], CLIENTS, 1, STEPS, 1)
    expected = whole(PROTOCOLS[name])
    assert isinstance(vars(found)["client"], Ragged)
    assert len(found.of_arrivals("client")) == expected.mask.sum() == found.summary()["arrivals"]
    assert found.statistics() == expected.statistics()
    np.testing.assert_array_equal(found.taken, expected.taken)
    np.testing.assert_array_equal(found.time, expected.time)
    halves = joined([first_steps(found, 9), cut(found, 9, STEPS)])
    assert isinstance(vars(halves)["client"], Ragged)
    for part in (found, halves):
        np.testing.assert_array_equal(part.mask, expected.mask)
        for column in COLUMNS:
            np.testing.assert_array_equal(getattr(part, column)[part.mask], getattr(expected, column)[part.mask])
    for count in ("runs_begun", "runs_refused", "runs_stopped", "runs_lost"):
        np.testing.assert_array_equal(getattr(found, count), getattr(expected, count))
    assert found.held == expected.held


@pytest.mark.slow
def test_a_step_of_too_many_arrivals_is_named() -> None:
    protocol = clock.harmonic(durations=clock.constant([1.0] + [1000.0] * 5), max_arrivals=40)
    with pytest.raises(
        ValueError, match="at server step 0 than the clock's capacity, at 41 s; give a max_arrivals above 40"
    ):
        run_clock(protocol, 6, 1, 3)


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize("name", ["ringleader", "harmonic", "every_buffer", "compass", "warm_up"])
def test_no_event_copies_what_there_is_for_every_client(name: str) -> None:
    clients = 10_007
    protocols = {
        **PROTOCOLS,
        "harmonic": clock.harmonic(durations=DURATIONS, batch=40.0),
        "warm_up": clock.warm_up(clock.free_running(concurrency=clients, durations=DURATIONS)),
    }
    protocol = protocols[name]
    work = Clockwork(protocol, clients, 1, 10, 0)
    with float64_on_cpu():
        arguments = (work.numbers, work.workload, work.state, on_device(np.int32(10)))
        program, _ = compiled(rows_of_versions, (64,), arguments, donate=(2,), whole=True)
    copies = re.findall(rf"\[{clients}\]\S* copy\(.*", program.as_text())
    assert len([one for one in copies if "while/body" in one or "rows_of_versions" in one]) == 0, copies
