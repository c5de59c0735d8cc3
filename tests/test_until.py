"""`until`: what ends a run, exactly or at an evaluation."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import jaxafl as afl
from jaxafl.callbacks.limits import parsed_limits
from jaxafl.cli.show import limits_reached, wasted_runs
from jaxafl.plot.report.lines import ending
from tests.equivalence import CLOCKS, GD, SERVERS, _simulation, observe

WHOLE = 30


def fedbuff(clock: str = "buffer") -> afl.Simulation:
    algorithm, _, client = SERVERS["fedbuff"]
    return _simulation(algorithm, CLOCKS[clock], client)


def adaptive() -> afl.Simulation:
    """A clock beside the training."""
    return _simulation(
        afl.server.asyncfeded(base_rate=0.8, eps=0.9, target_staleness=1.5, kappa=1.3), CLOCKS["arrival"], GD
    )


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
        np.testing.assert_array_equal(ended.observe_all.values, whole.observe_all.values[: steps + 1])
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
    with pytest.raises(ValueError, match=r"^schedule: until accuracy, loss is only known in training; .*run\(until="):
        sim.schedule(until={"time": 5.0, "accuracy": 0.5, "loss": 1.0})
    with pytest.raises(ValueError, match=r"^schedule: until seconds is only known in training"):
        sim.schedule(5, until={"seconds": 5.0})
    with pytest.raises(TypeError, match="schedule needs server_steps, or limits"):
        sim.schedule()
    monkeypatch.setattr("jaxafl.callbacks.limits.UNBOUNDED", 40)
    with pytest.raises(ValueError, match=r"schedule: no limit is reached in 40 server steps; .*server_steps"):
        sim.schedule(until={"time": 1e9})


def test_the_model_at_a_limit_of_time_is_that_of_the_time() -> None:
    ended = fedbuff().run(until={"time": 9.0}, eval_every=1000)
    found = afl.at(ended, time=9.0)
    assert float(found.eval_time) == ended.time.values[-1] <= 9.0
    assert np.isfinite(found.loss)


@pytest.mark.slow
def test_a_target_ends_a_run_without_server_steps_at_an_evaluation() -> None:
    sim = fedbuff()
    whole = sim.run(60, eval_every=20)
    target = float(whole.loss[1:].min())
    ended = sim.run(until={"loss": target})
    reached = int(np.argmax(whole.loss.values <= target))
    assert ended.eval_step.values.tolist() == [20 * place for place in range(reached + 1)]
    assert "loss" in ended.attrs["stopped"]


@pytest.mark.slow
def test_a_run_that_reaches_none_of_its_limits_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxafl.callbacks.limits.UNBOUNDED", 20)
    ended = fedbuff().run(until={"loss": -1.0})
    assert ended.sizes["step"] == 20 and ended.attrs["stopped"] == "20 server steps are over, and no limit was reached"


@pytest.mark.slow
def test_a_run_with_a_limit_goes_on_in_its_folder(tmp_path: Any) -> None:
    sim, options = fedbuff(), {"eval_every": 3, "folder": tmp_path, "checkpoint_every": 2, "observe": observe}
    first = sim.run(until={"updates": 12}, **options)
    again = sim.run(until={"updates": 12}, **options)
    longer = sim.run(until={"updates": 20}, **options)
    assert first.sizes["step"] == again.sizes["step"] == 6
    assert longer.sizes["step"] == 10
    np.testing.assert_array_equal(longer.observe_all, sim.run(10, eval_every=3, observe=observe).observe_all)


def test_the_shell_counts_refused_and_stopped_runs() -> None:
    assert wasted_runs(xr.Dataset(attrs={"runs_refused": 3, "runs_lost": 1})) == [
        "runs that no server step took: 3 refused, 1 lost"
    ]
    swept = xr.Dataset({"runs_stopped": ("seed", [2.0, np.nan])})  # the second member has none
    assert wasted_runs(swept) == ["runs that no server step took: 1 stopped"]
    assert wasted_runs(xr.Dataset()) == []


@pytest.mark.parametrize(
    ("steps", "until", "words"),
    [
        (None, None, "needs server_steps, or limits"),
        (None, {}, "name -> limit"),
        (None, 3600, "name -> limit"),
        (None, {"time": 0}, "until, time"),
        (None, {"updates": 1.5}, "until, updates"),
        (None, {"updates": "7"}, "until, updates must be a number"),
        (None, {"time": 1e-9}, "the first server step is at"),
        (None, {"acuracy": 0.5}, "acuracy"),
        (None, {"time": 5, "seconds": -1}, "must be > 0"),
    ],
)
def test_limits_that_cannot_be_are_said(steps: Any, until: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        fedbuff().run(steps, until=until)


@pytest.mark.slow
def test_members_of_a_sweep_end_by_themselves() -> None:
    sim, seeds = fedbuff(), [0, 1, 2]
    grid = afl.sweep(sim, {"seed": seeds}, until={"time": 9.0}, eval_every=2, observe=observe)
    for seed in seeds:
        alone = sim.run(until={"time": 9.0}, eval_every=2, seed=seed, observe=observe)
        member = grid.sel(seed=seed)
        steps = alone.sizes["step"]
        assert int(member.final_step) == steps
        np.testing.assert_array_equal(member.observe_all.values[: steps + 1], alone.observe_all.values)
        assert np.isnan(member.time.values[steps:]).all()
    found = afl.at(grid, time=9.0)
    assert np.isfinite(found.loss).all()
    with pytest.raises(ValueError, match="server_steps, or a limit"):
        afl.sweep(sim, {"seed": seeds}, until={"loss": 0.1})


@pytest.mark.slow
def test_a_comparison_ends_at_the_time_that_it_compares_at() -> None:
    both = {"one": fedbuff(), "other": fedbuff("step")}
    found = afl.compare(both, 2, until={"time": 30.0}, eval_every=3)
    assert found.at == {"time": 30.0}
    for result in found.results.values():
        assert (result.final_time <= 30.0).all()
    assert np.isfinite(found.summary(metric="loss")["one"].values).all()
    assert found.summary(metric="loss")["one"].values.tolist() == found.results["one"].final_loss.values.tolist()


def test_the_shell_takes_limits() -> None:
    assert parsed_limits("time=3600, accuracy=0.9") == {"time": 3600.0, "accuracy": 0.9}
    with pytest.raises(ValueError, match="name=number"):
        parsed_limits("time")


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["time", "updates"])
def test_a_run_beside_its_clock_goes_on_under_a_later_limit(limit: str, tmp_path: Any) -> None:
    sim, options = adaptive(), {"eval_every": 3, "observe": observe}
    first, later = ({limit: value} for value in {"time": (9.0, 15.0), "updates": (8, 20)}[limit])
    kept = {"folder": tmp_path, "checkpoint_every": 2}
    ended = sim.run(until=first, **options, **kept)
    again = sim.run(until=first, **options, **kept)
    assert ended.eval_step.values.tolist() == again.eval_step.values.tolist() == [0, 3, 6, 8]
    assert again.attrs["stopped"] == ended.attrs["stopped"]
    longer, alone = sim.run(until=later, **options, **kept), sim.run(until=later, **options)
    assert longer.attrs["stopped"] == alone.attrs["stopped"]
    assert longer.eval_step.values.tolist() == alone.eval_step.values.tolist()
    np.testing.assert_array_equal(longer.observe_all, alone.observe_all)


class breaks(afl.server.asyncfeded):
    """Its parameters stop being finite at server step 9."""

    def update(self, params: Any, state: Any, arrivals: Any) -> Any:
        outcome = super().update(params, state, arrivals)
        broken = jax.tree.map(lambda leaf: jnp.where(arrivals.step == 9, jnp.inf, leaf), outcome.params)
        return outcome._replace(params=broken)


@pytest.mark.slow
def test_a_run_beside_its_clock_that_would_fail_after_a_limit_ends_before() -> None:
    sim = _simulation(breaks(base_rate=0.8, eps=0.9, target_staleness=1.5, kappa=1.3), CLOCKS["arrival"], GD)
    with pytest.warns(match="stopped being finite"):
        whole = sim.run(60, eval_every=60)
    assert whole.attrs["failed_step"] == 9
    ended = sim.run(until={"time": float(whole.time[9]) - 0.01}, eval_every=60)
    assert ended.sizes["step"] == 9 and ended.attrs["failed_step"] == -1
    assert ended.attrs["stopped"].startswith("until time")


@pytest.mark.slow
def test_a_run_that_a_target_stopped_goes_on_to_another_target(tmp_path: Any) -> None:
    sim, options = fedbuff(), {"eval_every": 1, "observe": observe}
    whole = sim.run(WHOLE, **options)
    targets = float(whole.loss[1:].max()), float(whole.loss.min())
    ended = sim.run(WHOLE, until={"loss": targets[0]}, folder=tmp_path, **options)
    assert ended.sizes["step"] < int(np.argmin(whole.loss.values))
    longer = sim.run(WHOLE, until={"loss": targets[1]}, folder=tmp_path, **options)
    assert longer.sizes["step"] == int(np.argmin(whole.loss.values))
    everything = sim.run(WHOLE, folder=tmp_path, **options)
    assert "stopped" not in everything.attrs
    np.testing.assert_array_equal(everything.observe_all, whole.observe_all)


@pytest.mark.slow
def test_a_limit_does_not_change_how_often_a_run_in_a_folder_is_evaluated(tmp_path: Any) -> None:
    sim = fedbuff()
    first = sim.run(24, folder=tmp_path)
    assert first.eval_step.values.tolist() == [0, 20, 24]
    ended = sim.run(until={"loss": float(first.loss.min()) / 2, "updates": 90}, folder=tmp_path)
    assert ended.eval_step.values.tolist() == [0, 20, 40, 45]
    unlimited = sim.run(until={"loss": float(ended.loss.min())}, server_steps=60, folder=tmp_path)
    assert unlimited.eval_step.values.tolist() == [0, 20, 40, 60]


@pytest.mark.slow
def test_a_sweep_with_another_target_is_another_sweep(tmp_path: Any) -> None:
    sim, axes = fedbuff(), {"seed": [0, 1]}
    afl.sweep(sim, axes, until={"updates": 12, "loss": 1.0}, folder=tmp_path)
    with pytest.raises(ValueError, match=r"until\.loss was 1\.0 and is 0\.1"):
        afl.sweep(sim, axes, until={"updates": 12, "loss": 0.1}, folder=tmp_path)


@pytest.mark.slow
def test_runs_that_ended_as_asked_are_no_warning_in_a_report(tmp_path: Any) -> None:
    sim, axes = fedbuff(), {"seed": [0, 1]}
    page = afl.plot.report(afl.sweep(sim, axes, until={"updates": 12}), tmp_path / "page.html").read_text()
    assert "2 of 2 runs ended as asked: until updates 12." in page and "runs ended early" not in page
    stopped = afl.sweep(sim, axes, until={"updates": 12}, callbacks=afl.callbacks.StopAt(loss=1e9))
    assert "2 of 2 runs ended early" in afl.plot.report(stopped, tmp_path / "page.html").read_text()


def test_the_shell_and_the_report_name_the_limits_that_ended_runs() -> None:
    one = xr.Dataset({"time": ("step", [1.0, 8.0])}, attrs={"stopped": "until time 9"})
    assert limits_reached(one) == ["ended by a limit: until time 9"]
    assert ending(one) == "stopped after 2 server steps: until time 9"
    assert limits_reached(xr.Dataset()) == []
    several = xr.Dataset({"stopped": ("seed", ["until time 9", "", "until time 9"])})
    assert limits_reached(several) == ["ended by a limit: until time 9 (2 of 3 runs)"]
    many = xr.Dataset({"stopped": ("seed", [f"accuracy 0.9{n} has reached 0.9" for n in range(8)])})
    assert limits_reached(many)[4:] == [
        "ended by a limit: accuracy 0.94 has reached 0.9 (1 of 8 runs)",
        "and 3 more runs",
    ]


@pytest.mark.parametrize(
    ("until", "words"),
    [
        ({"Time": 3}, r"run, until: there is no limit 'Time'; there are time, updates, .*seconds .*mean 'time'"),
        (
            {"personal_accuracy": 0.9},
            r"no limit 'personal_accuracy'.*\. Metrics personal_\* need Client\(personal=",
        ),
        ({"validation_loss": 1}, r"Metrics validation_\* need held-out samples, such as data\.with_validation"),
        ({"average_loss": 1}, r'no limit \'average_loss\'.*average_\* need run\(diagnostics="average"\)'),
        ({"rounds": 3}, r"no limit 'rounds'.*server steps are `server_steps`"),
        ({"seconds": -3}, r"run: until, seconds must be > 0"),
        ({1: 2}, r"until needs names of limits"),
    ],
)
def test_limits_that_do_not_exist_are_answered_as_limits(until: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        fedbuff().run(5, until=until)


@pytest.mark.slow
def test_a_metric_of_the_average_ends_a_run() -> None:
    result = fedbuff().run(5, until={"average_loss": 1e9}, diagnostics="average")
    assert result.attrs["stopped"].startswith("average_loss") and not result.sizes["step"]


@pytest.mark.parametrize(
    "call",
    [lambda until: fedbuff().schedule(until=until), lambda until: afl.sweep(fedbuff(), {"seed": [0]}, until=until)],
    ids=["schedule", "sweep"],
)
def test_limits_that_are_too_low_name_the_called_function(call: Any, request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.id
    with pytest.raises(ValueError, match=rf"{name}: until time 1e-09 s: the first server step is at"):
        call({"time": 1e-9})


def test_a_sweep_names_the_limit_that_does_not_exist_before_it_asks_for_server_steps() -> None:
    with pytest.raises(ValueError, match=r"no limit 'tim'.*did you mean 'time'"):
        afl.sweep(fedbuff(), {"seed": [0, 1]}, until={"tim": 5})


def test_a_time_before_the_first_server_step_raises_inside_the_loop() -> None:
    with pytest.raises(ValueError, match="the first server step is at"):
        adaptive().run(5, until={"time": 1e-9})


def test_a_clock_without_time_reaches_no_limit_of_time() -> None:
    class recorded(afl.clock.synchronous):
        def next(self, state: Any, workload: Any) -> Any:
            state, step = super().next(state, workload)
            return state, step._replace(time=jnp.where(step.time > 2, jnp.nan, step.time))

    algorithm, _, client = SERVERS["fedbuff"]
    with pytest.raises(ValueError, match=r"until time 10: the clock recorded has no time \(NaN\) at server step 2"):
        _simulation(algorithm, recorded(), client).run(until={"time": 10})
