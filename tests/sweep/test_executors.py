"""Sweeps whose batches run in other processes."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from typing import Any

import jax
import numpy as np
import pytest

import jaxafl as afl
from tests.sweep.conftest import differing, simulation

STEPS, EVERY = 8, 4
FORK = multiprocessing.get_context("fork")
AXES: dict[str, Any] = {"seed": [0, 1], "server.learning_rate": [0.5, 1.0]}


class Here:
    """An executor that does at once what it is given; `fails`: number of the call -> what happens to it."""

    def __init__(self, fails: Callable[[int], BaseException | None] = lambda call: None) -> None:
        self.calls, self.fails = 0, fails

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        done: Future[Any] = Future()
        self.calls += 1
        if error := self.fails(self.calls):
            done.set_exception(error)
        else:
            done.set_result(function(*args))
        return done


def expected() -> Any:
    return afl.sweep(simulation(), AXES, STEPS, eval_every=EVERY)


@pytest.mark.slow
def test_the_result_is_that_of_one_process(tmp_path: pathlib.Path) -> None:
    executor = Here()
    found = afl.sweep(simulation(), AXES, STEPS, eval_every=EVERY, executor=executor, folder=tmp_path)
    assert differing(found, expected()) == []
    assert (found.server_steps_made == STEPS).all() and "member_error" not in found
    again = afl.sweep(simulation(), AXES, STEPS, eval_every=EVERY, executor=executor, folder=tmp_path)
    assert executor.calls == 2 and differing(again, found) == []  # two batches, of a schedule each


class Fragile(afl.callbacks.Callback):
    """Raises in the runs of one seed, unless there is a file."""

    def __init__(self, mended: pathlib.Path) -> None:
        self.mended = mended

    def begin(self, run: afl.callbacks.Run) -> None:
        if run.seed == 1 and not self.mended.exists():
            raise ValueError("this seed does not work")


@pytest.mark.slow
def test_a_batch_that_fails_every_time_is_missing_and_named(tmp_path: pathlib.Path) -> None:
    executor, mended = Here(), tmp_path / "mended"
    how: dict[str, Any] = dict(eval_every=EVERY, executor=executor, folder=tmp_path / "sweep")
    how |= dict(callbacks=Fragile(mended))
    with pytest.warns(UserWarning, match="not finished in the sweep at seed=1.*: ValueError: this seed does"):
        found = afl.sweep(simulation(), AXES, STEPS, **how)
    assert executor.calls == 2
    assert np.isnan(found.loss.sel(seed=1)).all() and np.isfinite(found.loss.sel(seed=0)).all()
    assert found.server_steps_made.values.tolist() == [[STEPS, STEPS], [0, 0]]
    assert (found.member_error.sel(seed=0) == "").all()
    assert all("this seed does not work" in str(text) for text in found.member_error.sel(seed=1).values)
    mended.touch()  # whoever starts it again runs what is missing
    again = afl.sweep(simulation(), AXES, STEPS, **how)
    assert executor.calls == 3 and "member_error" not in again and differing(again, expected()) == []


@pytest.mark.slow
def test_an_unfinished_sweep_can_be_gathered(tmp_path: pathlib.Path) -> None:
    class Broken(afl.callbacks.Callback):
        def chunk(self, chunk: afl.callbacks.Chunk) -> None:
            if chunk.run.seed == 1 and chunk.stop == EVERY:
                raise KeyboardInterrupt

    how = {"eval_every": EVERY, "folder": tmp_path, "callbacks": Broken(), "checkpoint_every": 2, "devices": 1}
    with pytest.raises(KeyboardInterrupt):
        afl.sweep(simulation(), AXES, STEPS, **how)
    found = afl.gather(tmp_path)
    assert found.server_steps_made.values.tolist() == [[STEPS, STEPS], [0, 0]]
    whole = expected()
    np.testing.assert_array_equal(found.loss.values[0], whole.loss.values[0])
    np.testing.assert_array_equal(found.client_id.sel(seed=0).values, whole.client_id.sel(seed=0).values)
    assert (found.client_id.sel(seed=1) == -1).all() and np.isnan(found.time.sel(seed=1)).all()


@pytest.mark.slow
def test_members_of_other_shapes_are_gathered(tmp_path: pathlib.Path) -> None:
    axes = {"clock.buffer": [1, 2], "seed": [0, 1]}
    made = afl.sweep(simulation(), axes, until={"updates": STEPS}, eval_every=EVERY, folder=tmp_path)
    assert made.final_step.values.tolist() == [[STEPS, STEPS], [STEPS // 2, STEPS // 2]]
    gathered = afl.gather(tmp_path)
    assert differing(gathered, made) == []
    np.testing.assert_array_equal(gathered.server_steps_made, made.final_step)


@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        (dict(executor=ProcessPoolExecutor(1, FORK)), ValueError, r"forks this process.*jaxafl.process_pool\(4\)"),
        (dict(executor=Here(), folder=None), ValueError, "needs a folder"),
        (dict(executor=Here(), devices="all"), ValueError, "leaves devices to the workers"),
        (dict(part=(0, 2), folder=None), ValueError, "needs a folder that all parts share"),
        (dict(part=(2, 2)), ValueError, r"part=\(2, 2\) needs .* with 0 <= i < n"),
    ],
)
def test_bad_executors(how: dict[str, Any], kind: type[Exception], message: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(kind, match=message):
        afl.sweep(simulation(), AXES, STEPS, **{"folder": tmp_path, **how})


@pytest.mark.slow
def test_parts_of_a_sweep_share_a_folder(tmp_path: pathlib.Path) -> None:
    """As jobs of a cluster do; each returns what is finished."""
    how: dict[str, Any] = {"eval_every": EVERY, "folder": tmp_path}
    first = afl.sweep(simulation(), AXES, STEPS, part=(0, 2), **how)
    assert first.server_steps_made.values.tolist() == [[STEPS, STEPS], [0, 0]]
    second = afl.sweep(simulation(), AXES, STEPS, part=(1, 2), **how)
    assert differing(second, expected()) == [] == differing(afl.gather(tmp_path), expected())
    with pytest.raises(ValueError, match="is not the folder of a sweep"):
        afl.gather(tmp_path.parent)


# ---- real processes


@pytest.mark.slow
def test_a_sweep_whose_worker_is_killed_goes_on_with_the_same_call(tmp_path: pathlib.Path) -> None:
    axes, how = {"seed": [0, 1]}, {"eval_every": 100, "folder": tmp_path, "checkpoint_every": 50}
    pool = afl.process_pool(1)()

    def kill() -> None:
        while not list(tmp_path.glob("batch-*/[0-9]*")) and not list(tmp_path.glob("member-*")):
            time.sleep(0.01)
        os.kill(next(iter(pool._processes)), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(BrokenExecutor):
        afl.sweep(simulation(), axes, 4000, executor=pool, **how)
    killer.join()
    found = afl.sweep(simulation(), axes, 4000, executor=afl.process_pool(2), **how)
    assert differing(found, afl.sweep(simulation(), axes, 4000, eval_every=100)) == []


@pytest.mark.slow
def test_each_worker_has_its_share_of_the_cores() -> None:
    cores = len(os.sched_getaffinity(0))
    if cores < 2:
        pytest.skip("one core")
    with afl.process_pool(2)() as pool:
        futures = [pool.submit(_cores, 3.0) for _ in range(2)]
        shares = [future.result() for future in futures]
    assert shares[0].isdisjoint(shares[1]) and len(shares[0] | shares[1]) == cores


def _cores(seconds: float) -> set[int]:
    time.sleep(seconds)
    return set(os.sched_getaffinity(0))


@pytest.mark.slow
def test_dask(tmp_path: pathlib.Path) -> None:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        executor = client.get_executor(pure=False)
        found = afl.sweep(simulation(), AXES, STEPS, eval_every=EVERY, folder=tmp_path, executor=executor)
    assert differing(found, expected()) == []


@pytest.mark.slow
def test_functions_of_the_user_are_shipped(tmp_path: pathlib.Path) -> None:
    """Also those that no module holds."""
    sim, how = simulation(), dict(eval_every=EVERY, observe=lambda params: {"first": jax.tree.leaves(params)[0].sum()})
    found = afl.sweep(sim, AXES, STEPS, folder=tmp_path, executor=afl.process_pool(1), **how)
    assert differing(found, afl.sweep(sim, AXES, STEPS, **how)) == []
    assert found.observe_first.shape == (2, 2, STEPS + 1)
