"""`init`, `step`, `evaluate` and `iterate` compute what `run` computes."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxafl as afl
from jaxafl.options import UserError
from tests.problems import classifier, points
from tests.variants import slow_but

STEPS, SEED = 8, 3
HALF = STEPS // 2
DELAYS = afl.clock.lognormal(0.0, 1.0)
FREE = afl.clock.free_running(concurrency=4, buffer=2, durations=DELAYS)
RULE = afl.server.asyncfeded(base_rate=1.0, eps=1.0, target_staleness=2.0, kappa=1.0)
CASES = {
    "fedbuff": (afl.server.fedbuff(), FREE, {"steps": 2}),
    "fadas": (afl.server.fadas(), dataclasses.replace(FREE, dispatch="step"), {"steps": 2}),
    "fedavg": (afl.server.fedavg(), afl.clock.synchronous(cohort=3, extra=2, durations=DELAYS), {"steps": 2}),
    "mifa": (afl.server.mifa(), afl.clock.bernoulli(0.5, 0.5), {"steps": 2}),
    "asyncfeded": (RULE, afl.clock.free_running(concurrency=4, durations=DELAYS), {"epochs": 1}),
}


@functools.cache  # tests of equal simulations share their programs
def simulation(name: str = "fedbuff") -> afl.Simulation:
    server, clock, steps = CASES[name]
    client = afl.Client(learning_rate=0.05, batch_size=5, **steps)
    return classifier(data=points(6), client=client, server=server, clock=clock)


def close(found: Any, expected: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, expected)


@pytest.mark.parametrize("name", slow_but(["fedbuff", "fadas", "fedavg", "mifa"], "fedbuff"))
def test_steps_are_those_of_run(name: str) -> None:
    sim = simulation(name)
    trained = sim.train(STEPS, seed=SEED)
    state, first = sim.step(sim.init(SEED, STEPS), HALF)
    state, second = sim.step(state, HALF)
    close(state.params, trained.params)
    shared = {*first} & {*trained.dataset}
    assert {"time", "arrived", "client_id", "run_index", "staleness", "delta_norm", "local_loss"} <= shared
    for column in shared:
        expected = trained.dataset[column].values
        found = np.concatenate([first[column], second[column]])[tuple(map(slice, expected.shape))]  # may have padding
        found = np.where(expected == expected, found, np.nan)  # without an arrival it is 0, and missing in a result
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6, err_msg=column)
    np.testing.assert_allclose(sim.evaluate(state)["loss"], trained.dataset.final_loss, rtol=1e-5)
    with pytest.raises(UserError, match="server step 8 is not in the schedule of 8 server steps"):
        sim.step(state)


@pytest.mark.parametrize("name", ["fedbuff", "asyncfeded"])
def test_iterate_is_run(name: str) -> None:
    sim = simulation(name)
    trained = sim.train(STEPS, seed=SEED)
    versions, records = zip(*sim.iterate(STEPS, every=HALF, seed=SEED), strict=True)
    assert [version.step for version in versions] == [HALF, STEPS]
    close(versions[-1].params, trained.params)
    times = np.concatenate([one["time"] for one in records])
    np.testing.assert_array_equal(times, trained.dataset.time.values)


def test_steps_are_traced_by_jit_scan_and_vmap() -> None:
    sim = simulation()
    seeds = [0, 1, 2]
    expected = [sim.step(sim.init(seed, STEPS), STEPS)[0].params for seed in seeds]

    def scanned(state: Any) -> Any:
        state, records = jax.lax.scan(lambda state, _: sim.step(state, 2), state, None, length=HALF + 1)
        return state.params, records["arrived"]

    params, arrived = jax.jit(jax.vmap(scanned))(sim.init(seeds, STEPS))
    for place, one in enumerate(expected):
        close(jax.tree.map(lambda leaf, at=place: leaf[at], params), one)
    assert arrived[:, :HALF].all() and not arrived[:, HALF:].any()  # past the schedule nothing happens


@pytest.mark.slow
def test_hyperparameters_in_the_state_can_be_batched() -> None:
    sim = simulation("fedavg")
    state = sim.init(SEED, STEPS)

    def last(rate: Any) -> Any:
        client = state.hyperparameters.client
        client = dataclasses.replace(client, hyperparameters=client.hyperparameters | {"learning_rate": rate})
        changed = dataclasses.replace(state, hyperparameters=state.hyperparameters._replace(client=client))
        return sim.evaluate(sim.step(changed, STEPS)[0])["loss"]

    found = jax.vmap(last)(jnp.asarray([0.01, 0.05], jnp.float32))
    for rate, loss in zip((0.01, 0.05), found, strict=True):
        client = dataclasses.replace(sim.client, hyperparameters={"learning_rate": rate})
        other = dataclasses.replace(sim, client=client)
        np.testing.assert_allclose(loss, other.run(STEPS, seed=SEED).final_loss, rtol=1e-5)


def test_what_cannot_be_stepped_is_refused() -> None:
    with pytest.raises(UserError, match="iterate"):
        simulation("asyncfeded").init()
    with pytest.raises(ValueError, match="step: n must be at least 1, got 0"):
        simulation().step(simulation().init(), 0)


TIMES = afl.clock.constant([1.0, 1.3, 1.7, 2.1])


def phases(server: Any, clock: Any, steps: int, then: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
    """Moves of 10 server steps of a second phase [10, 4], and its records; client i has the gradient -e_i always."""
    x, y = np.eye(4, dtype=np.float32), np.zeros(4, np.int32)
    data = afl.data.from_arrays(x, y, np.arange(4), x_test=x[:1], y_test=y[:1])
    model = afl.models.from_functions(lambda *_: {"w": jnp.zeros(4)}, lambda p, b, k: -(b.x @ p["w"]), "linear")
    sim = afl.Simulation(data, model, afl.Client(learning_rate=1.0, steps=1, batch_size=None), server, clock)
    later = dataclasses.replace(sim, clock=then or clock)
    state = later.init(1, 10, start=sim.step(sim.init(0, 30), steps)[0])
    moves = []
    for _ in range(10):
        before = state.params["w"]
        state, records = later.step(state)
        moves.append((np.asarray(state.params["w"] - before), records))
    return np.stack([move for move, _ in moves]), jax.tree.map(lambda *one: np.concatenate(one), *[r for _, r in moves])


def test_a_phase_begins_rounds_and_ages_of_its_own_clock() -> None:
    """The server's state of the first phase refers to server steps and rounds of that phase."""
    moves, _ = phases(afl.server.ringleader(1.0), afl.clock.ringleader(durations=TIMES), 6)  # a round and a half
    np.testing.assert_allclose(moves.sum(1), 1.0, rtol=1e-5)
    _, records = phases(afl.server.throttle(1.0, 2.0), afl.clock.rounds_until_all(durations=TIMES), 3)
    assert records["times_in_round"][:4].tolist() == [0, 0, 0, 1]
    silent = afl.clock.free_running(4, durations=afl.clock.constant([1.0, 1.3, 1.7, np.inf]))
    for age in ("dispatch", "row"):
        aced = afl.server.aced(1.0, max_age=2, age=age)
        moves, _ = phases(aced, afl.clock.free_running(4, durations=TIMES), 30, silent)
        assert moves[0, 3] == pytest.approx(0.25) and not moves[3:, 3].any() and moves[3:].any(1).all()
