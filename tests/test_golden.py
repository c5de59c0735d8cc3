"""Short runs give the recorded numbers, whatever the engine does."""

from __future__ import annotations

import functools
import json
import pathlib

import numpy as np
import pytest

from tests import golden
from tests.server.test_fit import SHIPPED

RECORDED = json.loads(golden.FILE.read_text())
QUICK = {"fedbuff", "asyncfeded", "sweep, seeds"}
cases = functools.cache(golden.cases)


def test_every_server_has_a_case() -> None:
    assert SHIPPED <= set(RECORDED) == set(cases())


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in RECORDED])
def test_a_run_gives_the_recorded_numbers(name: str) -> None:
    found = golden.numbers(cases()[name]())
    # batch statistics of few samples amplify last digits, which options of XLA change
    rtol = 1e-5 if name == "model, normalised" else 1e-6
    np.testing.assert_allclose(found, RECORDED[name], rtol=rtol, atol=rtol * max(map(abs, found[:4])))


@pytest.mark.slow
@pytest.mark.parametrize("name", golden.SERVERS)
def test_lanes_and_checkpoints_change_nothing(name: str, tmp_path: pathlib.Path) -> None:
    sim = golden.simulation(*golden.SERVERS[name])
    whole = golden.ran(sim)
    np.testing.assert_allclose(golden.ran(sim, lanes=4).observe_params, whole.observe_params, rtol=1e-4, atol=1e-5)
    sim.run(7, eval_every=10, seed=3, observe=golden.observe, folder=tmp_path)
    resumed = golden.ran(sim, folder=tmp_path)
    for column in ("observe_params", "client_id", "time", "staleness"):
        np.testing.assert_array_equal(resumed[column], whole[column], err_msg=column)
