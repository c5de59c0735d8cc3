"""`init`, `step` and `evaluate` of a simulation are pure, and what `run` computes."""

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

STEPS, SEED = 8, 3
HALF = STEPS // 2
DELAYS = afl.clock.lognormal(0.0, 1.0)
FREE = afl.clock.free_running(concurrency=4, buffer=2, durations=DELAYS)
CASES = {
    "fedbuff": (afl.server.fedbuff(), FREE, {"steps": 2}),
    "fadas": (afl.server.fadas(), dataclasses.replace(FREE, dispatch="step"), {"steps": 2}),
    "fedavg": (afl.server.fedavg(), afl.clock.synchronous(cohort=3, extra=2, durations=DELAYS), {"steps": 2}),
    "steps_of_runs": (afl.server.fedbuff(), FREE, {"steps": [[1, 2, 3]] * 3 + [[2, 1, 4]] * 3}),
}


@functools.cache  # tests of equal simulations share their programs
def simulation(name: str = "fedbuff") -> afl.Simulation:
    server, clock, steps = CASES[name]
    client = afl.Client(learning_rate=0.05, batch_size=5, **steps)
    data = afl.data.synthetic(1.0, 1.0, clients=6, max_size=40, seed=1)
    return afl.Simulation(data, afl.models.logistic(num_classes=10), client, server, clock)


def assert_close(one: Any, other: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), one, other)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CASES, "attacked"])
def test_steps_are_those_of_run(name: str) -> None:
    attack = afl.attack.sign_flip(clients=0.5)
    sim = dataclasses.replace(simulation("fedavg"), attack=attack) if name == "attacked" else simulation(name)
    trained = sim.train(STEPS, seed=SEED)
    state, first = sim.step(sim.init(SEED), HALF)
    state, second = sim.step(state, HALF)
    assert_close(state.params, trained.params)
    assert int(state.step) == STEPS
    for column in {*first} & {*trained.dataset}:
        found = np.concatenate([first[column], second[column]])
        expected = trained.dataset[column].values
        found = np.where(expected == expected, found, np.nan)  # without an arrival it is 0, and missing in a result
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6, err_msg=column)
    assert {"time", "arrived", "client_id", "staleness", "delta_norm", "local_loss"} <= {*first} & {*trained.dataset}
    np.testing.assert_allclose(sim.evaluate(state)["loss"], trained.dataset.final_loss, rtol=1e-5)


@pytest.mark.slow
def test_steps_are_traced_by_jit_and_scan() -> None:
    sim = simulation()
    start = sim.init(SEED)

    @jax.jit
    def scanned(state: Any) -> Any:
        return jax.lax.scan(lambda state, _: sim.step(state, 2), state, None, length=STEPS // 2)

    state, records = scanned(start)
    expected, records_of_loop = sim.step(start, STEPS)
    assert_close(state.params, expected.params)
    np.testing.assert_allclose(np.ravel(records["time"]), records_of_loop["time"])


@pytest.mark.slow
def test_hyperparameters_in_the_state_can_be_batched() -> None:
    sim = simulation("fedavg")
    state = sim.init(SEED)

    def last(rate: Any) -> Any:
        client = state.hyperparameters.client
        client = dataclasses.replace(client, hyperparameters=client.hyperparameters | {"learning_rate": rate})
        changed = dataclasses.replace(state, hyperparameters=state.hyperparameters._replace(client=client))
        return sim.evaluate(sim.step(changed, STEPS)[0])["loss"]

    rates = [0.01, 0.05]
    for rate, loss in zip(rates, jax.vmap(last)(jnp.asarray(rates, jnp.float32)), strict=True):
        client = dataclasses.replace(sim.client, hyperparameters={"learning_rate": rate})
        alone = dataclasses.replace(sim, client=client).run(STEPS, seed=SEED)
        np.testing.assert_allclose(loss, alone.final_loss, rtol=1e-5)


@pytest.mark.slow
def test_states_of_other_simulations_are_refused() -> None:
    sim = simulation("fedavg")
    with pytest.raises(UserError, match="state"):
        sim.step(simulation("fedbuff").init())
    with pytest.raises(TypeError, match="state"):
        sim.evaluate({})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="n must be"):
        sim.step(sim.init(), 0)
