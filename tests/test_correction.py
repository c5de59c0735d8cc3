"""SCAFFOLD and FedDyn against slow NumPy loops over the arrivals of a schedule, and what they send."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxafl as afl
from jaxafl import correction
from tests.problems import START, descent, observe_w, quadratic
from tests.variants import slow_but

STEPS, RATE, K = 12, 0.2, 3
PLACES = afl.clock.uniform(1, 3)
CLOCKS: dict[str, Callable[[], Any]] = {
    "rounds": lambda: afl.clock.synchronous(cohort=3),
    "free": lambda: afl.clock.free_running(concurrency=4, buffer=2, durations=PLACES),
    "all at first": lambda: afl.clock.warm_up(CLOCKS["free"](), first="all"),
    "few": lambda: afl.clock.free_running(concurrency=4, period=1.0, durations=PLACES),
}


def simulation(part: Any, clock: Any, server: Any = None, **options: Any) -> afl.Simulation:
    given: dict[str, Any] = dict(learning_rate=RATE, steps=K, batch_size=None, correction=part)
    server = server or afl.server.fedbuff(weights="uniform", staleness="none")
    return descent(client=afl.Client(**given | options), server=server, clock=clock)


def scaffold_loop(
    schedule: Any, rates: Sequence[float] = (RATE,) * K, body: int = 3, corrects: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """x_0 .. x_T by Algorithm 1 of the paper, with the c that each run got with its model, and what stays at clients.

    Of START, `body` numbers are sent. The others are those of each client at the end, [6, 3 - body].
    """
    models, own = [np.array(START[:body])], np.zeros((6, body))
    shared, heads = [np.zeros(body)], np.tile(START[body:], (6, 1))
    for step in range(schedule.server_steps):
        deltas, messages = [np.zeros(body)], [np.zeros(body)]
        for place in np.nonzero(schedule.mask[step])[0]:
            client, version = schedule.client[step, place], schedule.version[step, place]
            x, c = np.append(models[version], heads[client]), shared[version]
            for rate in rates:
                change = np.append(c - own[client], 0 * heads[client])
                x = x - rate * (quadratic().clients[client].gradient(x) + corrects * change)
            heads[client] = x[body:]
            deltas.append(x[:body] - models[version])
            messages.append(-c - deltas[-1] / sum(rates))
            own[client] += messages[-1]
        models.append(models[-1] + np.sum(deltas, axis=0) / max(len(deltas) - 1, 1))
        shared.append(shared[-1] + np.sum(messages, axis=0) / 6)
    return np.stack(models), heads


def feddyn_loop(schedule: Any, alpha: float) -> np.ndarray:
    """x_0 .. x_T by Algorithm 1 of the paper, from the mean of the clients' models."""
    models, h, own = [np.array(START)], np.zeros(3), np.zeros((6, 3))
    for step in range(schedule.server_steps):
        deltas = []
        for place in np.nonzero(schedule.mask[step])[0]:
            client, start = schedule.client[step, place], models[schedule.version[step, place]]
            x = start.copy()
            for _ in range(K):
                x -= RATE * (quadratic().clients[client].gradient(x) - own[client] + alpha * (x - start))
            own[client] -= alpha * (x - start)
            deltas.append(x - start)
        h = h - alpha / 6 * np.sum(deltas, axis=0) if deltas else h
        models.append(models[-1] + np.mean(deltas, axis=0) - h / alpha if deltas else models[-1])
    return np.stack(models)


def models_of(sim: afl.Simulation, **how: Any) -> np.ndarray:
    return sim.run(STEPS, seed=3, observe=observe_w, **how).observe_w.values


ALGORITHMS: dict[str, tuple[Any, Callable[[Any], np.ndarray]]] = {
    "scaffold": (correction.scaffold(), lambda schedule: scaffold_loop(schedule)[0]),
    "feddyn": (correction.feddyn(0.5), lambda schedule: feddyn_loop(schedule, 0.5)),
}


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("clock", slow_but(CLOCKS, "free"))
def test_a_correction_is_its_algorithm(name: str, clock: str) -> None:
    part, loop = ALGORITHMS[name]
    sim = simulation(part, CLOCKS[clock]())
    want = loop(sim.schedule(STEPS, seed=3))
    np.testing.assert_allclose(models_of(sim, lanes=4), want, rtol=2e-5, atol=1e-5)


@pytest.mark.slow
def test_rates_of_schedules_are_summed() -> None:
    rates = optax.linear_schedule(0.3, 0.05, 3)
    sim = simulation(correction.scaffold(), CLOCKS["free"](), learning_rate=rates)
    want, _ = scaffold_loop(sim.schedule(STEPS, seed=3), [float(rates(k)) for k in range(K)])
    np.testing.assert_allclose(models_of(sim), want, rtol=2e-5, atol=1e-5)


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


class own(shrinking):
    """Counts its runs, in numbers of Python."""

    def init(self, params: Any) -> Any:
        return 0, 0.0

    def finish(self, moved: Any, row: Any, shared: Any, run: Any) -> Any:
        return row + 1, None


class forgetful(own):
    def serve(self, shared: Any, params: Any, messages: Any, arrivals: Any, num_clients: int) -> Any:
        return params


@pytest.mark.parametrize("part", [correction.storm(), correction.local_momentum()])
def test_a_run_at_rate_0_changes_no_momentum(part: Any) -> None:
    run = SimpleNamespace(rate_sum=jnp.float32(0), step=jnp.int32(1), start=jnp.ones(2))
    assert not part.finish(jnp.ones(2), part.init(jnp.ones(2))[0], (), run)[0].runs


def test_an_error_names_the_method_that_it_comes_from() -> None:
    with pytest.raises(ValueError) as raised:
        simulation(forgetful(), CLOCKS["rounds"]()).run(1)
    assert any("`serve` of the correction forgetful" in note for note in raised.value.__notes__)


def test_numbers_of_python_in_a_row_are_arrays() -> None:
    client = afl.Client(learning_rate=RATE, steps=K, correction=own())
    assert np.isfinite(descent(client=client, server=afl.server.fedavg(), clock=CLOCKS["rounds"]()).run(2).loss).all()


@pytest.mark.parametrize(
    ("part", "options", "message"),
    [
        (correction.scaffold(), {"momentum": 0.9}, "momentum"),
        (correction.scaffold(), {"optimizer": optax.adam}, "optax.sgd"),
        (correction.scaffold(), {"optimizer": optax.sgd(0.1), "learning_rate": None}, "optax.sgd"),
        (correction.feddyn(0.0), {}, "alpha"),
        (shrinking(), {}, "shrinking"),
    ],
)
def test_a_correction_that_cannot_work_is_an_error_before_compilation(part, options, message):
    given = {"learning_rate": RATE, "steps": K, "correction": part} | options
    client = {name: value for name, value in given.items() if value is not None}
    with pytest.raises((ValueError, TypeError), match=message):
        descent(client=afl.Client(**client), server=afl.server.fedavg(), clock=CLOCKS["rounds"]()).check()


def test_a_correction_takes_each_run_once() -> None:
    with pytest.raises(ValueError, match="takes runs several times"):
        simulation(correction.scaffold(), afl.clock.bernoulli(0.5), afl.server.fedavg()).check()


@pytest.mark.parametrize(
    "server",
    [
        afl.server.fedopt(aggregate=afl.aggregate.median()),
        afl.server.fedbuff(aggregate=afl.aggregate.private_mean(1.0)),
        afl.server.basgd(buffers=3),
        afl.server.kardam(),
        afl.server.picky_sgd(),
        afl.server.delay_adaptive(rule="drop", threshold=2),
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
