"""Progress: a bar on a line of a given width, and plain lines where standard error is no terminal."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import time

import pytest
from rich.console import Console

import jaxafl as afl
from jaxafl.callbacks.progress import Bar, Lines
from tests.problems import descent

NAME = "asyncfeded on free_running"
RUN = "from tests.problems import descent; descent().run(40, eval_every=10, progress=True)"


def last_line(width: int, encoding: str = "utf-8") -> str:
    written = io.TextIOWrapper(io.BytesIO(), encoding, write_through=True)
    console = Console(file=written, width=width, force_terminal=True, color_system=None, legacy_windows=False)
    with Bar(NAME, 400, console) as bar:
        bar.update(100, 12345.6, {})
        bar.update(300, 12345.6, {"loss": 1.2345, "accuracy": 0.8123})
    text = written.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text))
    return [line for line in lines if line.strip()][-1]


@pytest.mark.parametrize("width", [40, 50, 60, 80, 120])
def test_steps_time_and_accuracy_are_never_cut(width):
    line = last_line(width)
    assert len(line) <= width
    assert "300/400" in line and "accuracy 0.812" in line
    assert re.search(r"(\d+:\d\d|--:--) left", line)


def test_a_log_gets_a_line_at_the_begin_at_intervals_and_at_the_end(capsys):
    with Lines(NAME, 400, every=0.05) as lines:
        first = capsys.readouterr()
        assert first.err == f"jaxafl: {NAME}: 0/400 server steps, compiling, --:-- left\n" and not first.out
        lines.update(100, 10.4, {"loss": 1.0, "accuracy": 0.5})
        time.sleep(0.1)
        lines.piece(300, 12.6)
    line, last = capsys.readouterr().err.splitlines()
    assert line == f"jaxafl: {NAME}: 300/400 server steps, 13 updates/s, accuracy 0.5, loss 1, 0:00 left"
    assert last.startswith(line) and re.search(r", after 0:0\d$", last)


def test_the_time_left_is_that_of_the_pace_after_compilation(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    state = Lines(NAME, 400)
    now[0] = 100.0  # of compilation
    state.update(100, 1.0, {})
    assert state.left == "--:-- left"
    now[0] = 110.0
    state.update(200, 1.0, {})
    assert state.left == "0:20 left"
    now[0] = 7310.0
    state.update(201, 1.0, {})
    assert state.left.count(":") == 2


@pytest.mark.slow
def test_methods_of_a_comparison_and_rungs_are_named(capsys):
    afl.compare({"mine": descent()}, 2, 4, progress=True)
    said = capsys.readouterr().err
    assert "jaxafl: mine: sweep of 2: 0/" in said and re.search(r"mine: sweep of 2: (\d+)/\1 server steps", said)


@pytest.mark.slow
def test_a_run_writes_plain_lines_to_a_pipe_and_a_bar_to_a_terminal():
    environment = os.environ | {"COLUMNS": "80", "TERM": "xterm", "FORCE_COLOR": "1", "PYTHONPATH": os.getcwd()}
    piped = subprocess.run([sys.executable, "-c", RUN], env=environment, capture_output=True, text=True, check=True)
    lines = [line for line in piped.stderr.splitlines() if "server steps" in line]
    assert len(lines) == 2 and lines[1].startswith("jaxafl: fedbuff on free_running: 40/40 server steps, ")
    assert "\x1b" not in piped.stderr and not piped.stdout
    ours, theirs = pty.openpty()
    child = subprocess.Popen([sys.executable, "-c", RUN], env=environment, stderr=theirs, stdout=subprocess.PIPE)
    os.close(theirs)
    written = b""
    with pytest.raises(OSError):  # at the end of what a terminal says
        while True:
            written += os.read(ours, 4096)
    assert child.wait() == 0 and child.stdout.read() == b""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.decode())
    assert "40/40" in text and "loss" in text.splitlines()[-1]
