"""Measured phones: training times, transfers over link traces, and availability, against slow walks over the traces."""

from __future__ import annotations

import gzip
import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxafl import clock as c
from jaxafl.clock import schedule as run_clock
from jaxafl.clock.durations.device_trace import CyclicTraces, Measured
from jaxafl.clock.durations.duration import Run
from jaxafl.clock.live import check_clock
from jaxafl.readers.phones import traces_of
from tests.clock.test_durations import CLIENTS, RUNS, draws, prepare

SCORES = {"Google Nexus S": 400, "Xiaomi Redmi Note 7 Pro": 6400, "Google Pixel 4": 25600}


def oracle(time: np.ndarray, amount: np.ndarray, phase: float, wanted: float) -> float:
    """How long it takes to accumulate what is wanted: walks the segments of the trace one after another."""
    total = amount[-1]
    now, elapsed = phase, 0.0
    while wanted > 0:
        if now >= time[-1]:
            now = 0.0
            laps = max(int(wanted // total) - 1, 0)  # only so that the walk ends
            elapsed, wanted = elapsed + laps * time[-1], wanted - laps * total
        segment = np.flatnonzero(time <= now)[-1]
        rate = (amount[segment + 1] - amount[segment]) / (time[segment + 1] - time[segment])
        left = time[segment + 1] - now
        if rate * left >= wanted:
            return elapsed + wanted / rate
        elapsed, wanted, now = elapsed + left, wanted - rate * left, time[segment + 1]
    return elapsed


def random_traces(seed: int = 0) -> CyclicTraces:
    """Traces of 1 to 90 segments, a third of which are flat."""
    random = np.random.default_rng(seed)
    times, amounts = [], []
    for segments in (1, 2, 3, 17, 64, 90):
        rates = random.uniform(0.1, 5, segments) * (random.uniform(size=segments) < 0.7)
        rates[random.integers(segments)] = 1.0
        widths = random.uniform(0.01, 20, segments)
        times.append(np.concatenate([[0], np.cumsum(widths)]))
        amounts.append(np.concatenate([[0], np.cumsum(widths * rates)]))
    return CyclicTraces(*traces_of(times, amounts))


def trace_of(traces: CyclicTraces, index: int) -> tuple[np.ndarray, np.ndarray]:
    rows = slice(traces.offsets[index], traces.offsets[index + 1])
    return traces.time[rows], traces.amount[rows]


def phone(
    mean: float, sigma: float, links: CyclicTraces | None = None, megabytes: float | None = None
) -> c.device_trace:
    """One phone, with these seconds per step, links and megabytes."""
    measured = Measured(np.asarray([mean]), np.asarray([sigma]), links, None)
    return type("phone", (c.device_trace,), {"measured": measured})(megabytes=megabytes, bandwidth=links is not None)


_elapsed = jax.jit(CyclicTraces.elapsed)


def elapsed(traces: CyclicTraces, index: Any, phase: Any, amount: Any) -> np.ndarray:
    with jax.enable_x64(True):
        function = _elapsed if np.ndim(index) == 0 else jax.vmap(CyclicTraces.elapsed, (None, 0, 0, 0))
        return np.asarray(function(traces, jnp.int32(index), jnp.float64(phase), jnp.float64(amount)))


@settings(deadline=None, max_examples=200)
@given(index=st.integers(0, 5), share=st.floats(0, 1, exclude_max=True), amount=st.just(0.0) | st.floats(1e-3, 1e4))
def test_elapsed_is_that_of_a_walk_over_the_trace(index: int, share: float, amount: float) -> None:
    traces = random_traces()
    time, amounts = trace_of(traces, index)
    got = float(elapsed(traces, index, share * time[-1], amount))
    at = np.interp(share * time[-1], time, amounts)
    # the least such duration; where the walk ends at the edge of a flat stretch, rounding decides on which side
    rounding = 1e-12 * (amounts[-1] + amount)
    near = [oracle(time, amounts, share * time[-1], amount + side) for side in (-rounding, 0.0, rounding)]
    assert any(abs(got - want) <= 1e-9 * max(1, want) for want in near) and (amount > 0 or got == 0)
    end = share * time[-1] + got
    laps = np.floor(end / time[-1])
    assert abs(laps * amounts[-1] + np.interp(end - laps * time[-1], time, amounts) - at - amount) <= 1e-8 * (
        1 + amount
    )


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """A data directory with small files: constant links of 2 and 4 Mbit/s, devices ready 10 of 40 and 30 of 100 s."""
    traces = tmp_path / "device_traces"
    traces.mkdir()
    np.savez(
        traces / "bandwidth_traces_hsdpa_fcc.npz",
        time_s=np.float32([5, 6, 8, 0, 1, 3]),
        mbps=np.float32([99, 2, 2, 99, 4, 4]),
        offsets=[0, 3, 6],
    )
    np.savez(
        traces / "availability_flash_1000.npz",
        start=np.int32([110, 120, 7, 500, 560]),
        end=np.int32([115, 125, 7, 520, 570]),
        offsets=[0, 2, 3, 5],
        trace_start=np.int32([100, 0, 500]),
        trace_end=np.int32([140, 9, 600]),
    )
    scores = SCORES | {"between": 1600, "slower": 10, "faster": 90000}
    with gzip.open(traces / "flash_benchmark2score.json.gz", "wt") as file:
        json.dump(scores, file)
    return tmp_path


def test_a_client_keeps_one_of_the_three_phones() -> None:
    means = draws(c.device_trace("femnist_cnn", bandwidth=False)).work.mean(axis=1)
    phone = np.abs(means[:, None] - [1.642, 0.588, 0.179]).argmin(axis=1)
    sigma = np.asarray([0.0995, 0.0239, 0.0023])[phone]
    assert (np.abs(means - np.asarray([1.642, 0.588, 0.179])[phone]) < 5 * sigma / np.sqrt(RUNS)).all()
    assert (np.bincount(phone, minlength=3) > CLIENTS / 6).all()


def test_step_times_are_a_normal_cut_off_at_zero() -> None:
    work = draws(phone(1.0, 2.0)).work
    random = np.random.default_rng(0).normal(1, 2, 2_000_000)
    kept = random[random > 0]
    assert work.min() > 0
    assert abs(work.mean() - kept.mean()) < 5 * kept.std() / np.sqrt(work.size)
    assert abs(work.std() / kept.std() - 1) < 0.03


@pytest.mark.slow
def test_each_way_takes_its_megabits_over_the_rate(folder: pathlib.Path) -> None:
    both = c.device_trace("femnist_cnn", megabytes=1.5, data_dir=folder)
    transfers = draws(both).work - draws(c.device_trace("femnist_cnn", bandwidth=False)).work
    link = np.asarray(prepare(both).link)
    assert set(link) == {0, 1}
    np.testing.assert_allclose(
        transfers, np.broadcast_to((2 * 12 / np.asarray([2.0, 4.0]))[link][:, None], (CLIENTS, RUNS))
    )


CLOCKS = {
    "free_running": lambda durations: c.free_running(concurrency=8, durations=durations),
    "synchronous": lambda durations: c.synchronous(cohort=8, durations=durations),
    "stale_rounds": lambda durations: c.stale_rounds(participants=8, max_staleness=4, durations=durations),
    "sampled": lambda durations: c.sampled(drawn=4, durations=durations),
    "semi_async": lambda durations: c.semi_async(fraction=0.5, lag=3, durations=durations),
}


@pytest.mark.slow
@pytest.mark.parametrize("clock", CLOCKS)
def test_a_run_works_only_while_its_device_is_ready(clock: str, folder: pathlib.Path) -> None:
    """From start to arrival a device is ready for as long as the run works, and is so at the very end."""
    duration = c.device_trace("celeba_cnn", bandwidth=False, availability=True, data_dir=folder)
    schedule = run_clock(CLOCKS[clock](duration), 20, 3, 60, 0)
    prepared = prepare(duration, 20)
    with jax.enable_x64(True):
        always = prepared._replace(measured=prepared.measured._replace(ready=None))
        of_runs = (schedule.of_arrivals(name) for name in ("client", "run", "local_steps"))
        runs = Run(*(jnp.asarray(column, jnp.int32) for column in of_runs), 0.0, 0.0)
        work = jax.vmap(lambda client, run, steps: duration.draw(always, Run(client, run, steps, 0.0)).work)(*runs[:3])
    started, arrived = schedule.started[schedule.mask], schedule.arrived[schedule.mask]
    assert len(started) >= 30 and (arrived > started).all()
    waited = 0
    for client, start, end, worked in zip(np.asarray(runs.client), started, arrived, np.asarray(work), strict=True):
        device = int(prepared.device[client])
        time, amount = trace_of(duration.measured.ready, device)
        shift = float(prepared.phase[client]) * time[-1]
        want = oracle(time, amount, (shift + start) % time[-1], worked)
        assert abs(end - start - want) < 1e-6
        tick = (shift + end) % time[-1]
        segment = np.searchsorted(time, tick - 1e-6 if tick > 1e-6 else tick) - 1
        assert amount[max(segment, 0) + 1] > amount[max(segment, 0)]
        waited += end - start > worked + 1e-6
    assert waited > 0


def test_benchmark_phones_are_interpolated_between_the_measured_ones(folder: pathlib.Path) -> None:
    duration = c.device_trace("femnist_cnn", bandwidth=False, phones="benchmark", data_dir=folder)
    between = np.sqrt([1.642 * 0.588, 0.0995 * 0.0239])  # 1600 is the geometric mean of 400 and 6400
    np.testing.assert_allclose(duration.measured.mean, [1.642, 0.588, 0.179, between[0], 1.642, 0.179])
    np.testing.assert_allclose(duration.measured.sigma, [0.0995, 0.0239, 0.0023, between[1], 0.0995, 0.0023])


def test_a_clock_without_waits_refuses_availability(folder: pathlib.Path) -> None:
    duration = c.device_trace(bandwidth=False, availability=True, data_dir=folder)
    for clock, message in (
        (c.interrupting(period=1.0, contacted=2, durations=duration + 1), r"give device_trace\(availability=False\)"),
        (c.free_running(concurrency=2, durations=2 * duration), "can be added to, not multiplied"),
        (c.free_running(concurrency=2, durations=duration + c.mac_network(1, 1)), r"mac_network\(freeze=False\)"),
    ):
        with pytest.raises(ValueError, match=message):
            check_clock(clock, 4)
    check_clock(c.free_running(concurrency=2, durations=duration + c.mac_network(1, 1, freeze=False)), 4)
    check_clock(c.interrupting(period=1.0, contacted=2, durations=c.constant(1) * c.device_trace(bandwidth=False)), 4)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"megabytes": 1}, "bandwidth_traces_hsdpa_fcc.npz"),
        ({"bandwidth": False, "availability": True}, "availability_flash_1000.npz"),
        ({"bandwidth": False, "phones": "benchmark"}, "flash_benchmark2score.json.gz"),
    ],
)
def test_a_missing_file_is_named(options: dict[str, Any], name: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        check_clock(c.free_running(concurrency=2, durations=c.device_trace(data_dir=tmp_path, **options)), 4)
    message = str(raised.value)
    assert all(text in message for text in (name, str(tmp_path / "device_traces"), "GitHub", "JAXAFL_DATA_DIR"))


@pytest.mark.data
def test_measured_links(data_dir: pathlib.Path) -> None:
    links = c.device_trace(megabytes=1.0, data_dir=data_dir).measured.links
    assert len(links.offsets) == 270
    ends = links.offsets[1:] - 1
    rates = links.amount[ends] / links.time[ends]
    assert 0.1 < rates.min() < 0.16 and 4.3 < rates.max() < 4.9 and 1.1 < np.median(rates) < 1.5
    random = np.random.default_rng(0)
    index = random.integers(0, 269, 300)
    phase = random.uniform(0, 1, 300) * links.time[ends][index]
    got = elapsed(links, index, phase, np.full(300, 52.8))
    want = [oracle(*trace_of(links, i), p, 52.8) for i, p in zip(index, phase, strict=True)]
    np.testing.assert_allclose(got, want, rtol=1e-9)


@pytest.mark.data
def test_measured_availability(data_dir: pathlib.Path) -> None:
    ready = c.device_trace(bandwidth=False, availability=True, data_dir=data_dir).measured.ready
    assert 690 < len(ready.offsets) - 1 <= 710
    ends = ready.offsets[1:] - 1
    days, share = ready.time[ends] / 86400, ready.amount[ends] / ready.time[ends]
    assert (days.min(), np.median(days), days.max()) == (1, 5, 10)
    share = np.concatenate([share, np.zeros(711 - len(ready.offsets))])  # the published figures count those never ready
    np.testing.assert_allclose(np.quantile(share, [0.1, 0.5, 0.9]), [0.001, 0.055, 0.25], rtol=0.2)
