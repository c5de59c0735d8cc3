"""Runs that are planned in windows, against the same runs planned as a whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jaxafl as afl
from jaxafl.engine import windows
from tests.equivalence import CLOCKS, SERVERS, STEPS, _simulation, observe

OF_SERVERS = [(name, clock) for name, (_, clocks, _) in SERVERS.items() for clock in clocks]
PAIRS = list(dict.fromkeys([("fedbuff", "buffer"), *OF_SERVERS]))


def pairs() -> list[tuple[str, str]]:
    """Servers and clocks; a window knows no more of a server than its needs, and from which versions it reads."""
    found, seen = [], set()
    for name, clock in PAIRS:
        needs = SERVERS[name][0].needs
        if not needs.replies and not {needs, (clock, needs.base)} <= seen:
            seen |= {needs, (clock, needs.base)}
            found.append((name, clock))
    return found


def same(one: Any, other: Any) -> None:
    """All values of two results, bit for bit."""
    assert set(one.variables) == set(other.variables)
    for name, values in one.variables.items():
        np.testing.assert_array_equal(values.values, other[name].values, err_msg=str(name))


def short_windows(monkeypatch: pytest.MonkeyPatch, arrivals: int) -> list[int]:
    """Windows of few arrivals; the server steps at which those that were made begin."""
    begun: list[int] = []
    original = windows.Windows._from

    def counted(self: Any, start: int, origin: Any) -> Any:
        begun.append(start)
        return original(self, start, origin)

    monkeypatch.setattr(windows, "WINDOW_ARRIVALS", arrivals)
    monkeypatch.setattr(windows, "_TURNOVERS", 0)
    monkeypatch.setattr(windows.Windows, "_from", counted)
    return begun


@pytest.mark.slow
@pytest.mark.parametrize(("name", "clock"), pairs())
def test_windows_leave_every_bit(name: str, clock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, _, client = SERVERS[name]
    simulation = _simulation(algorithm, CLOCKS[clock], client)
    options: dict[str, Any] = {"eval_every": 7, "seed": 3, "observe": observe}
    whole = simulation.run(STEPS, **options)
    begun = short_windows(monkeypatch, 4 * CLOCKS[clock].capacity(simulation.data.num_clients))
    same(simulation.run(STEPS, **options), whole)
    assert begun == [0, 4, 8, 12]


class Broken(RuntimeError):
    """What ends a run in the middle."""


class Breaks(afl.callbacks.Callback):
    """Raises at the first evaluation from a server step on."""

    def __init__(self, step: int) -> None:
        self.step = step

    def chunk(self, chunk: afl.callbacks.Chunk) -> None:
        if chunk.stop >= self.step:
            raise Broken


# its first server step takes more updates than any later one, so that the first window needs the most room
ROOMY = afl.clock.warm_up(CLOCKS["all_buffer"], first="next")


@pytest.mark.slow
@pytest.mark.parametrize("clock", [CLOCKS["buffer"], CLOCKS["skew"], ROOMY], ids=["buffer", "skew", "warm_up"])
def test_a_run_goes_on_in_the_middle_of_a_window_and_is_made_longer(
    clock: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm, _, client = SERVERS["fedbuff"]
    simulation = _simulation(algorithm, clock, client)
    options: dict[str, Any] = {"eval_every": 3, "seed": 3, "observe": observe}
    kept: dict[str, Any] = {"folder": tmp_path / "run", "checkpoint_every": 2}
    whole = {steps: simulation.run(steps, **options) for steps in (STEPS, STEPS + 13)}
    begun = short_windows(monkeypatch, 4 * clock.capacity(simulation.data.num_clients))
    with pytest.raises(Broken):
        simulation.run(STEPS, **options, **kept, callbacks=Breaks(10))
    begun.clear()
    same(simulation.run(STEPS, **options, **kept), whole[STEPS])
    assert begun[0] == 8  # nothing is planned again that has been trained
    same(simulation.run(STEPS + 13, **options, **kept), whole[STEPS + 13])


@pytest.mark.slow
def test_a_longer_run_in_blocks_goes_on_in_the_middle(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shorter run has ended where no block of the longer one does; its windows begin wherever that was."""
    monkeypatch.setattr("jaxafl.device.backend._accelerator_paths", 1)  # as on an accelerator
    algorithm, _, client = SERVERS["fedbuff"]
    simulation = _simulation(algorithm, CLOCKS["buffer"], client)
    options: dict[str, Any] = {"eval_every": 10, "observe": observe}
    kept: dict[str, Any] = {"folder": tmp_path, "checkpoint_every": 5}
    whole = simulation.run(120, **options)
    short_windows(monkeypatch, 34)
    simulation.run(55, **options, **kept)
    with pytest.raises(Broken):
        simulation.run(120, **options, **kept, callbacks=Breaks(80))
    longer = simulation.run(120, **options, **kept)
    np.testing.assert_array_equal(longer.observe_all, whole.observe_all)


@pytest.mark.slow
def test_a_window_that_needs_more_room_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first server steps take one arrival each of a fresh model; later ones many, some of old models."""
    durations = np.concatenate([np.full((6, 4), 0.01), np.full((6, 1), 30.0), np.full((6, 60), 1.0)], axis=1)
    durations += np.arange(6)[:, None] / 1000
    clock = afl.clock.trace(afl.clock.free_running, concurrency=6, buffer=2, durations=durations)
    algorithm, _, client = SERVERS["fedasync_polynomial"]
    simulation = _simulation(algorithm, clock, client)
    whole = simulation.run(60, eval_every=20, observe=observe)
    short_windows(monkeypatch, 8)
    same(simulation.run(60, eval_every=20, observe=observe), whole)


@pytest.mark.slow
def test_steps_after_the_end_of_a_run_are_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, _, client = SERVERS["fedbuff"]
    simulation = _simulation(algorithm, CLOCKS["buffer"], client)
    begun = short_windows(monkeypatch, 8)
    ended = simulation.run(10**6, eval_every=4, callbacks=afl.callbacks.StopAfter(simulated=1e-9))
    assert ended.sizes["step"] == 4
    assert max(begun) < 40


def test_a_run_whose_records_do_not_fit_the_host_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, _, client = SERVERS["fedbuff"]
    simulation = _simulation(algorithm, CLOCKS["buffer"], client)
    short_windows(monkeypatch, 8)
    monkeypatch.setattr("jaxafl.clock.schedules.host_bytes", lambda: 2**30)
    with pytest.raises(MemoryError, match="what a run records of 4,000,000 server steps"):
        simulation.run(4 * 10**6, observe=observe)


@pytest.mark.slow
def test_a_recording_that_ends_in_a_later_window_leaves_what_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    durations = np.random.default_rng(0).uniform(0.5, 2, (6, 8))
    clock = afl.clock.trace(afl.clock.free_running, concurrency=6, buffer=2, durations=durations)
    algorithm, _, client = SERVERS["fedbuff"]
    simulation = _simulation(algorithm, clock, client)
    whole = simulation.run(12, eval_every=3, observe=observe)
    short_windows(monkeypatch, 8)
    with pytest.raises(ValueError, match="the recorded durations run out") as raised:
        simulation.run(1000, eval_every=3, observe=observe)
    made = raised.value.dataset
    assert made.sizes["step"] >= 12
    np.testing.assert_array_equal(made.observe_all[:13], whole.observe_all)
