"""Durations: distributions, moments and quantiles, when they are drawn, how they compose, and times per local step."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxafl import clock as c
from jaxafl.clock import schedule as run_clock
from jaxafl.clock.durations.duration import Draw, Duration, Run, prepared_for, worked
from jaxafl.device.keys import seed_key
from jaxafl.options import check_options, static
from tests.variants import slow_but

CLIENTS, RUNS = 200, 500
COUNT = CLIENTS * RUNS


def prepare(duration: Any, clients: int = CLIENTS, seed: int = 0) -> Any:
    with jax.enable_x64(True):
        check_options(duration, clients)
        duration.check(clients)
        return prepared_for(clients, duration, seed_key(seed))


def draws(duration: Any, steps: int = 1, longest: float = 0.0) -> Draw:
    """The durations [client, run] of CLIENTS × RUNS runs."""
    prepared = prepare(duration)
    with jax.enable_x64(True):

        def one(client: Any, run: Any) -> Draw:
            return duration.draw(prepared, Run(client, run, jnp.int32(steps), jnp.float64(longest), jnp.float64(0)))

        clients, runs = jnp.arange(CLIENTS, dtype=jnp.int32), jnp.arange(RUNS, dtype=jnp.int32)
        drawn = jax.jit(jax.vmap(lambda client: jax.vmap(lambda run: one(client, run))(runs)))(clients)
        return Draw(*(np.broadcast_to(np.asarray(part, np.float64), (CLIENTS, RUNS)) for part in drawn))


def work(duration: Any, **options: Any) -> np.ndarray:
    return draws(duration, **options).work


# name: (duration, mean, standard deviation, {probability: quantile})
DISTRIBUTIONS: dict[str, tuple[Any, float, float, dict[float, float]]] = {
    "uniform": (c.uniform(1, 5), 3.0, 4 / math.sqrt(12), {0.25: 2.0, 0.5: 3.0, 0.9: 4.6}),
    "exponential": (c.exponential(8.0), 8.0, 8.0, {0.5: 8 * math.log(2), 0.9: 8 * math.log(10)}),
    "half_normal": (
        c.half_normal(2.0), 2 * math.sqrt(2 / math.pi), 2 * math.sqrt(1 - 2 / math.pi), {0.5: 1.34898, 0.9: 3.28971}
    ),
    "lognormal": (
        c.lognormal(0.5, 0.4), math.exp(0.58), math.exp(0.58) * math.sqrt(math.exp(0.16) - 1),
        {0.5: math.exp(0.5), 0.9: math.exp(0.5 + 0.4 * 1.2815516)},
    ),
    "transmission": (c.transmission(3.53e6, 5e7, 0.1), 2 * 0.0706, 0.0706 * 0.1 * math.sqrt(2), {0.5: 2 * 0.0706}),
    "normal": (c.normal(1, 1), 1.083315471, 0.866653223, {0.158655254: 0.0}),
    "normal, often clipped": (c.normal(0.5, 2), 1.072689396, 1.334356455, {0.401293674: 0.0}),
    "normal, drawn again": (c.normal(1, 1, below="again"), 1.287599971, 0.793527747, {0.5: 1.200173951}),
    "pareto": (c.pareto(2, 6), 2.4, math.sqrt(0.24), {1 - 2**-3: 2 * math.sqrt(2)}),
    "mixture": (c.mixture([c.constant(1.0), c.constant(4.0)], [1, 3], per="run"), 3.25, math.sqrt(27) / 4, {0.25: 1.0}),
}  # fmt: skip


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_moments_and_quantiles(name: str) -> None:
    duration, mean, deviation, quantiles = DISTRIBUTIONS[name]
    values = work(duration).ravel()
    assert (values >= 0).all()
    assert abs(values.mean() - mean) < 4 * deviation / math.sqrt(COUNT)
    assert abs(values.std() / deviation - 1) < 0.02
    latency, per_step = duration.step_times(4)
    assert (latency + per_step).mean() == pytest.approx(mean, rel=0.03)
    for probability, quantile in quantiles.items():
        error = 4 * math.sqrt(probability * (1 - probability) / COUNT)
        assert abs((values <= quantile).mean() - probability) < error


def test_per_client_is_drawn_once() -> None:
    values = work(c.uniform(1, 5, per="client"))
    assert (values == values[:, :1]).all()
    assert len(np.unique(values[:, 0])) == CLIENTS
    assert abs(values[:, 0].mean() - 3) < 4 * 1.155 / math.sqrt(CLIENTS)


def test_per_step_is_a_time_for_each_local_step() -> None:
    once, many = work(c.exponential(2.0, per="step"), steps=1), work(c.exponential(2.0, per="step"), steps=7)
    np.testing.assert_allclose(many, 7 * once)
    np.testing.assert_array_equal(work(c.exponential(2.0), steps=7), once)


@pytest.mark.slow
def test_sums_and_products_are_of_their_terms() -> None:
    left, right = work(c.uniform(1, 5) + c.constant(0)), work(c.constant(0) + c.exponential(2.0))
    np.testing.assert_allclose(work(c.uniform(1, 5) + c.exponential(2.0)), left + right)
    np.testing.assert_allclose(work(c.uniform(1, 5) * c.exponential(2.0)), left * right)
    assert abs(np.corrcoef(left.ravel(), right.ravel())[0, 1]) < 4 / math.sqrt(COUNT)
    np.testing.assert_allclose(work(2 + 3 * c.uniform(1, 5)), 2 + 3 * work(0 + 1 * c.uniform(1, 5)))


@pytest.mark.slow
def test_a_term_added_on_the_right_leaves_the_other_draws_alone() -> None:
    base = c.uniform(1, 5) * c.exponential(2.0)
    np.testing.assert_array_equal(work(base + c.suspension(0.3), longest=9.0), work(base))
    more = work(base + c.lognormal(0, 1)) - work(base)
    assert (more > 0).all() and abs(np.log(more).mean()) < 4 / math.sqrt(COUNT)


def test_suspension_hangs_for_up_to_the_longest_run_so_far() -> None:
    hang = draws(c.uniform(1, 5) + c.suspension(0.2), longest=4.0).hang
    hangs = hang[hang > 0]
    assert abs(len(hangs) / COUNT - 0.2) < 4 * math.sqrt(0.16 / COUNT)
    assert hangs.max() <= 4 and abs(hangs.mean() - 2) < 4 * (4 / math.sqrt(12)) / math.sqrt(len(hangs))
    assert (draws(c.uniform(1, 5) + c.suspension(1.0), longest=0.0).hang == 0).all()
    assert (draws(c.uniform(1, 5) + c.suspension(0.0), longest=4.0).hang == 0).all()


def test_recorded_durations_are_replayed() -> None:
    times = np.random.default_rng(0).uniform(1, 5, (CLIENTS, RUNS))
    np.testing.assert_array_equal(work(c.recorded(times)), times)
    np.testing.assert_allclose(work(c.recorded(times, per="step"), steps=4), 4 * times)


@pytest.mark.slow
def test_clients_may_have_recorded_different_numbers_of_runs() -> None:
    """As lists of different lengths, or with NaN after a client's last run."""
    ragged, nan = [[1.0, 2.0, 3.0], [10.0]], np.nan
    for times in (ragged, tuple(np.asarray(row) for row in ragged), [[1, 2, 3], [10, nan, nan]]):
        schedule = run_clock(c.free_running(concurrency=2, durations=c.recorded(times)), 2, 1, 3, 0)
        np.testing.assert_array_equal(schedule.time, [1, 3, 6])
        with pytest.raises(ValueError, match="the recorded durations run out: run 3 of client 0"):
            run_clock(c.free_running(concurrency=2, durations=c.recorded(times)), 2, 1, 4, 0)


class twice(Duration):
    """A duration of one's own: another's, twice.

    Args:
        of: the other.
    """

    of: Duration

    @property
    def terms(self) -> int:
        return self.of.terms

    def prepare(self, keys: Any, num_clients: int) -> Any:
        return self.of.prepare(keys, num_clients)

    def draw(self, prepared: Any, run: Run) -> Draw:
        drawn = self.of.draw(prepared, run)
        return Draw(2 * drawn.work, 2 * drawn.hang)


def test_a_duration_of_ones_own() -> None:
    np.testing.assert_array_equal(work(twice(c.uniform(1, 5)) + 1), work(c.uniform(1, 5) * 2 + 1))
    assert f"{twice(c.uniform(1, 5)) + 1}" == "twice(of=uniform(low=1, high=5)) + constant(value=1)"


def test_a_duration_is_divided_by_numbers_only() -> None:
    assert (
        str(c.uniform(1, 5) / 2)
        == str(c.uniform(1, 5) / np.float32(2))
        == "uniform(low=1, high=5) * constant(value=0.5)"
    )
    for other in (0, True, "a", c.uniform(1, 5)):
        with pytest.raises(TypeError, match="unsupported operand"):
            c.uniform(1, 5) / other


class wrong(Duration):
    """A user's own: `value` seconds from the second run of client 1 on, a second before."""

    value: float = static(default=-1.0)

    def draw(self, prepared: Any, run: Run) -> Draw:
        return worked(jnp.where((run.client == 1) & (run.run > 0), self.value, 1.0))


TRAINING: dict[str, Any] = {
    "free_running": lambda durations: c.free_running(concurrency=2, durations=durations),
    "synchronous": lambda durations: c.synchronous(durations=durations),
    "sampled": lambda durations: c.sampled(drawn=2, durations=durations),
    "semi_async": lambda durations: c.semi_async(fraction=1.0, lag=2, durations=durations),
    "interrupting": lambda durations: c.interrupting(period=1.0, contacted=2, durations=durations),
}
WITHOUT = {f"{name}, {value}": (name, value) for name in TRAINING for value in (-1.0, math.nan)}


@pytest.mark.parametrize(
    "name", slow_but(WITHOUT, "free_running, nan", "synchronous, -1.0", "semi_async, nan", "interrupting, -1.0")
)
def test_a_run_without_a_duration_is_named(name: str) -> None:
    made, value = WITHOUT[name]
    named = r"a duration is (negative|NaN).*: run 1 of client 1 \(start number \d+\)"
    with pytest.raises(ValueError, match=named):
        run_clock(TRAINING[made](wrong(value=value)), 2, 1, 6)


def lasted(durations: Any, clients: int, steps: int, seed: int = 0) -> dict[int, set[float]]:
    """The durations of the runs of each client, rounded."""
    found = run_clock(c.free_running(concurrency=clients, durations=durations), clients, 1, steps, seed)
    seconds = np.round(found.arrived - found.started, 9)
    return {client: set(seconds[(found.client == client) & found.mask].tolist()) for client in range(clients)}


def test_stragglers_are_a_share_drawn_by_seed() -> None:
    found = [lasted(c.constant(1.0) * c.stragglers(0.3, factor=5.0), 10, 200, seed) for seed in range(4)]
    assert all(sorted(map(tuple, one.values())) == [(1.0,)] * 7 + [(5.0,)] * 3 for one in found)
    assert any(one != found[0] for one in found)


def test_available_clients_wait_for_their_hours() -> None:
    """Each client against the hours by hand: from 22 to 6, from 8 to 12, always; a day of 240 s has hours of 10 s."""
    begin, end = np.array([22.0, 8.0, 5.0]), np.array([6.0, 12.0, 5.0])
    durations = c.constant(7.0) + c.available(begin, end, day=240.0)
    found = run_clock(c.free_running(concurrency=3, durations=durations), 3, 1, 120, 0)
    waits = (found.arrived - found.started - 7.0)[found.mask]
    for client, start, wait in zip(found.client[found.mask], found.started[found.mask], waits, strict=True):
        hour = start / 10 % 24
        inside = {0: hour >= 22 or hour < 6, 1: 8 <= hour < 12, 2: True}[int(client)]
        to_begin = (begin[client] - hour) % 24
        assert wait == pytest.approx(0.0 if inside else 10 * to_begin, abs=1e-9)
    assert 0 < (waits > 0).sum() < len(waits)


@pytest.mark.parametrize("made", [None, 3, jnp.float32(1), c.Draw(jnp.zeros(3), jnp.zeros(3))])
@pytest.mark.parametrize("wrapped", [lambda own: own, lambda own: 2 * own + 1])
def test_what_a_duration_of_ones_own_returns(made: Any, wrapped: Any) -> None:
    class own(c.Duration):
        def draw(self, prepared: Any, run: Any) -> Any:
            return made

    with pytest.raises(ValueError, match=r"the duration own: draw\(prepared, run\) must return jaxafl\.clock\.Draw"):
        c.schedule(c.free_running(concurrency=2, durations=wrapped(own())), 3, 1, 2)


def test_constant_times_per_local_step() -> None:
    latency, per_step = (c.constant(0.5) + c.constant(np.asarray([1.0, 2.0, 3.0]), per="step")).step_times(3)
    np.testing.assert_allclose(latency, np.full((3, 1), 0.5))
    np.testing.assert_allclose(per_step, [[1], [2], [3]])


def test_times_that_are_not_linear_in_the_local_steps_are_refused() -> None:
    class square(Duration):
        def draw(self, prepared: Any, run: Any) -> Any:
            return worked(run.local_steps**2.0)

    with pytest.raises(ValueError, match="is not latency"):
        square().step_times(3)


def test_one_distribution_is_cut_into_equal_parts() -> None:
    latency, per_step = c.exponential(2.0, per="step").step_times(4)
    assert (latency == 0).all() and per_step.shape[0] == 4
    np.testing.assert_allclose(per_step.mean(axis=1), 2.0, rtol=2e-3)
    # P(X <= 1) to a part
    np.testing.assert_allclose((per_step <= 1).mean(axis=1), 1 - np.exp(-0.5), atol=2 / per_step.shape[1])


def test_recorded_times_of_clients_with_different_numbers_of_runs() -> None:
    """Each client's runs are equally likely, however many the others have."""
    latency, per_step = c.recorded([[1.0, 2.0], [3.0], [1.0, 5.0, 6.0]], per="step").step_times(3)
    assert (latency == 0).all()
    np.testing.assert_allclose(per_step.mean(axis=1), [1.5, 3, 4], rtol=2e-3)
    _, exact = c.recorded([[1.0, 2.0], [3.0, 7.0]], per="step").step_times(2)
    np.testing.assert_array_equal(exact, [[1, 2], [3, 7]])


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 7])
def test_client_speeds_are_those_of_the_seed(seed: int) -> None:
    """A time drawn once per client is the one that the clock of a run with this seed draws."""
    durations = c.uniform(0.1, 5, per="client") * c.constant(1.0, per="step")
    latency, per_step = durations.step_times(5, seed)
    assert per_step.shape == (5, 1) and (latency == 0).all()
    schedule = run_clock(c.interrupting(period=1000.0, contacted=5, durations=durations), 5, 10**6, 1, seed)
    np.testing.assert_allclose(schedule.local_steps[0], np.floor(1000 / per_step[:, 0]), atol=1)
