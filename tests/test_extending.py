"""A part of a user's own is one file (`tests/extensions`), used from Python and by its name on the command line."""

from __future__ import annotations

import inspect
import json
import pathlib
import sys
import types
from typing import Any

import numpy as np
import optax
import pytest

import jaxafl as afl
from jaxafl.cli import main
from tests.extensions.clock import in_turns
from tests.extensions.dataset import pooled_moons, two_moons
from tests.extensions.duration import every_so_often
from tests.extensions.model import tanh_network
from tests.extensions.partition import dealt
from tests.extensions.server import clipped_mean

STEPS = 12
CLIENT = afl.Client(optax.sgd, learning_rate=0.1, steps=2, batch_size=8)
FREE = afl.clock.free_running(concurrency=3, durations=afl.clock.uniform(1, 5))
PYTHON = {
    "server": {"server": clipped_mean(radius=0.5)},
    "clock": {"clock": in_turns(2.0)},
    "duration": {"clock": afl.clock.free_running(concurrency=3, durations=every_so_often(1.0, period=2))},
    "dataset": {"data": two_moons(clients=4), "model": afl.models.logistic(2)},
    "partition": {"data": pooled_moons().partition(dealt(4)), "model": afl.models.logistic(2)},
    "model": {"model": tanh_network(10, features=4)},
}
SHELL_USUAL = {
    "data": "--data synthetic --data.alpha 1 --data.beta 1 --data.clients 4 --data.max-size 60 --data.seed 1",
    "model": "--model logistic",
    "server": "--server fedbuff",
    "clock": "--clock free_running --clock.concurrency 3 --clock.buffer 1",
    "client": "--client.learning-rate 0.1 --client.steps 2 --client.batch-size 8",
}
SHELL = {
    "server": "--server tests.extensions.server:clipped_mean --server.radius 0.5",
    "clock": "--clock tests.extensions.clock:in_turns --clock.seconds 2",
    "duration": "--clock free_running --clock.concurrency 3 --clock.buffer 1 "
    "--clock.durations tests.extensions.duration:every_so_often(1.0,period=2)",
    "dataset": "--data tests.extensions.dataset:two_moons --data.clients 4 --model logistic",
    "partition": "--data tests.extensions.dataset:pooled_moons --model logistic "
    "--partition tests.extensions.partition:dealt --partition.clients 4",
    "model": "--model tests.extensions.model:tanh_network --model.features 4",
}


def simulation(**parts: Any) -> afl.Simulation:
    """The usual simulation, with some parts of one's own."""
    data = afl.data.synthetic(1.0, 1.0, clients=4, max_size=60, seed=1)
    usual = {"data": data, "model": afl.models.logistic(10), "server": afl.server.fedbuff(), "clock": FREE}
    return afl.Simulation(**{"client": CLIENT} | usual | parts)


@pytest.mark.optimised
@pytest.mark.slow
@pytest.mark.parametrize("part", PYTHON)
def test_a_user_defined_part_runs_from_the_command_line(part: str, tmp_path: pathlib.Path) -> None:
    given = SHELL[part].split()
    for name, usual in SHELL_USUAL.items():
        given += [] if f"--{name}" in given else usual.split()
    path = tmp_path / "result.nc"
    assert main(["run", *given, "--server-steps", str(STEPS), "--no-progress", "--output", str(path)]) == 0
    written = afl.load(path)
    result = simulation(**PYTHON[part]).run(STEPS)
    for name in ("client_id", "time", "loss", "delta_norm"):
        np.testing.assert_array_equal(written[name], result[name])
    for name in ("data", "model", "client", "server", "clock"):
        assert json.loads(written.attrs[name]) == json.loads(result.attrs[name])
    assert np.isfinite(result.loss).all() and result.loss[-1] < result.loss[0]


@pytest.mark.slow
def test_their_options_are_swept_and_checked_as_any() -> None:
    sim = simulation(**PYTHON["server"], **PYTHON["clock"])
    swept = afl.sweep(sim, {"server.radius": [0.1, 5.0], "clock.seconds": [1.0, 2.0]}, STEPS)
    alone = simulation(server=clipped_mean(radius=5.0), clock=in_turns(1.0)).run(STEPS)
    chosen = swept.sel({"server.radius": 5.0, "clock.seconds": 1.0})
    np.testing.assert_allclose(chosen.loss, alone.loss, rtol=1e-5)
    np.testing.assert_array_equal(chosen.time, alone.time)
    with pytest.raises(ValueError, match="radius"):
        simulation(server=clipped_mean(radius=-1.0)).check()


def test_a_copy_of_a_server_in_a_file_of_ones_own_is_treated_as_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same keys, the same form of its updates on several devices, the same program."""
    mine = types.ModuleType("mine")
    mine.__dict__.update(vars(sys.modules[afl.server.fedbuff.__module__]), __name__="mine")
    monkeypatch.setitem(sys.modules, "mine", mine)
    exec(inspect.getsource(afl.server.fedbuff), mine.__dict__)
    copy: Any = mine.__dict__["fedbuff"]
    assert copy.__module__ == "mine" and copy is not afl.server.fedbuff
    assert copy().needs == afl.server.fedbuff().needs and copy.clocks == afl.server.fedbuff.clocks
    clock = afl.clock.free_running(concurrency=3, buffer=2, durations=afl.clock.uniform(1, 5))
    one, two = (simulation(server=made(), clock=clock).run(3) for made in (copy, afl.server.fedbuff))
    np.testing.assert_array_equal(one.loss, two.loss)
    assert set(one.variables) == set(two.variables)
