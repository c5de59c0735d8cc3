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
RULE = afl.server.asyncfeded(base_rate=1.0, eps=1.0, target_staleness=2.0, kappa=1.0)
CASES = {
    "fedbuff": (afl.server.fedbuff(), FREE, {"steps": 2}),
    "fadas": (afl.server.fadas(), dataclasses.replace(FREE, dispatch="step"), {"steps": 2}),
    "fedavg": (afl.server.fedavg(), afl.clock.synchronous(cohort=3, extra=2, durations=DELAYS), {"steps": 2}),
    "steps_of_runs": (afl.server.fedbuff(), FREE, {"steps": [[1, 2, 3]] * 3 + [[2, 1, 4]] * 3}),
    "asyncfeded": (RULE, afl.clock.free_running(concurrency=4, durations=DELAYS), {"epochs": 1}),
}


@functools.cache  # tests of equal simulations share their programs
def usual(name: str) -> afl.Simulation:
    server, clock, steps = CASES[name]
    client = afl.Client(learning_rate=0.05, batch_size=5, **steps)
    data = afl.data.synthetic(1.0, 1.0, clients=6, max_size=40, seed=1)
    return afl.Simulation(data, afl.models.logistic(num_classes=10), client, server, clock)


def simulation(name: str = "fedbuff", **changes: Any) -> afl.Simulation:
    return dataclasses.replace(usual(name), **changes) if changes else usual(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CASES, "attacked"])
def test_steps_are_those_of_run(name: str) -> None:
    sim = simulation("fedavg", attack=afl.attack.sign_flip(clients=0.5)) if name == "attacked" else simulation(name)
    trained = sim.train(STEPS, seed=SEED)
    state, first = sim.step(sim.init(SEED), HALF)
    state, second = sim.step(state, HALF)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), state.params, trained.params)
    assert int(state.step) == STEPS
    for column in {*first} & {*trained.dataset}:
        found = np.concatenate([first[column], second[column]])
        expected = trained.dataset[column].values
        found = np.where(expected == expected, found, np.nan)  # without an arrival it is 0, and missing in a result
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6, err_msg=column)
    assert {"time", "arrived", "client_id", "staleness", "delta_norm", "local_loss"} <= {*first} & {*trained.dataset}
    tested = sim.evaluate(state)
    np.testing.assert_allclose(tested["loss"], trained.dataset.final_loss, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "fedbuff"])
def test_they_are_traced_by_jit_scan_and_vmap_over_seeds(name: str) -> None:
    sim = simulation(name)
    expected = [sim.step(sim.step(sim.init(seed), HALF)[0], HALF)[0].params for seed in range(3)]

    def scanned(seed: Any) -> Any:
        def body(state: Any, _: None) -> Any:
            state, records = sim.step(state, 2)
            return state, records["time"]

        state, times = jax.lax.scan(body, sim.init(seed), None, length=STEPS // 2)
        return state.params, times.ravel()

    params, times = jax.jit(jax.vmap(scanned))(jnp.arange(3))
    for seed, one in enumerate(expected):
        found = jax.tree.map(lambda leaf, seed=seed: leaf[seed], params)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, one)
    assert (np.diff(times, axis=1) >= 0).all() and len(np.unique(times[:, -1])) == 3


class halved(afl.clock.free_running):
    """`free_running` that drops the second arrival of every server step."""

    delivers = afl.clock.free_running.delivers

    def next(self, state: Any, workload: Any) -> Any:
        state, step = super().next(state, workload)
        return state, step._replace(mask=step.mask.at[1].set(False))


class early(afl.clock.free_running):
    """`free_running` whose updates start from versions that do not exist yet."""

    delivers = afl.clock.free_running.delivers

    def next(self, state: Any, workload: Any) -> Any:
        state, step = super().next(state, workload)
        return state, step._replace(runs=step.runs._replace(version=step.runs.version + 5))


@pytest.mark.slow
def test_user_defined_clocks_have_zeros_in_padding_and_are_checked() -> None:
    sim = simulation(clock=halved(concurrency=4, buffer=2, durations=DELAYS))
    state, records = sim.step(sim.init(SEED), STEPS)
    assert not records["arrived"][:, 1].any() and (records["client_id"][:, 1] == -1).all()
    for name in ("delta_norm", "local_loss", "local_steps", "staleness"):
        assert (records[name][:, 1] == 0).all()
    trained = sim.train(STEPS, seed=SEED)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), state.params, trained.params)
    with pytest.raises(ValueError, match="version"):
        simulation(clock=early(concurrency=4, buffer=2, durations=DELAYS)).init()


@pytest.mark.slow
def test_hyperparameters_in_the_state_can_be_batched() -> None:
    sim = simulation("fedavg")
    state = sim.init(SEED)

    def last(rate: Any) -> Any:
        client = state.hyperparameters.client
        client = dataclasses.replace(client, hyperparameters=client.hyperparameters | {"learning_rate": rate})
        changed = dataclasses.replace(state, hyperparameters=state.hyperparameters._replace(client=client))
        return sim.evaluate(sim.step(changed, STEPS)[0])["loss"]

    rates = jnp.asarray([0.01, 0.05], jnp.float32)
    found = jax.vmap(last)(rates)
    for rate, loss in zip(rates, found, strict=True):
        other = dataclasses.replace(
            sim, client=dataclasses.replace(sim.client, hyperparameters={"learning_rate": float(rate)})
        )
        np.testing.assert_allclose(loss, other.run(STEPS, seed=SEED).final_loss, rtol=1e-5)


@pytest.mark.slow
def test_a_clock_whose_versions_are_not_known_is_refused_before_tracing() -> None:
    sim = simulation(clock=afl.clock.bernoulli(0.5, 0.5))
    with pytest.raises(UserError, match="the clock bernoulli cannot be advanced inside the program"):
        sim.init()
    client = afl.Client(learning_rate=0.1, steps=2, rate_schedule=lambda moment: 1.0 / (1 + moment.staleness))
    with pytest.raises(UserError, match="rate_schedule needs the schedule of free_running ahead of training"):
        simulation(client=client).init()
    sim = simulation("fedavg")
    for other in (simulation("fedbuff").init(), jax.tree.map(lambda leaf: leaf[None], sim.init())):
        with pytest.raises(UserError, match="the state is of another simulation, or has a member axis"):
            sim.step(other)
    with pytest.raises(TypeError, match="take the state that init or step returned, got dict"):
        sim.evaluate({})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"seed must be one whole number, got float32\[\]"):
        jax.vmap(sim.init)(jnp.arange(3.0))
    with pytest.raises(UserError, match="the attack sign_flip needs the seed before tracing; pass a Python int"):
        jax.vmap(simulation("fedavg", attack=afl.attack.sign_flip(clients=0.5)).init)(jnp.arange(3))
    known = jax.vmap(simulation("fedavg", attack=afl.attack.sign_flip(clients=[0, 1])).init)(jnp.arange(3))
    assert jax.tree.leaves(known.params)[0].shape[0] == 3
    with pytest.raises(UserError, match="the attack fixed_vector needs the seed before tracing"):
        jax.vmap(simulation("fedavg", attack=afl.attack.fixed_vector(1.0, clients=[0, 1])).init)(jnp.arange(3))
    with pytest.raises(ValueError, match="step: n must be at least 1, got 0"):
        simulation("fedavg").step(simulation("fedavg").init(), 0)
