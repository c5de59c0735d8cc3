"""The trees behind clocks, against lists that are searched from end to end; and schedules compiled as one function."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxafl import clock as clocks
from jaxafl.clock import Clock, schedules, trees
from jaxafl.device import compilation
from tests.variants import slow_but


@pytest.mark.parametrize("size", [1, 7, 8, 9, 65, 300])
def test_the_earliest_arrives_and_at_one_instant_the_first_client(size: int) -> None:
    rng = np.random.default_rng(size)
    times, clients = np.full(size, np.inf), rng.permutation(10 * size)[:size].astype(np.int32)
    change = jax.jit(trees.expect, static_argnums=1)
    with jax.enable_x64(True):
        arrivals = trees.no_arrivals(size)
        for _ in range(200):
            place, happens = int(rng.integers(size)), bool(rng.integers(4))
            time = float(rng.choice([np.inf, *range(6)]))
            if happens:
                times[place] = time
            arrivals = change(arrivals, size, np.int32(place), np.float64(time), clients[place], happens)
            np.testing.assert_array_equal(trees.arrival_times(arrivals, size), times)
            if np.isfinite(times).any():
                first = min(
                    (time, client, place) for place, (time, client) in enumerate(zip(times, clients, strict=True))
                )
                assert tuple(value.item() for value in arrivals.first) == first
            else:
                assert np.isinf(arrivals.first[0])


@pytest.mark.parametrize("clients", [1, 7, 8, 9, 65, 1000])
def test_idle_clients_are_found_by_their_rank(clients: int) -> None:
    rng = np.random.default_rng(clients)
    is_busy = np.zeros(clients, bool)
    busy = trees.all_idle(clients)
    change, nth = jax.jit(trees.becomes_busy, static_argnums=1), jax.jit(trees.nth_idle, static_argnums=1)
    for _ in range(200):
        client = int(rng.integers(clients))
        much = int(rng.integers(2)) * (-1 if is_busy[client] else 1)
        is_busy[client] ^= much != 0
        busy = change(busy, clients, np.int32(client), np.int32(much))
        assert bool(trees.is_busy(busy, client)) == is_busy[client]
        idle = np.flatnonzero(~is_busy)
        if len(idle):
            rank = int(rng.integers(len(idle)))
            assert int(nth(busy, clients, np.int32(rank))) == idle[rank]


PER_STEP = clocks.uniform(1, 5, per="client") * clocks.constant(0.1, per="step")
EVENT_BY_EVENT: dict[str, Clock] = {
    "lognormal": clocks.free_running(concurrency=20, buffer=3, durations=clocks.lognormal(0.0, 1.0)),
    "ties": clocks.free_running(concurrency=20, buffer=3, durations=clocks.constant(1.0)),
    "suspended": clocks.free_running(concurrency=20, durations=PER_STEP + clocks.suspension(0.1)),
    "everybody": clocks.free_running(concurrency=60, durations=clocks.exponential(1.0)),
    "three_tier": clocks.free_running(concurrency=25, buffer=5, dispatch="step", durations=clocks.three_tier()),
    "start_skew": clocks.free_running(
        concurrency=25, buffer=5, dispatch="step", start_skew=True, durations=clocks.half_normal(2.0)
    ),
    "before_step": clocks.free_running(
        concurrency=9, buffer=5, before_step=True, durations=clocks.mac_network(17.0, 2.2)
    ),
    "bernoulli": clocks.bernoulli(0.3, 0.5),
    "sampled": clocks.sampled(drawn=20, durations=clocks.mac_network(17.0, 2.2)),
    "held": clocks.sampled(
        drawn=5, durations=PER_STEP + clocks.suspension(0.1), receive_buffer="consume", send_buffer="hold"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(EVENT_BY_EVENT, "suspended", "start_skew"))
def test_a_schedule_compiled_as_one_function_is_the_same_to_the_last_bit(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = EVENT_BY_EVENT[name]
    whole, compiled = [], compilation.compiled

    def compiling(*arguments: Any, **how: Any) -> Any:
        whole.append(how.pop("whole", False))
        return compiled(*arguments, **how)

    steps = np.random.default_rng(0).integers(1, 9, (60, 3))
    found = schedules.schedule(clock, 60, steps, 100, 7)
    monkeypatch.setattr(schedules, "compiled", compiling)
    expected = schedules.schedule(clock, 60, steps, 100, 7)
    assert whole == [False, True]  # what it begins with, and all its steps
    assert found.source is not None and expected.source is not None
    jax.tree.map(np.testing.assert_array_equal, found.source.runs, expected.source.runs)
    for field in dataclasses.fields(found):
        if field.name != "source":
            np.testing.assert_equal(getattr(found, field.name), getattr(expected, field.name), field.name)


def test_what_cannot_be_one_function_is_compiled_as_others_are() -> None:
    values = jnp.arange(6.0)[::-1]
    program, _ = compilation.compiled(jnp.sort, (), (values,), whole=True)
    np.testing.assert_array_equal(program(values), np.arange(6.0))
