"""Sweeps whose batches run in other processes."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pathlib
import random
import signal
import threading
import time
import types
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

import jax
import numpy as np
import pytest

import jaxafl as afl
from jaxafl.sweep import executors
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


@pytest.mark.slow
def test_workers_that_die_use_up_no_retries(tmp_path: pathlib.Path) -> None:
    """Here they die before they begin, which may happen in a queue; not for ever."""
    executor = Here(lambda call: OSError("the node is gone") if call <= 4 else None)
    found = afl.sweep(simulation(), AXES, STEPS, eval_every=EVERY, executor=executor, folder=tmp_path, retries=0)
    assert differing(found, expected()) == [] and executor.calls == 6


def test_workers_that_never_begin_end_the_sweep(tmp_path: pathlib.Path) -> None:
    executor = Here(lambda call: OSError("no such partition"))
    with pytest.raises(RuntimeError, match="workers do not begin: OSError: no such partition"):
        afl.sweep(simulation(), AXES, STEPS, executor=executor, folder=tmp_path)


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
    how |= dict(callbacks=Fragile(mended), retries=2)
    with pytest.warns(UserWarning, match="given up in the sweep at seed=1.*after 3 errors: ValueError: this seed does"):
        found = afl.sweep(simulation(), AXES, STEPS, **how)
    assert executor.calls == 1 + 3
    assert np.isnan(found.loss.sel(seed=1)).all() and np.isfinite(found.loss.sel(seed=0)).all()
    assert found.server_steps_made.values.tolist() == [[STEPS, STEPS], [0, 0]]
    assert (found.member_error.sel(seed=0) == "").all()
    assert all("this seed does not work" in str(text) for text in found.member_error.sel(seed=1).values)
    mended.touch()  # whoever starts it again runs what is missing
    again = afl.sweep(simulation(), AXES, STEPS, **how)
    assert executor.calls == 5 and "member_error" not in again and differing(again, expected()) == []


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
    assert found.server_steps_made.values.tolist() == [[STEPS, STEPS], [EVERY, EVERY]]
    whole = expected()
    np.testing.assert_array_equal(found.loss.values[0], whole.loss.values[0])
    np.testing.assert_array_equal(found.client_id.sel(seed=0).values, whole.client_id.sel(seed=0).values)
    assert (found.client_id.sel(seed=1) == -1).all() and np.isnan(found.time.sel(seed=1)).all()


@pytest.mark.slow
def test_gathered_values_are_read_when_they_are_used(tmp_path: pathlib.Path) -> None:
    made = afl.sweep(simulation(), AXES, STEPS, eval_every=EVERY, folder=tmp_path)
    found = afl.gather(tmp_path)
    (tmp_path / "member-00000.nc").unlink()
    np.testing.assert_array_equal(found.loss[1, 1].values, made.loss.values[1, 1])
    np.testing.assert_array_equal(found.client_id[1, :, 2:5, 0].values, made.client_id.values[1, :, 2:5, 0])
    np.testing.assert_array_equal(found.loss.isel(seed=[1], evaluation=[0, 2]), made.loss.values[1:, :, [0, 2]])
    with pytest.raises(FileNotFoundError):
        _ = found.loss[0, 0].values


@pytest.mark.slow
def test_members_of_other_shapes_are_gathered(tmp_path: pathlib.Path) -> None:
    axes = {"clock.buffer": [1, 2], "seed": [0, 1]}
    made = afl.sweep(simulation(), axes, until={"updates": STEPS}, eval_every=EVERY, folder=tmp_path)
    assert made.final_step.values.tolist() == [[STEPS, STEPS], [STEPS // 2, STEPS // 2]]
    gathered = afl.gather(tmp_path).load()
    assert differing(gathered, made) == []
    np.testing.assert_array_equal(gathered.server_steps_made, made.final_step)


def test_a_folder_that_is_no_sweep(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="is not the folder of a sweep"):
        afl.gather(tmp_path)


@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        (dict(executor=3), TypeError, r"must have a method submit"),
        (dict(executor=ProcessPoolExecutor), TypeError, r"jaxafl.process_pool\(4\)"),
        (dict(executor=ProcessPoolExecutor(1, FORK)), ValueError, r"forks this process.*jaxafl.process_pool\(4\)"),
        (dict(executor=lambda: ProcessPoolExecutor(1, FORK)), ValueError, "ProcessPoolExecutor that forks"),
        (dict(executor=lambda: 3), TypeError, "the function has made 3, which has no method submit"),
        (dict(executor=Here(), folder=None), ValueError, "needs a folder"),
        (dict(executor=Here(), devices="all"), ValueError, "leaves devices to the workers"),
        (dict(executor=Here(), retries=-1), ValueError, "retries"),
    ],
)
def test_bad_executors(how: dict[str, Any], kind: type[Exception], message: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(kind, match=message):
        afl.sweep(simulation(), AXES, STEPS, **{"folder": tmp_path, **how})


def test_something_that_cannot_be_shipped(tmp_path: pathlib.Path) -> None:
    callback = Fragile(tmp_path)
    callback.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"cannot be sent to other processes .*lock.*inside the function"):
        afl.sweep(simulation(), AXES, STEPS, folder=tmp_path, executor=Here(), callbacks=callback)


def test_bad_pools() -> None:
    with pytest.raises(ValueError, match="workers must be at least 1"):
        afl.process_pool(0)


# ---- real processes


@pytest.mark.slow
def test_a_pool_whose_workers_are_killed(tmp_path: pathlib.Path) -> None:
    axes, pools = {"seed": list(range(6))}, []
    make = afl.process_pool(2)

    def making() -> Any:
        pools.append(make())
        return pools[-1]

    ended = threading.Event()
    killed: list[int] = []

    def kill() -> None:
        draw, begun = random.Random(0), 0
        while not ended.wait(draw.uniform(1, 3)) and len(killed) < 3:
            before, begun = begun, sum(path.stat().st_size for path in tmp_path.glob(".begun-*"))
            there = list((pools[-1]._processes or {}) if pools else ())
            if begun > before and there:  # else workers may still start, on a slow machine
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.kill(worker := draw.choice(there), signal.SIGKILL)
                    killed.append(worker)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        found = afl.sweep(
            simulation(), axes, 400, eval_every=100, folder=tmp_path, executor=making, checkpoint_every=50, retries=0
        )
    finally:
        ended.set()
        killer.join()
    assert killed and len(pools) > 1
    assert differing(found, afl.sweep(simulation(), axes, 400, eval_every=100)) == []


@pytest.mark.slow
def test_a_pool_that_cannot_be_made_anew(tmp_path: pathlib.Path) -> None:
    pool = afl.process_pool(1)()
    killer = threading.Thread(target=_kill_first, args=(pool,))
    killer.start()
    with pytest.raises(RuntimeError, match="Give a function that makes an executor"):
        afl.sweep(simulation(), {"seed": [0]}, 400_000, eval_every=1000, folder=tmp_path, executor=pool)
    killer.join()


def _kill_first(pool: Any) -> None:
    while not pool._processes:
        time.sleep(0.1)
    time.sleep(1)
    os.kill(next(iter(pool._processes)), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.skipif(not pathlib.Path("/proc/self/status").exists(), reason="asks Linux which signals a process notices")
def test_a_pool_whose_idle_worker_is_killed(tmp_path: pathlib.Path) -> None:
    """Who waits for work holds a lock; the pool tells the others to end, and one that came back for work would wait for
    that lock for ever."""
    pool = afl.process_pool(2)()
    list(pool.map(_cores, (3.0, 3.0)))  # both have begun
    workers = set(pool._processes)
    killer = threading.Thread(target=_kill_idle, args=(workers,))
    killer.start()
    with pytest.raises(RuntimeError, match="Give a function that makes an executor"):
        afl.sweep(simulation(), {"seed": [0]}, 400_000, eval_every=1000, folder=tmp_path, executor=pool)
    killer.join()
    ending = threading.Thread(target=pool.shutdown, daemon=True)
    ending.start()
    ending.join(60)
    still_there = [worker for worker in workers if pathlib.Path(f"/proc/{worker}").exists()]
    for worker in still_there:
        os.kill(worker, signal.SIGKILL)
    assert not still_there


@pytest.mark.parametrize(
    ("sent", "ends"),
    [(signal.SIGTERM, [signal.SIGTERM]), pytest.param(signal.SIGUSR1, [], marks=pytest.mark.slow)],
)
def test_a_worker_that_is_told_to_end_does_though_its_batch_fails(
    sent: signal.Signals, ends: list[int], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And goes on after SIGUSR1, which asks for no more than to save."""

    def failing(*args: Any) -> None:
        os.kill(os.getpid(), sent)
        raise OSError("no space left")

    afl.sweep(simulation(), {"seed": [0]}, 1, folder=tmp_path)
    (tmp_path / "member-00000.nc").unlink()
    (tmp_path / executors._WORK).touch()
    work = types.SimpleNamespace(run=failing)
    monkeypatch.setattr(executors, "_work", lambda folder, written: [([0], work, False)])
    raised: list[int] = []
    monkeypatch.setattr(signal, "raise_signal", raised.append)
    said = executors.Task()(str(tmp_path), 0)
    assert raised == ends and (said or "").startswith("OSError: no space left")


def _kill_idle(workers: set[int]) -> None:
    """Kills the worker that does not look out for SIGTERM, once another does."""
    while not (busy := {worker for worker in workers if _notices(worker, signal.SIGTERM)}):
        time.sleep(0.1)
    for worker in workers - busy:
        os.kill(worker, signal.SIGKILL)


def _notices(process: int, number: int) -> bool:
    status = pathlib.Path(f"/proc/{process}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (number - 1) & 1)


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
def test_submitit(tmp_path: pathlib.Path) -> None:
    submitit = pytest.importorskip("submitit")
    executor = submitit.AutoExecutor(folder=tmp_path / "logs", cluster="local")
    executor.update_parameters(timeout_min=10)
    found = afl.sweep(simulation(), AXES, STEPS, eval_every=EVERY, folder=tmp_path / "sweep", executor=executor)
    assert differing(found, expected()) == []


@pytest.mark.slow
def test_functions_of_the_user_are_shipped(tmp_path: pathlib.Path) -> None:
    """Also those that no module holds."""
    sim, how = simulation(), dict(eval_every=EVERY, observe=lambda params: {"first": jax.tree.leaves(params)[0].sum()})
    found = afl.sweep(sim, AXES, STEPS, folder=tmp_path, executor=afl.process_pool(1), **how)
    assert differing(found, afl.sweep(sim, AXES, STEPS, **how)) == []
    assert found.observe_first.shape == (2, 2, STEPS + 1)
