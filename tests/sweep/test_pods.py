"""Sweeps of two processes under `jax.distributed`."""

from __future__ import annotations

import json
import pathlib
import socket
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_two_processes_share_a_sweep(tmp_path: pathlib.Path) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "tests.pod"]
    started = [
        subprocess.Popen(
            [*command, str(process), "2", port, str(tmp_path)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for process in range(2)
    ]  # fmt: skip
    ended = [process.communicate(timeout=600) for process in started]
    assert [process.returncode for process in started] == [0, 0], ended
    first, second = (json.loads(out.splitlines()[-1]) for out, _ in ended)
    assert (first["apart, made"], second["apart, made"]) == ([0, 2], [1])
    assert (first["together, made"], second["together, made"]) == ([0, 1, 2], [3, 4])
    assert (first["online, made"], second["online, made"]) == ([0, 2], [1])
    for found in (first, second):
        assert found["devices"] == [2, 4]
        assert found["saved"]
        assert not any(found[f"{name}{which}"] for name in ("apart", "together", "online") for which in ("", ", again"))
    assert first["failed"] == "KeyError: 'on purpose'"
    assert second["failed"] == "RuntimeError: process 0 of 2 has failed: KeyError: 'on purpose'"
