"""What clients keep from run to run, against a NumPy loop over their completed runs, for every way of running."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxafl as afl
from jaxafl import upload
from jaxafl.clock import Clock, Delivery
from jaxafl.engine import planned
from tests.callbacks.conftest import broken
from tests.test_upload import PLACES, SENT, simulation, still, vectors, waiting

STEPS = 16
FEEDBACK = upload.error_feedback(upload.top_k(count=1))


class open_still(still):
    """Also takes updates of runs that have waited at their client or were drawn, of several kinds or times."""

    accepts = still.accepts | Delivery.QUEUED | Delivery.KINDS | Delivery.PULLED | Delivery.MULTIPLE


@functools.cache
def computed(rounds: int) -> np.ndarray:
    """Δ of every run of every client, [run, client, 3]: with the model at x_0 it depends on nothing else."""
    return vectors(simulation(clock=afl.clock.synchronous()).run(rounds, seed=3))


def largest(v: np.ndarray) -> np.ndarray:
    return np.where(np.arange(len(v)) == np.argmax(np.abs(v)), v, 0)


def expected(sim: afl.Simulation, steps: int = STEPS) -> np.ndarray:
    """What the server receives, [step, arrival, 3], from a loop over the completed runs of each client."""
    schedule = sim.schedule(steps, seed=3)
    columns = [(schedule.client[schedule.mask], schedule.run[schedule.mask])]
    columns.append((schedule.unused.completed.client, schedule.unused.completed.run))
    completed = {(int(c), int(r)) for client, run in columns for c, r in zip(client, run, strict=True)}
    delta = computed(1 + max(run for _, run in completed))
    error, sent = np.zeros((6, 3), np.float32), {}
    for client, run in sorted(completed):
        whole = delta[run, client] + error[client]
        sent[client, run] = largest(whole)
        error[client] = whole - sent[client, run]
    found = np.full((*schedule.mask.shape, 3), np.nan)
    for place in zip(*np.nonzero(schedule.mask), strict=True):
        found[place] = sent[int(schedule.client[place]), int(schedule.run[place])]
    return found


def differences(clock: Clock, ways: dict[str, dict[str, Any]]) -> dict[str, float]:
    sim = simulation(FEEDBACK, open_still(), clock)
    want = expected(sim)
    found = {name: vectors(sim.run(STEPS, seed=3, **how)) for name, how in ways.items()}
    if "seeds" not in found:
        found["seeds"] = vectors(afl.sweep(sim, {"seed": [5, 3]}, STEPS))[1]
    for name, values in found.items():  # a result leaves out places that no server step uses
        unused = want.shape[1] - values.shape[1]
        found[name] = np.pad(values, ((0, 0), (0, unused), (0, 0)), constant_values=np.nan)
    return {name: np.max(np.abs(values - want)[~np.isnan(want)]) for name, values in found.items()}


LANES: dict[str, dict[str, Any]] = {"1": {}, "4": {"lanes": 4}, "16": {"lanes": 16}, "chunks": {"lanes": 4, "chunk": 4}}
CLOCKS: dict[str, Callable[[], Clock]] = {
    "lost": lambda: afl.clock.free_running(concurrency=4, buffer=2, durations=PLACES, lost=0.4),
    "refused": lambda: afl.clock.free_running(concurrency=4, durations=afl.clock.lognormal(0.0, 1.0), max_staleness=2),
    "stopped": lambda: afl.clock.free_running(
        concurrency=4, durations=afl.clock.lognormal(0.0, 1.0), max_staleness=2, on_bound="stop"
    ),
    "free": lambda: afl.clock.free_running(concurrency=4, buffer=2, durations=PLACES),
    "repeated": lambda: afl.clock.bernoulli(0.6, 0.5),
    "late": lambda: afl.clock.harmonic(durations=PLACES, batch=10, stop=False),
    "old": lambda: afl.clock.stale_rounds(participants=4, max_staleness=3, durations=PLACES, replacement=True),
    "queued": lambda: afl.clock.routed(durations=PLACES),
    "lost in rounds": lambda: afl.clock.synchronous(cohort=4, durations=PLACES, lost=0.4),
    "rounds": lambda: afl.clock.synchronous(cohort=4, durations=PLACES, extra=1),
    "warm up": lambda: afl.clock.warm_up(
        afl.clock.free_running(concurrency=4, buffer=2, durations=afl.clock.lognormal(0.0, 2.0))
    ),
    "warm up to the next": lambda: afl.clock.warm_up(afl.clock.bernoulli(0.4), first="next"),
    "held": lambda: afl.clock.sampled(drawn=2, durations=afl.clock.lognormal(0.0, 1.0), send_buffer="hold"),
    "semi": lambda: afl.clock.semi_async(fraction=0.5, lag=1, durations=afl.clock.lognormal(0.0, 1.0)),
}


@pytest.mark.slow
def test_runs_of_one_client_in_a_buffer_are_trained_in_turn_by_a_clock_inside_the_loop() -> None:
    clock = afl.clock.free_running(concurrency=6, buffer=3, durations=afl.clock.lognormal(0.0, 1.5))
    sim = simulation(FEEDBACK, clock=clock)
    want = expected(sim)
    online = simulation(FEEDBACK, waiting(), clock)
    client = sim.schedule(STEPS, seed=3).client
    assert min(len({*row}) for row in client.tolist()) < 3  # two runs of one client in a buffer
    np.testing.assert_allclose(vectors(online.run(STEPS, seed=3)), want, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", CLOCKS)
def test_completed_runs_change_errors_whether_or_not_a_step_takes_them(name: str) -> None:
    if name in ("lost", "refused", "late", "lost in rounds", "warm up", "warm up to the next"):
        schedule = simulation(FEEDBACK, open_still(), CLOCKS[name]()).schedule(STEPS, seed=3)
        assert (count := len(schedule.unused.completed.client)) > 3
        found = simulation(FEEDBACK, open_still(), CLOCKS[name]()).run(STEPS, seed=3)
        assert found.attrs["runs_trained_untaken"] == count
    assert max(differences(CLOCKS[name](), LANES).values()) == 0


class swapped(afl.clock.Clock):
    """Takes the first run after later ones of its client."""

    delivers = Delivery.STALE | Delivery.CONTINUOUS | Delivery.SEVERAL
    durations: Any = dataclasses.field(default=PLACES, kw_only=True)

    def steps(self, fleet: Any) -> Any:
        arrivals = fleet.arrivals()
        first = next(arrivals)
        for run in arrivals:
            yield fleet.step([run, first] if fleet.version == 100 else [run])


def test_clients_that_keep_something_need_the_order_of_their_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = simulation(FEEDBACK, open_still(), swapped())
    np.testing.assert_array_equal(vectors(sim.run(110, seed=3))[100, :2], expected(sim, 110)[100])
    monkeypatch.setattr(planned, "_FIRST", 1)
    with pytest.raises(ValueError, match=r"run 0 of client \d again, or after"):
        sim.run(110, seed=3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lost", "refused", "repeated", "lost in rounds", "held", "warm up"])
def test_errors_survive_checkpoints_and_windows(name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sim = simulation(FEEDBACK, open_still(), CLOCKS[name]())
    want = vectors(sim.run(STEPS, seed=3))

    broken(sim, STEPS, 10, seed=3, lanes=4, folder=tmp_path, checkpoint_every=1, eval_every=5)
    np.testing.assert_array_equal(vectors(sim.run(STEPS, seed=3, lanes=4, folder=tmp_path, eval_every=5)), want)
    if name == "repeated":
        with pytest.raises(ValueError, match="again, or after a later one"):
            sim.run(STEPS + 4, seed=3, lanes=4, folder=tmp_path, eval_every=5)
    else:
        longer = [sim.run(STEPS + 4, seed=3, lanes=4, **how) for how in ({"folder": tmp_path, "eval_every": 5}, {})]
        assert len({one.attrs["runs_trained_untaken"] for one in longer}) == 1
    monkeypatch.setattr(planned, "_FIRST", 8)
    monkeypatch.setattr(planned, "_LARGEST", 8)
    whole = sim.run(STEPS, seed=3, lanes=4)
    np.testing.assert_array_equal(vectors(whole), want)
    again = {"folder": tmp_path / "again", "seed": 3, "lanes": 4, "eval_every": 1}
    broken(sim, STEPS, STEPS - 2, checkpoint_every=1, **again)
    np.testing.assert_array_equal(sim.run(STEPS, **again)["places"], whole["places"])  # so sums have equal bits


@pytest.mark.parametrize(
    ("part", "v", "sent", "error"),
    [
        (upload.top_k(count=1), (3, -1, 2), (3, 0, 0), (0, -1, 2)),
        (upload.sign(), (3, -1, 0, 0), (1, -1, 0, 0), (2, 0, 0, 0)),
    ],
)
def test_error_feedback_gives_the_values_of_the_paper(part: Any, v: Any, sent: Any, error: Any) -> None:
    feedback, delta = upload.error_feedback(part), jnp.asarray(v, jnp.float32)
    received, row = feedback.update(delta, feedback.init(delta), SENT)
    np.testing.assert_array_equal(received, sent)
    np.testing.assert_array_equal(row[0], error)
    again, row = feedback.update(delta, row, SENT)
    np.testing.assert_allclose(2 * delta, received + again + row[0])


def test_feedback_makes_a_contraction_of_qsgd() -> None:
    quantised = upload.error_feedback(upload.qsgd(levels=1))
    delta, row = jnp.full(64, 1.0), quantised.init(jnp.zeros(64))
    update = jax.jit(quantised.update)
    for run in range(200):
        one = SENT._replace(run=jnp.int32(run), key=jax.random.key(run))
        _, row = update(delta, row, one)
    assert np.linalg.norm(row[0]) < 64 * 8  # without the factor 1 / 9 it grows beyond 1e30
    assert upload.qsgd(levels=2).feedback_scale((2,)) == pytest.approx(1 / (1 + 0.5))


@pytest.mark.slow
def test_stateful_transformations_of_optax_keep_their_state() -> None:
    """`optax.trace`: the client sends the sum of its updates, older ones by powers of the decay."""
    sim = simulation(optax.trace(0.5), clock=afl.clock.synchronous())
    found, delta = vectors(sim.run(5, seed=3)), computed(5)
    want = np.zeros_like(delta[0])
    for step in range(5):
        want = delta[step] + 0.5 * want
        np.testing.assert_allclose(found[step], want, rtol=1e-5, atol=1e-7)
