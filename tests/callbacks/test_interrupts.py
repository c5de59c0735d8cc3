"""Signals, noticed between pieces of server steps."""

from __future__ import annotations

import os
import pathlib
import signal
import threading
from typing import Any

import pytest

import jaxafl as afl
from jaxafl.callbacks import Callback, Chunk, Interrupted
from jaxafl.cli import main
from tests.callbacks.conftest import assert_same, simulation
from tests.variants import slow_but


class Signals(Callback):
    """Sends the process signals after some server steps, as somebody else would."""

    def __init__(self, *numbers: int, after: int = 8) -> None:
        self.numbers, self.after, self.ended = numbers, after, None

    def chunk(self, chunk: Chunk) -> None:
        if chunk.stop == self.after:
            for number in self.numbers:
                os.kill(os.getpid(), number)

    def end(self, result: Any) -> None:
        self.ended = result


@pytest.mark.parametrize("number", slow_but([signal.SIGINT, signal.SIGTERM, signal.SIGUSR1], signal.SIGINT))
def test_a_signal_ends_a_run_with_what_it_has_made(number: int, tmp_path: pathlib.Path) -> None:
    handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
    told = Signals(number)
    with pytest.raises(Interrupted, match=f"{signal.Signals(number).name} after 8 server steps; saved in") as caught:
        simulation().run(20, eval_every=4, folder=tmp_path, callbacks=told)
    assert caught.value.signal == number
    assert caught.value.dataset.sizes["step"] == 8
    assert told.ended is caught.value.dataset  # so that trackers are closed
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)] == handlers
    whole, found = simulation().run(20, eval_every=4), caught.value.dataset
    of_all_steps = {
        name: found[name]
        for name in map(str, found.variables)
        if name in ("participation", "mean_staleness") or name.startswith("final_")
    }
    assert_same(found, whole.isel(step=slice(8), evaluation=slice(3)).assign(of_all_steps))
    assert_same(simulation().run(20, eval_every=4, folder=tmp_path), whole)


def test_a_second_interrupt_does_not_wait() -> None:
    with pytest.raises(KeyboardInterrupt) as caught:
        simulation().run(20, eval_every=4, callbacks=Signals(signal.SIGINT, signal.SIGINT))
    assert not isinstance(caught.value, Interrupted)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, None])
def test_a_sweep_returns_what_is_done(devices: int | None) -> None:
    how: dict[str, Any] = {"eval_every": 4, "callbacks": Signals(signal.SIGTERM), "devices": devices}
    with pytest.raises(Interrupted) as caught:
        afl.sweep(simulation(), {"seed": [0, 1, 2]}, 20, **how)
    found = caught.value.dataset
    assert found.sizes["seed"] == 3
    steps = (found.client_id.values[..., 0] >= 0).sum(1)
    if devices == 1:
        assert steps.tolist() == [8, 0, 0]
    else:  # in threads: whichever came there first, the others in the middle of what they were at
        assert steps.max() >= 8
    for member, made in zip(found.client_id.values, steps, strict=True):
        assert (member[:made, 0] >= 0).all() and (member[made:] == -1).all()


@pytest.mark.slow
@pytest.mark.parametrize("ignored", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_that_is_ignored_stays_so(ignored: int) -> None:
    """As in a process that a script starts behind `&`; the others end the run."""
    other = signal.SIGTERM if ignored == signal.SIGINT else signal.SIGINT
    before = signal.signal(ignored, signal.SIG_IGN)
    try:
        found = simulation().run(12, eval_every=4, callbacks=Signals(ignored))
        assert found.sizes["step"] == 12 and signal.getsignal(ignored) == signal.SIG_IGN
        with pytest.raises(Interrupted, match=f"{signal.Signals(other).name} after 8 server steps"):
            simulation().run(12, eval_every=4, callbacks=Signals(other))
        assert signal.getsignal(ignored) == signal.SIG_IGN
    finally:
        signal.signal(ignored, before)


@pytest.mark.slow
def test_nothing_is_installed_off_the_main_thread() -> None:
    seen: list[Any] = []

    class Look(Callback):
        def chunk(self, chunk: Chunk) -> None:
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=lambda: simulation().run(4, eval_every=4, callbacks=Look()))
    thread.start()
    thread.join()
    assert set(seen) == {signal.getsignal(signal.SIGTERM)}


@pytest.mark.slow
def test_the_command_line_says_so_and_resumes(tmp_path: pathlib.Path, monkeypatch: Any, capsys: Any) -> None:
    data = ["--data", "synthetic", "--data.max-size", "60", "--data.clients", "4", "--model", "logistic"]
    folder, output = str(tmp_path / "run"), str(tmp_path / "result.nc")
    how = ["--server-steps", "12", "--eval-every", "4", "--no-progress", "--folder", folder, "--output", output]
    stop = Signals(signal.SIGTERM)
    monkeypatch.setattr(afl.callbacks, "Csv", lambda path: stop)
    assert main(["run", *data, *how, "--csv", str(tmp_path / "log.csv")]) == 128 + signal.SIGTERM
    assert "interrupted by SIGTERM after 8 server steps; saved in" in capsys.readouterr().err
    assert main(["run", *data, *how[:5], "--csv", str(tmp_path / "other.csv")]) == 128 + signal.SIGTERM
    assert "after 8 server steps" in capsys.readouterr().err
    stop.after = -1
    assert main(["resume", folder]) == 0
    assert afl.load(output).sizes["step"] == 12
