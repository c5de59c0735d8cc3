"""The progress bar on a line of a given width."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from jaxafl.callbacks.progress import Bar


def last_line(width: int) -> str:
    written = io.StringIO()
    console = Console(file=written, width=width, force_terminal=True, color_system=None, legacy_windows=False)
    with Bar("asyncfeded on free_running", 400, console) as bar:
        bar.update(100, 12345.6, {})
        bar.update(300, 12345.6, {"loss": 1.2345, "accuracy": 0.8123})
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.getvalue()))
    return [line for line in lines if line.strip()][-1]


@pytest.mark.parametrize("width", [50, 60, 80, 120])
def test_steps_and_remaining_time_are_never_cut(width):
    line = last_line(width)
    assert len(line) <= width
    assert "300/400" in line
    assert re.search(r"(\d\d|--):(\d\d|--) left", line)


def test_metrics_give_way_first():
    assert "loss 1.23 accuracy 0.812" in last_line(120)
    short = last_line(80)
    assert "accuracy" not in short
    assert "asyncfeded on free_running" in short and "12,346 updates/s" in short
