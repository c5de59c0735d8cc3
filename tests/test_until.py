"""`until`: what ends a run, exactly or at an evaluation."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxafl as afl
from tests.golden import GD, SERVERS, observe, simulation

WHOLE = 30


def fedbuff(clock: str = "buffer") -> afl.Simulation:
    algorithm, _, client = SERVERS["fedbuff"]
    return simulation(algorithm, clock, client)


def adaptive() -> afl.Simulation:
    """A clock beside the training."""
    return simulation(*SERVERS["asyncfeded"])


@pytest.mark.slow
@pytest.mark.parametrize("make", [pytest.param(fedbuff, marks=pytest.mark.slow), adaptive])
def test_time_updates_and_bytes_end_a_run_at_the_very_server_step(make: Any) -> None:
    sim = make()
    whole = sim.run(WHOLE, eval_every=10, observe=observe)
    size = int(whole.bytes_up[0] / whole.step_arrivals[0])
    sent = (whole.bytes_up + whole.bytes_down).values.cumsum()
    limits = {
        "time": (float(whole.time[12]) + 1e-6, 13),
        "updates": (int(whole.step_arrivals[:14].sum()), 14),
        "bytes": (float(sent[14]) - size / 2, 15),
    }
    for name, (limit, steps) in limits.items():
        ended = sim.run(until={name: limit}, eval_every=10, observe=observe)
        assert ended.sizes["step"] == steps == ended.eval_step.values[-1], name
        assert ended.attrs["stopped"] == f"until {name} {limit:g}"
        np.testing.assert_array_equal(ended.observe_params.values, whole.observe_params.values[: steps + 1])
    both = sim.run(20, until={"updates": limits["updates"][0], "time": 1e9, "loss": -1.0}, eval_every=10)
    assert both.sizes["step"] == 14
    fewer = sim.run(5, until={"time": 1e9}, eval_every=10)
    assert fewer.sizes["step"] == 5
    assert "stopped" not in fewer.attrs


@pytest.mark.slow
def test_a_schedule_ends_at_the_limits_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = fedbuff()
    whole = sim.schedule(WHOLE)
    for until, steps in (({"time": float(whole.time[12]) + 1e-6}, 13), ({"updates": int(whole.mask[:14].sum())}, 14)):
        np.testing.assert_array_equal(sim.schedule(until=until).time, whole.time[:steps])
    assert sim.schedule(5, until={"time": 1e9}).server_steps == 5
    with pytest.raises(ValueError, match="until accuracy, loss"):
        sim.schedule(until={"time": 5.0, "accuracy": 0.5, "loss": 1.0})
    with pytest.raises(TypeError, match="server_steps"):
        sim.schedule()
    monkeypatch.setattr("jaxafl.callbacks.limits.UNBOUNDED", 40)
    with pytest.raises(ValueError, match="no limit is reached"):
        sim.schedule(until={"time": 1e9})


@pytest.mark.slow
def test_a_target_ends_a_run_without_server_steps_at_an_evaluation() -> None:
    sim = fedbuff()
    whole = sim.run(60, eval_every=20)
    target = float(whole.loss[1:].min())
    ended = sim.run(until={"loss": target})
    reached = int(np.argmax(whole.loss.values <= target))
    assert ended.eval_step.values.tolist() == [20 * place for place in range(reached + 1)]
    assert "loss" in ended.attrs["stopped"]


@pytest.mark.parametrize(
    ("until", "words"),
    [
        (None, "server_steps"),
        ({}, "name -> limit"),
        ({"time": 0}, "until, time"),
        ({"updates": 1.5}, "until, updates"),
        ({"time": 1e-9}, "the first server step"),
        ({"acuracy": 0.5}, "acuracy"),
        ({"time": 5, "seconds": -1}, "seconds"),
    ],
)
def test_limits_that_cannot_be_are_said(until: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        fedbuff().run(until=until)


@pytest.mark.slow
def test_members_of_a_sweep_end_by_themselves() -> None:
    sim, seeds = fedbuff(), [0, 1, 2]
    grid = afl.sweep(sim, {"seed": seeds}, until={"time": 9.0}, eval_every=2, observe=observe)
    for seed in seeds:
        alone = sim.run(until={"time": 9.0}, eval_every=2, seed=seed, observe=observe)
        member = grid.sel(seed=seed)
        steps = alone.sizes["step"]
        assert int(member.final_step) == steps
        np.testing.assert_array_equal(member.observe_params.values[: steps + 1], alone.observe_params.values)
        assert np.isnan(member.time.values[steps:]).all()
    found = afl.at(grid, time=9.0)
    assert np.isfinite(found.loss).all()
    with pytest.raises(ValueError, match="server_steps, or a limit"):
        afl.sweep(sim, {"seed": seeds}, until={"loss": 0.1})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "limit", "first", "later"),
    [(fedbuff, "updates", 16, 26), (adaptive, "updates", 8, 20), (adaptive, "time", 11.0, 18.0)],
)
def test_a_run_goes_on_under_a_later_limit(make: Any, limit: str, first: Any, later: Any, tmp_path: Any) -> None:
    sim, options = make(), {"eval_every": 3, "observe": observe}
    first, later = {limit: first}, {limit: later}
    kept = {"folder": tmp_path, "checkpoint_every": 2}
    ended = sim.run(until=first, **options, **kept)
    again = sim.run(until=first, **options, **kept)
    assert ended.eval_step.values.tolist() == again.eval_step.values.tolist() == [0, 3, 6, 8]
    assert again.attrs["stopped"] == ended.attrs["stopped"]
    longer, alone = sim.run(until=later, **options, **kept), sim.run(until=later, **options)
    assert longer.attrs["stopped"] == alone.attrs["stopped"]
    assert longer.eval_step.values.tolist() == alone.eval_step.values.tolist()
    np.testing.assert_array_equal(longer.observe_params, alone.observe_params)


class breaks(afl.server.asyncfeded):
    """Its parameters stop being finite at server step 9."""

    def update(self, params: Any, state: Any, arrivals: Any) -> Any:
        outcome = super().update(params, state, arrivals)
        broken = jax.tree.map(lambda leaf: jnp.where(arrivals.step == 9, jnp.inf, leaf), outcome.params)
        return outcome._replace(params=broken)


@pytest.mark.slow
def test_a_run_beside_its_clock_that_would_fail_after_a_limit_ends_before() -> None:
    sim = simulation(breaks(base_rate=0.8, eps=0.9, target_staleness=1.5, kappa=1.3), "arrival", GD)
    with pytest.warns(match="stopped being finite"):
        whole = sim.run(60, eval_every=60)
    assert whole.attrs["failed_step"] == 9
    ended = sim.run(until={"time": float(whole.time[9]) - 0.01}, eval_every=60)
    assert ended.sizes["step"] == 9 and ended.attrs["failed_step"] == -1
    assert ended.attrs["stopped"].startswith("until time")
