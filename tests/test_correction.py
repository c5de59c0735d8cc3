"""SCAFFOLD and FedDyn against slow NumPy loops over the arrivals of a schedule, and what they send."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxafl as afl
from jaxafl import correction
from jaxafl.client.memory import first_memory, first_shared
from tests.problems import START, observe_w, quadratic

STEPS, RATE, K = 12, 0.2, 3
PLACES = afl.clock.uniform(1, 3)
CLOCKS: dict[str, Callable[[], Any]] = {
    "rounds": lambda: afl.clock.synchronous(cohort=3),
    "free": lambda: afl.clock.free_running(concurrency=4, buffer=2, durations=PLACES),
    "all at first": lambda: afl.clock.warm_up(CLOCKS["free"](), first="all"),
    "few": lambda: afl.clock.free_running(concurrency=4, period=1.0, durations=PLACES),
}


def simulation(part: Any, clock: Any, server: Any = None, **options: Any) -> afl.Simulation:
    problem = quadratic()
    given: dict[str, Any] = dict(learning_rate=RATE, steps=K, batch_size=None, correction=part)
    server = server or afl.server.fedbuff(weights="uniform", staleness="none")
    return afl.Simulation(problem.data, problem.model, afl.Client(**given | options), server, clock)


def gradient(client: int, w: np.ndarray) -> np.ndarray:
    one = quadratic().clients[client]
    return (one.a * (w - one.c)).mean(0)


def scaffold_loop(schedule: Any, rates: Callable[[int], float]) -> np.ndarray:
    """x_0 .. x_T by Algorithm 1 of the paper, with the c that each run got with its model."""
    models, shared, own = [np.array(START)], [np.zeros(3)], np.zeros((6, 3))
    for step in range(schedule.server_steps):
        deltas, messages = [], []
        for place in np.nonzero(schedule.mask[step])[0]:
            client, version = schedule.client[step, place], schedule.version[step, place]
            x, c = models[version].copy(), shared[version]
            for k in range(K):
                x -= rates(k) * (gradient(client, x) - own[client] + c)
            moved = x - models[version]
            after = own[client] - c - moved / sum(map(rates, range(K)))
            deltas.append(moved)
            messages.append(after - own[client])
            own[client] = after
        models.append(models[-1] + (np.mean(deltas, axis=0) if deltas else 0))
        shared.append(shared[-1] + np.sum(messages, axis=0) / 6 if messages else shared[-1])
    return np.stack(models)


def feddyn_loop(schedule: Any, alpha: float) -> np.ndarray:
    """x_0 .. x_T by Algorithm 1 of the paper, from the mean of the clients' models."""
    models, h, own = [np.array(START)], np.zeros(3), np.zeros((6, 3))
    for step in range(schedule.server_steps):
        deltas = []
        for place in np.nonzero(schedule.mask[step])[0]:
            client, start = schedule.client[step, place], models[schedule.version[step, place]]
            x = start.copy()
            for _ in range(K):
                x -= RATE * (gradient(client, x) - own[client] + alpha * (x - start))
            own[client] -= alpha * (x - start)
            deltas.append(x - start)
        h = h - alpha / 6 * np.sum(deltas, axis=0) if deltas else h
        models.append(models[-1] + np.mean(deltas, axis=0) - h / alpha if deltas else models[-1])
    return np.stack(models)


def models_of(sim: afl.Simulation, **how: Any) -> np.ndarray:
    return sim.run(STEPS, seed=3, observe=observe_w, **how).observe_w.values


@pytest.mark.parametrize(
    "clock", ["free", *(pytest.param(name, marks=pytest.mark.slow) for name in ("rounds", "all at first", "few"))]
)
def test_scaffold_is_its_algorithm(clock: str) -> None:
    sim = simulation(correction.scaffold(), CLOCKS[clock]())
    want = scaffold_loop(sim.schedule(STEPS, seed=3), lambda k: RATE)
    np.testing.assert_allclose(models_of(sim, lanes=4), want, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize(
    "clock", ["free", *(pytest.param(name, marks=pytest.mark.slow) for name in ("rounds", "all at first", "few"))]
)
def test_feddyn_is_its_algorithm(clock: str) -> None:
    sim = simulation(correction.feddyn(0.5), CLOCKS[clock]())
    want = feddyn_loop(sim.schedule(STEPS, seed=3), 0.5)
    np.testing.assert_allclose(models_of(sim, lanes=4), want, rtol=2e-5, atol=1e-5)


@pytest.mark.slow
def test_rates_of_schedules_are_summed() -> None:
    rates = optax.linear_schedule(0.3, 0.05, 3)
    sim = simulation(correction.scaffold(), CLOCKS["free"](), learning_rate=rates)
    want = scaffold_loop(sim.schedule(STEPS, seed=3), lambda k: float(rates(k)))
    np.testing.assert_allclose(models_of(sim), want, rtol=2e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("part", [correction.scaffold(), correction.feddyn(0.5)], ids=["scaffold", "feddyn"])
def test_results_do_not_depend_on_how_runs_are_trained(part: Any, tmp_path: Any) -> None:
    sim = simulation(part, CLOCKS["free"](), batch_size=2, step_schedule=lambda step: 1 / (1 + step))
    want = models_of(sim)
    for how in ({"lanes": 4}, {"lanes": 16}, {"lanes": 4, "chunk": 4}):
        np.testing.assert_allclose(models_of(sim, **how), want, rtol=1e-5, atol=1e-6)
    seeds = afl.sweep(sim, {"seed": [5, 3]}, STEPS, observe=observe_w).observe_w.values
    np.testing.assert_allclose(seeds[1], want, rtol=1e-5, atol=1e-6)
    sim.run(5, seed=3, folder=tmp_path, observe=observe_w)
    np.testing.assert_array_equal(models_of(sim, folder=tmp_path), want)
    state, found = sim.init(3, STEPS), []
    for _ in range(STEPS):
        state, _ = sim.step(state)
        found.append(state.params["w"])
    np.testing.assert_allclose(np.stack(found), want[1:], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_corrected_clients_agree_on_the_minimum_of_all() -> None:
    clients = quadratic().clients
    curvature, weighted = (
        np.stack([getter(one) for one in clients]).sum(0)
        for getter in (lambda one: one.a.mean(0), lambda one: (one.a * one.c).mean(0))
    )
    minimum = weighted / curvature
    errors = {}
    for name, part in (("none", None), ("scaffold", correction.scaffold()), ("feddyn", correction.feddyn(1.0))):
        sim = simulation(part, afl.clock.synchronous(), afl.server.fedavg(weights="uniform"))
        errors[name] = np.abs(sim.run(200, observe=observe_w).observe_w.values[-1] - minimum).max()
    assert errors["scaffold"] < 1e-5
    assert errors["feddyn"] < 1e-5
    assert errors["none"] > 1e-2


def test_messages_and_shared_vectors_count_as_bytes() -> None:
    plain, clock = 12, CLOCKS["rounds"]()
    assert simulation(None, clock).traffic() == (plain, plain)
    assert simulation(correction.scaffold(), clock).traffic() == (2 * plain, 2 * plain)
    assert simulation(correction.feddyn(0.1), clock).traffic() == (plain, plain)
    few = simulation(correction.scaffold(), clock, upload=afl.upload.sign())
    assert few.traffic() == (plain + np.ceil((3 + 32) / 8), 2 * plain)


class shrinking(correction.Correction):
    def init(self, params: Any) -> Any:
        return params, None

    def gradient(self, gradient: Any, params: Any, row: Any, shared: Any, run: Any) -> Any:
        return gradient

    def finish(self, moved: Any, row: Any, shared: Any, run: Any) -> Any:
        return jax.tree.map(jnp.sum, row), None


class own(correction.Correction):
    """Counts its runs, in numbers of Python.

    Args:
        forgets: method that returns nothing.
    """

    forgets: str | None = afl.options.static(default=None)

    def init(self, params: Any) -> Any:
        return None if self.forgets == "init" else (0, 0.0)

    def gradient(self, gradient: Any, params: Any, row: Any, shared: Any, run: Any) -> Any:
        return None if self.forgets == "gradient" else gradient

    def finish(self, moved: Any, row: Any, shared: Any, run: Any) -> Any:
        return None if self.forgets == "finish" else (row + 1, None)


def test_numbers_of_python_in_a_row_are_arrays() -> None:
    client = afl.Client(learning_rate=RATE, steps=K, correction=own())
    row, shared = first_memory(client, {"w": jnp.ones(3)}), first_shared(client, {"w": jnp.ones(3)})
    assert row is not None and (row.correction.dtype, shared.dtype) == (jnp.int32, jnp.float32)
    problem = quadratic()
    afl.Simulation(problem.data, problem.model, client, afl.server.fedavg(), CLOCKS["rounds"]()).check()


@pytest.mark.parametrize(
    ("part", "clock", "options", "message"),
    [
        (correction.scaffold(), "rounds", {"momentum": 0.9}, "optimiser is sgd with momentum"),
        (correction.scaffold(), "rounds", {"optimizer": optax.adam}, "expected optax.sgd without momentum"),
        (correction.scaffold(), "rounds", {"optimizer": optax.sgd(0.1), "learning_rate": None}, "expected optax.sgd"),
        (correction.feddyn(0.0), "rounds", {}, "alpha must be > 0"),
        ("scaffold", "rounds", {}, "no attribute 'check'"),
        (correction.feddyn(1.0), "rounds", {"optimizer": optax.polyak_sgd, "learning_rate": None}, "'value'"),
        (shrinking(), "rounds", {}, "the end of a run.*shrinking"),
        (own("gradient"), "rounds", {}, r"`gradient` of the correction own must return {.*; it returned None"),
        (own("finish"), "rounds", {}, "cannot unpack"),
        (own("init"), "rounds", {}, "cannot unpack"),
        (correction.scaffold(), "repeated", {}, "takes runs several times"),
    ],
)
def test_a_correction_that_cannot_work_is_an_error_before_compilation(
    part: Any, clock: str, options: dict[str, Any], message: str
) -> None:
    made = afl.clock.bernoulli(0.5) if clock == "repeated" else CLOCKS[clock]()
    given = {"learning_rate": RATE, "steps": K, "correction": part} | options
    given = {name: value for name, value in given.items() if value is not None}
    problem = quadratic()
    with pytest.raises((ValueError, TypeError, AttributeError), match=message):
        afl.Simulation(problem.data, problem.model, afl.Client(**given), afl.server.fedavg(), made).check()


@pytest.mark.parametrize(
    "server",
    [
        afl.server.fedopt(aggregate=afl.aggregate.median()),
        afl.server.fedbuff(aggregate=afl.aggregate.private_mean(1.0)),
        afl.server.basgd(buffers=3),
        afl.server.kardam(),
        afl.server.picky_sgd(),
    ],
    ids=lambda server: server.name,
)
def test_feddyn_is_refused_where_it_would_undo_the_defence_of_a_server(server: Any) -> None:
    """It adds the received updates to the model, forged ones as they are."""
    single = server.single
    clock = afl.clock.free_running(concurrency=4, buffer=1 if single else 3, durations=PLACES)
    simulation(correction.scaffold(), clock, server).check()
    with pytest.raises(ValueError, match=f"adds all received updates to the model, whatever {server.name}"):
        simulation(correction.feddyn(1.0), clock, server).check()
