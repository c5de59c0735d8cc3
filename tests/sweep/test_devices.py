"""Sweeps and runs on several devices of one process. A CPU's are made before JAX begins, so in another."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import Any

import jax
import numpy as np
import pytest

import jaxafl as afl
from tests.sweep.conftest import differing, simulation


def seen(what: str, devices: int) -> dict[str, Any]:
    """What a process with several devices has printed."""
    command = [sys.executable, "-m", "tests.on_devices", what, str(devices)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    assert found.pop("devices") == devices
    return found


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 8])
def test_a_sweep_on_several_devices_is_that_on_one(devices: int) -> None:
    found = seen("sweeps", devices)
    assert found == {name: [] for name in found}


@pytest.mark.slow
def test_a_run_that_devices_share_is_that_of_one() -> None:
    found = seen("runs", 2)
    assert found == {name: [] for name in found}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ("planned", "online"))
def test_threads_of_one_device_have_the_results_of_one_after_another(kind, monkeypatch):
    """Seeds, which advance apart, and rates, which advance four at a time; in the precision of the caller."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(3), raising=False)
    sim, ran_in = simulation(kind), set()

    class Where(afl.callbacks.Callback):
        def begin(self, run: Any) -> None:
            ran_in.add(threading.get_ident())

    for axes, wide in (({"seed": range(6)}, False), ({"client.learning_rate": np.linspace(0.1, 0.8, 8)}, True)):
        ran_in.clear()
        with jax.enable_x64(wide), jax.default_matmul_precision("highest"):
            found = afl.sweep(sim, axes, 2, callbacks=Where())
            assert len(ran_in) > 1 and threading.get_ident() not in ran_in
            ran_in.clear()
            expected = afl.sweep(sim, axes, 2, devices=1, callbacks=Where())
            assert ran_in == {threading.get_ident()}
        assert differing(found, expected) == []


@pytest.mark.parametrize(
    ("devices", "kind", "message"),
    [(0, ValueError, "devices"), (99, ValueError, "devices"), ([jax.devices()[0]] * 2, ValueError, "device")],
)
def test_bad_devices(devices: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        afl.sweep(simulation(), {"seed": [0]}, 4, devices=devices)
    with pytest.raises(kind, match=message):
        simulation().run(4, devices=devices)
