"""Runs that are saved and taken up again."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import pathlib
import shutil
import warnings
from typing import Any

import jax
import numpy as np
import optax
import pytest

import jaxafl as afl
from jaxafl.callbacks import checkpoint, store
from jaxafl.engine import planner
from jaxafl.engine.execution import Execution
from jaxafl.sweep.outlook import outlook
from tests.callbacks.conftest import EVERY, PAIRS, Boom, assert_same, broken, simulation

slow = pytest.mark.slow


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_a_run_that_was_ended_goes_on_and_can_be_made_longer(name: str, tmp_path: pathlib.Path, capsys: Any) -> None:
    """Each time as if it had been made in one go."""
    sim, how = simulation(name), {"folder": tmp_path / "run", "checkpoint_every": 3, "eval_every": EVERY}
    assert broken(sim, 20, 12, **how).dataset.sizes["step"] == 12
    assert_same(sim.run(20, **how), sim.run(20, eval_every=EVERY))
    assert_same(sim.run(20, **how), sim.run(20, eval_every=EVERY))  # nothing is left to do
    assert "jaxafl: nothing left to do after 20 " in capsys.readouterr().err
    assert_same(sim.run(41, **how), sim.run(41, eval_every=EVERY))


class unpromised(afl.clock.free_running):
    def arrivals(self, num_clients: int) -> None:
        return None


class replying(afl.server.fedbuff):
    needs = afl.server.Needs(replies=True)

    def update(self, params: Any, state: Any, arrivals: Any) -> afl.server.Outcome:
        steps = jax.numpy.full(arrivals.mask.shape, 2, jax.numpy.int32)
        return super().update(params, state, arrivals)._replace(next_steps=steps)


@slow
def test_a_run_beside_its_clock_goes_on_with_the_places_that_it_needed(tmp_path: pathlib.Path) -> None:
    """A clock that promises no number of arrivals: the places of updates grow with the first steps."""
    clock = unpromised(concurrency=6, buffer=3, durations=afl.clock.uniform(1, 5))
    sim, how = dataclasses.replace(simulation(), server=replying(), clock=clock), {"eval_every": EVERY}
    broken(sim, 12, 8, folder=tmp_path, checkpoint_every=1, **how)
    assert_same(sim.run(12, folder=tmp_path, **how), sim.run(12, **how))


@slow
def test_runs_that_do_not_go_on_need_another_folder(tmp_path: pathlib.Path) -> None:
    simulation().run(17, folder=tmp_path, eval_every=EVERY)
    with pytest.raises(ValueError, match=r"17 of 17 server steps.* as 12"):
        simulation().run(12, folder=tmp_path, eval_every=EVERY)
    broken(simulation(), 30, 24, folder=tmp_path, checkpoint_every=3, eval_every=EVERY)
    with pytest.raises(ValueError, match=r"of 30 server steps.* as 41"):
        simulation().run(41, folder=tmp_path, eval_every=EVERY)


@slow
@pytest.mark.parametrize(("name", "wide"), [("planned", True), ("synchronous", False)])
def test_local_optimisers_and_early_stopping_go_on(name: str, wide: bool, tmp_path: pathlib.Path) -> None:
    client = afl.Client(optax.adam, learning_rate=0.05, epochs=3, batch_size=2, patience=1)
    client = dataclasses.replace(client, charge="executed" if name == "synchronous" else "planned")
    one = simulation(name)
    server = afl.server.fedavg() if name == "synchronous" else one.server
    sim, how = dataclasses.replace(one, client=client, server=server), {"folder": tmp_path, "eval_every": EVERY}
    with jax.enable_x64(wide):
        broken(sim, 12, 8, checkpoint_every=3, **how)
        assert_same(sim.run(12, **how), sim.run(12, eval_every=EVERY))


@pytest.mark.slow
def test_a_resumed_run_repeats_at_most_one_checkpoint_interval(tmp_path, monkeypatch):
    sim, how = simulation(), {"folder": tmp_path, "checkpoint_every": 2, "eval_every": 10}
    broken(sim, 40, 30, **how)
    made: list[tuple[int, int]] = []
    advance = Execution.advance

    def counting(self: Any, start: int, stop: int) -> Any:
        made.extend([(start, stop)] * (stop > start))  # a call of no step only tells the form of the records
        return advance(self, start, stop)

    monkeypatch.setattr(Execution, "advance", counting)
    sim.run(40, **how)
    assert made[0][0] >= 28 and made[-1][1] == 40


@pytest.mark.slow
def test_members_in_lockstep_resume(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also within a chunk of server steps."""
    monkeypatch.setattr("jaxafl.device.hardware._as_accelerator", True)
    monkeypatch.setattr("jaxafl.engine.lockstep._TOGETHER", 2)  # else a piece is a whole chunk
    sim, axes = simulation(), {"seed": [0, 1, 2]}
    assert outlook(sim, axes, 20, eval_every=5).programs == 1
    whole = afl.sweep(sim, axes, 20, eval_every=5)
    saves = []
    save = checkpoint.Checkpoint.save

    def saving(self: Any, execution: Any, progress: Any) -> None:
        save(self, execution, progress)
        saves.append(progress.step)
        if len(saves) == 7:
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint.Checkpoint, "save", saving)
    how = {"folder": tmp_path, "checkpoint_every": "0.000001s", "eval_every": 5}
    monkeypatch.setattr(checkpoint, "_BLOCKING_SHARE", 1e9)
    monkeypatch.setattr(checkpoint, "_WRITING_SHARE", 1e9)
    with pytest.raises(KeyboardInterrupt):
        afl.sweep(sim, axes, 20, **how)
    assert_same(afl.sweep(sim, axes, 20, **how), whole)


def test_other_versions_go_on_with_a_warning_that_is_kept(tmp_path, monkeypatch):
    sim = simulation()
    sim.run(4, folder=tmp_path, eval_every=2)
    known = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "9.9" if name == "numpy" else known(name))
    with pytest.warns(UserWarning, match=r"though numpy was '.*' and is '9\.9': last digits may differ"):
        found = sim.run(8, folder=tmp_path, eval_every=2)
    assert "is '9.9'" in found.attrs["resumed"]


@pytest.mark.parametrize(
    ("how", "error", "said"),
    [
        ({"checkpoint_every": 0}, ValueError, "checkpoint_every must be at least 1, got 0"),
        ({"checkpoint_every": "30 minutes"}, ValueError, r"such as \"30s\", \"5min\" or \"2h\", got '30 minutes'"),
        ({"folder": 3}, TypeError, "PathLike"),
        ({"folder": "file"}, FileExistsError, "file"),
    ],
)
def test_bad_input_is_named_before_anything_is_compiled(how, error, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("jaxafl.engine.execution.compiled", None)
    with pytest.raises(error, match=said):
        simulation().run(4, **({"folder": "run"} | how))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with checkpoints after 8 and 16 of 20 server steps."""
    folder = tmp_path_factory.mktemp("saved")
    broken(simulation(), 20, 20, folder=folder, checkpoint_every=8, eval_every=EVERY)
    assert sorted(path.name for path in folder.iterdir()) == ["0", "1"]
    return folder


@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize("damage", ["flip", "cut"])
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_damaged_checkpoint_is_passed_over(damage, place, saved, tmp_path):
    """Wherever it is: the newest whole one is found, or what was read is right."""
    shutil.copytree(saved, tmp_path / "run")
    files = [path for path in (tmp_path / "run" / "1").rglob("*") if path.is_file()]
    file = sorted(files)[place % len(files)]
    content = bytearray(file.read_bytes())
    if damage == "cut":
        file.write_bytes(content[: len(content) * place // 6])
    else:
        for at in range(len(content) * place // 6, len(content), max(1, len(content) // 3)):
            content[at] ^= 0x10
        file.write_bytes(content)
    whole = store.newest(saved)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = store.newest(tmp_path / "run")
    assert found is not None and whole is not None
    if found.number == 0:
        assert any("checkpoint 1" in str(one.message) and "damaged" in str(one.message) for one in said)
    else:  # a file that holds nothing that is needed
        assert found.about == whole.about
        for name, array in whole.arrays.items():
            np.testing.assert_array_equal(found.arrays[name], array)


def test_what_a_killed_process_has_left_is_no_checkpoint(tmp_path: pathlib.Path) -> None:
    """Half of a save, and half of a checkpoint that was being deleted."""
    arrays = store.flattened({"state": [np.arange(3)]})
    store.write(tmp_path, arrays, {})
    for name in (".part", "1"):
        (tmp_path / name).mkdir()
    (tmp_path / ".part" / "checkpoint.npz").write_bytes(b"half")
    assert store.newest(tmp_path).number == 0
    store.write(tmp_path, arrays, {})
    assert store.newest(tmp_path).number == 2 and not (tmp_path / ".part").exists()


@pytest.mark.slow
def test_a_disk_that_is_full_ends_the_save_and_not_the_run(tmp_path, monkeypatch):
    sim, how = simulation(), {"folder": tmp_path, "checkpoint_every": 5, "eval_every": 5}
    sim.run(10, **how)
    before = store.newest(tmp_path)

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write", full)
    with pytest.warns(UserWarning, match="not saved, while the run goes on.*No space left"):
        found = sim.run(20, **how)
    assert_same(found, sim.run(20, eval_every=5))
    after = store.newest(tmp_path)
    assert before is not None and after is not None and after.about == before.about


class StopHere(afl.callbacks.Callback):
    def begin(self, run: afl.callbacks.Run) -> None:
        self.seen = len(run.earlier)

    def chunk(self, chunk: afl.callbacks.Chunk) -> bool:
        self.seen += 1
        return self.seen == 3


def test_a_run_that_was_stopped_stays_stopped(tmp_path: pathlib.Path, capsys: Any) -> None:
    sim, how = simulation(), {"folder": tmp_path, "checkpoint_every": 2, "eval_every": EVERY}
    sim.run(EVERY, callbacks=StopHere(), **how)
    first = sim.run(20, callbacks=StopHere(), **how)
    assert first.sizes["step"] == 8
    for steps in (20, 20, 32):
        again = sim.run(steps, callbacks=StopHere(), **how)
        assert_same(again, first)
        assert again.attrs["stopped"] == first.attrs["stopped"]
        assert "nothing left to do after 8 server steps" in capsys.readouterr().err


def test_a_target_that_is_new_counts_for_what_the_folder_holds(tmp_path: pathlib.Path) -> None:
    sim, how = simulation(), {"folder": tmp_path, "eval_every": EVERY}
    loss = sim.run(20, **how)["loss"].values
    with pytest.raises(ValueError, match="until is reached at 0"):
        sim.run(32, until={"loss": loss[0]}, **how)
    assert sim.run(32, until={"loss": loss[-1]}, **how).sizes["step"] == 20


def test_a_sweep_goes_on_although_a_member_has_reached_its_target(tmp_path: pathlib.Path) -> None:
    axes, until = {"server.learning_rate": [0.01, 1.0]}, {"loss": 0.75}
    how = {"folder": tmp_path, "eval_every": EVERY, "until": until, "checkpoint_every": EVERY}
    boom = Boom(12)
    boom.ends = {}
    with pytest.raises(RuntimeError, match="boom"):
        afl.sweep(simulation(), axes, 20, callbacks=boom, **how)
    going, stopped = map(str, afl.sweep(simulation(), axes, 20, **how)["stopped"].values)
    assert going == "None" and "has reached 0.75" in stopped


def test_a_run_that_has_failed_does_not_go_on(tmp_path: pathlib.Path) -> None:
    one = simulation(learning_rate=1e30)
    sim = afl.Simulation(one.data, one.model, one.client, afl.server.fedbuff(1e30), one.clock)
    how = {"folder": tmp_path, "eval_every": EVERY}
    first = sim.run(20, **how)
    assert first.attrs["failed_step"] >= 0
    for steps in (20, 32):
        assert_same(sim.run(steps, **how), first)


@pytest.mark.parametrize("name", ["planned", pytest.param("online", marks=slow)])
def test_a_run_that_was_planned_otherwise_does_not_go_on(name, tmp_path, monkeypatch):
    """Its store would be read by another plan; one whose clock runs beside the training has none."""
    sim, how = simulation(name), {"folder": tmp_path, "checkpoint_every": 3, "eval_every": EVERY}
    broken(sim, 20, 12, **how)
    reversed_ = lambda first, last, taken=(): (lambda at, count: ([count - 1 - place for place in at], count))(  # noqa: E731
        *places(first, last)
    )
    places = planner._places
    monkeypatch.setattr(planner, "_places", reversed_)
    if name == "online":
        assert_same(sim.run(20, **how), sim.run(20, eval_every=EVERY))
        return
    with pytest.raises(ValueError, match=r"holds a run under way that jaxafl .* planned otherwise than"):
        sim.run(20, **how)


@pytest.mark.slow
def test_lanes_of_another_device_are_kept(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which would choose others by itself."""
    sim, how = simulation(), {"folder": tmp_path, "checkpoint_every": 3, "eval_every": EVERY}
    broken(sim, 20, 12, **how)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr("jaxafl.callbacks.identity._device", lambda: "NVIDIA H200")
    with pytest.warns(UserWarning, match="device was 'cpu' and is 'NVIDIA H200'"):
        found = sim.run(20, **how)
    assert_same(found, sim.run(20, eval_every=EVERY, lanes=1))


@pytest.mark.slow
def test_folders_of_runs_and_sweeps_are_told_apart(tmp_path: pathlib.Path) -> None:
    sim = simulation()
    (tmp_path / "run" / "2024").mkdir(parents=True)  # of the user's own
    sim.run(4, folder=tmp_path / "run", eval_every=2)
    assert (tmp_path / "run" / "2024").is_dir()
    with pytest.raises(ValueError, match="holds checkpoints of a run"):
        afl.sweep(sim, {"seed": [0]}, 4, folder=tmp_path / "run")
    afl.sweep(sim, {"seed": [0]}, 4, folder=tmp_path / "sweep")
    with pytest.raises(ValueError, match="is the folder of a sweep"):
        sim.run(4, folder=tmp_path / "sweep")


@pytest.mark.slow
def test_a_sweep_skips_members_that_are_finished(tmp_path: pathlib.Path) -> None:
    sim, how = simulation(), {"folder": tmp_path, "checkpoint_every": 3, "eval_every": EVERY}
    axes = {"seed": [0, 1, 2], "server.learning_rate": [0.1, 0.5]}

    class Third(afl.callbacks.Callback):
        ends = {}

        def chunk(self, chunk: afl.callbacks.Chunk) -> None:
            if chunk.run.member["seed"] == 1 and chunk.stop == 12:
                raise RuntimeError("boom")

    with pytest.raises(RuntimeError) as caught:
        afl.sweep(sim, axes, 20, callbacks=Third(), devices=1, **how)
    assert not caught.value.dataset.participation.values[2].any()  # has not run
    damaged = tmp_path / "member-00000.nc"
    damaged.write_bytes(damaged.read_bytes()[:-200])
    with pytest.warns(UserWarning, match="the member runs again"):
        found = afl.sweep(sim, axes, 20, **how)
    assert_same(found, afl.sweep(sim, axes, 20, eval_every=EVERY))
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == []
    with pytest.raises(ValueError, match=r"run\.server_steps was 20 and is 24"):
        afl.sweep(sim, axes, 24, **how)
    with pytest.raises(ValueError, match=r"run\.along was \['seed', 'server\.learning_rate'\]"):
        afl.sweep(sim, dict(reversed(axes.items())), 20, **how)


def test_a_clock_that_gives_other_arrivals_does_not_continue_a_run(tmp_path, monkeypatch):
    sim, steps = simulation(), afl.clock.free_running.steps
    sim.run(4, eval_every=2, folder=tmp_path)
    fewer = lambda clock, fleet: steps(dataclasses.replace(clock, concurrency=2), fleet)  # noqa: E731
    monkeypatch.setattr(afl.clock.free_running, "steps", fewer)
    with pytest.raises(ValueError, match="other arrivals"):
        sim.run(8, eval_every=2, folder=tmp_path)
