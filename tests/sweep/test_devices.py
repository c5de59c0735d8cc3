"""Sweeps on several devices of one process. A CPU's are made before JAX begins, so they live in another process."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import jax
import pytest

import jaxafl as afl
from tests.sweep.conftest import differing, simulation


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 8])
def test_a_sweep_on_several_devices_is_that_on_one(devices: int) -> None:
    command = [sys.executable, "-m", "tests.sweep.on_devices", str(devices)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found.pop("devices") == devices
    assert "jax_num_cpu_devices" in found.pop("too many")
    assert found == {name: [] for name in found}


@pytest.mark.slow
def test_one_device_of_the_list() -> None:
    axes = {"server.learning_rate": [0.5, 1.0]}
    expected = afl.sweep(simulation(), axes, 6, eval_every=3)
    assert differing(afl.sweep(simulation(), axes, 6, eval_every=3, devices=[jax.devices()[0]]), expected) == []


@pytest.mark.parametrize(
    ("devices", "kind", "message"),
    [
        (0, ValueError, "at least 1, got 0"),
        (99, ValueError, "JAX has .* of kind"),
        ("some", TypeError, 'must be "all", a number, or a list'),
        ([1], TypeError, "must be"),
        (True, TypeError, "must be"),
    ],
)
def test_bad_devices(devices: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        afl.sweep(simulation(), {"seed": [0]}, 4, devices=devices)


def test_a_device_twice() -> None:
    device = jax.devices()[0]
    with pytest.raises(ValueError, match="names a device twice"):
        afl.sweep(simulation(), {"seed": [0]}, 4, devices=[device, device])
