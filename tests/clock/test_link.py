"""Transfers of the bytes that runs send."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import optax
import pytest

import jaxafl as afl
from jaxafl import clock
from jaxafl.clock import schedule as run_clock
from tests.problems import descent
from tests.variants import slow_but


def simulation(durations: Any, upload: Any = None, **options: Any) -> afl.Simulation:
    client = afl.Client(optax.sgd, learning_rate=0.1, steps=1, batch_size=None, upload=upload)
    made = clock.free_running(concurrency=6, durations=durations, **options)
    return descent(client=client, server=afl.server.fedasync(), clock=made)


def test_transfers_are_of_the_bytes_that_are_sent() -> None:
    """12 bytes: three parameters of float32."""
    up = np.array([1.0, 2, 4, 8, 16, 32])
    found = simulation(3 + clock.link(up, down=4.0)).schedule(20)
    np.testing.assert_allclose((found.arrived - found.started)[:, 0], 3 + 12 / up[found.client[:, 0]] + 12 / 4)


@pytest.mark.slow
def test_transfers_of_parts_are_of_the_bytes_that_runs_record() -> None:
    up = np.array([1.0, 2, 4, 8, 16, 32])
    sim = simulation(3 + clock.link(up, down=4.0))
    found, size = sim.schedule(20), int(sim.run(20).bytes_up[0])  # of one update
    seconds = (found.arrived - found.started)[:, 0]
    np.testing.assert_allclose(seconds, 3 + size / up[found.client[:, 0]] + size / 4)
    short = simulation(clock.link(2.0, down=4.0), afl.upload.top_k(count=1)).schedule(1)
    assert short.time[0] == pytest.approx(5 / 2 + size / 4)  # 34 bits up
    always = clock.sessions(clock.link(2.0), clock.constant(1e9), off=clock.constant(1.0))
    assert simulation(always).schedule(1).time[0] == pytest.approx(size)
    inner = clock.warm_up(clock.free_running(concurrency=6, durations=clock.link(2.0)))
    assert dataclasses.replace(sim, clock=inner).schedule(1).time[0] == pytest.approx(size)


class Shared(NamedTuple):
    """A run, in a loop over the events of runs that share a link."""

    client: int
    version: int
    until: float  # end of its work, or infinite
    left: float  # bytes of its transfer, or 0
    uploads: bool = False


def shared_times(
    work: np.ndarray,
    speed: float,
    up: float,
    down: float,
    *,
    buffer: int,
    steps: int,
    bound: int | None = None,
    restarts: bool = True,
) -> tuple[list[tuple[float, int]], int]:
    """Time and last client of every server step, with all clients in training, and the number of stopped runs."""
    count = len(work)
    done, now, version, taken, stopped = [0] * count, 0.0, 0, 0, 0
    runs = [Shared(client, 0, np.inf, down) for client in range(count)]
    found: list[tuple[float, int]] = []
    while True:
        moving = sum(run.left > 0 for run in runs)
        ends = [now + run.left * moving / speed if run.left > 0 else run.until for run in runs]
        time = min(ends)
        arrived, after = [], []
        for run, end in zip(runs, ends, strict=True):
            if end > time + 1e-9:
                left = run.left - (time - now) * speed / moving if run.left > 0 else 0.0
                after.append(run._replace(left=left))
            elif run.left == 0:
                after.append(run._replace(until=np.inf, left=up, uploads=True))
            elif not run.uploads:
                after.append(run._replace(until=time + work[run.client, done[run.client]], left=0.0))
            else:
                after.append(run)
                arrived.append(run.client)
        runs, now = after, time
        for client in arrived:
            taken += 1
            if taken == buffer:
                found.append((now, client))
                version, taken = version + 1, 0
        if len(found) >= steps:  # runs are stopped after the step
            return found[:steps], stopped
        for client, run in enumerate(runs):
            stops = bool(arrived) and bound is not None and version - run.version >= bound and client not in arrived
            stopped += stops
            if client in arrived or stops:
                done[client] += 1
                runs[client] = Shared(client, version, np.inf, down if restarts else 0.0)


SHARED = [(2.0, 1, None), (100.0, 3, None), (5.0, 2, None), (4.0, 1, 3)]


@pytest.mark.parametrize("options", slow_but(SHARED, (4.0, 1, 3)))
def test_transfers_under_way_share_the_link_of_the_server(options: tuple[float, int, int | None]) -> None:
    speed, buffer, bound = options
    rng = np.random.default_rng(0)
    each = np.repeat(rng.uniform(1, 5, (6, 1)), 400, axis=1)
    durations = clock.constant(each[:, 0]) + clock.link(shared=speed, bytes=4.0)
    made = clock.free_running(
        concurrency=6, buffer=buffer, durations=durations, max_staleness=bound, on_bound="stop" if bound else "refuse"
    )
    found = run_clock(made, 6, 1, 60)
    expected, stopped = shared_times(each, speed, 4.0, 4.0, buffer=buffer, steps=60, bound=bound)
    np.testing.assert_allclose(found.time, [time for time, _ in expected], rtol=1e-12)
    np.testing.assert_array_equal(found.client[:, -1], [client for _, client in expected])
    np.testing.assert_allclose(found.arrived[:, -1], found.time)
    assert found.runs_stopped[-1] == stopped
    assert (stopped > 0) == (bound is not None)
    flying = found.unused.reason == "flying"
    client, started = found.unused.client[flying], found.unused.started[flying]
    assert len(client) == len(set(client)) <= 6
    assert (started <= found.time[-1]).all()


@pytest.mark.parametrize("deadline", [pytest.param(None, marks=pytest.mark.slow), 22.0])
def test_a_round_shares_the_link_of_the_server(deadline: float | None) -> None:
    work = np.array([2.0, 1.5, 4.5, np.inf if deadline else 3.5, 3.0, 3.0, 7.0])
    durations = clock.constant(work) + clock.link(shared=2.0, bytes=3.0)
    found = run_clock(clock.synchronous(durations=durations, deadline=deadline), 7, 1, 1)
    every, _ = shared_times(work[:, None], 2.0, 3.0, 3.0, buffer=1, steps=6 if deadline else 7, restarts=False)
    expected = [(client, time) for time, client in every if deadline is None or time <= deadline]
    ends = zip(found.client[found.mask], found.arrived[found.mask], strict=True)
    np.testing.assert_allclose(sorted(ends), sorted(expected), rtol=1e-12)
    assert len(expected) == found.mask.sum() >= 4


@pytest.mark.slow
def test_runs_under_way_over_a_shared_link_are_known() -> None:
    hangs = clock.constant(np.array([np.inf, 1.0, 2.0, 3.0])) + clock.link(shared=2.0, bytes=3.0)
    for options, most in (({"concurrency": 3}, 3), ({"concurrency": 4, "buffer": 2, "dispatch": "step"}, 4)):
        found = run_clock(clock.free_running(durations=hangs, **options), 4, 1, 8)
        flying = found.unused.reason == "flying"
        client, started = found.unused.client[flying], found.unused.started[flying]
        assert 0 in client  # it has been downloaded, and never arrives
        assert len(set(client)) == len(client) < most + 1
        for one, begun in zip(client, started, strict=True):
            assert not ((found.client == one) & (found.started == begun)).any()


@pytest.mark.slow
def test_a_shared_link_carries_what_is_sent() -> None:
    size = int(simulation(clock.constant(1.0)).run(1).bytes_up[0])
    sim = simulation(2 + clock.link(shared=50.0), buffer=6)
    found = sim.run(5)
    np.testing.assert_allclose(found.time, np.arange(1, 6) * (2 + 2 * 6 * size / 50))
    swept = afl.sweep(sim, {"clock.durations.right.shared": [50.0, 100.0]}, 2).time.values[:, -1]
    np.testing.assert_allclose(swept, [found.time[1], 2 * (2 + 2 * 6 * size / 100)])
