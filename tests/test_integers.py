"""Whole numbers stay what they are on their way to the device and into results, or are refused."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxafl as afl
from jaxafl.device import as_arrays
from jaxafl.engine.problem import stacked
from jaxafl.options import UserError
from tests.problems import classifier


@pytest.mark.parametrize("value", [0, -1, 2**31 - 1, -(2**31), 2**31, 2**32 - 1, np.uint32(2**32 - 1), np.int64(7)])
def test_integers_of_32_bits_stay_what_they_are(value: Any) -> None:
    made = as_arrays({"key": value}, jnp.float32)["key"]
    assert made.dtype.kind in "iu" and int(made) == int(value)


@pytest.mark.parametrize(
    "value", [2**32, 2**40 + 1, -(2**31) - 1, 2**64, np.uint64(2**63), [1, 2**40], [-1, 2**31], 1e300, -1e39]
)
def test_integers_beyond_32_bits_are_refused_by_name(value: Any) -> None:
    with pytest.raises(UserError, match=r"\['seed'\].*would become another number"):
        as_arrays({"seed": np.asarray(value) if isinstance(value, list) else value}, jnp.float32)


@pytest.mark.parametrize("value", [2**31, 2**53 + 1, -(2**60) - 1, [1, 2**62 + 1]])
def test_numbers_of_a_clock_have_64_bits(value: Any) -> None:
    with jax.enable_x64(True):
        made = as_arrays(np.asarray(value), jnp.float64)
    np.testing.assert_array_equal(np.asarray(made), np.asarray(value))
    assert made.dtype.kind == "i"


def test_members_of_a_sweep_keep_their_integers() -> None:
    def held(*values: int) -> Any:
        members: Any = [as_arrays({"seed": one}, jnp.float32) for one in values]
        found: Any = stacked(members)
        return found["seed"]

    assert held(1, 2**31).dtype == np.uint32 and held(1, 2**31).tolist() == [1, 2**31]
    with pytest.raises(UserError, match=r"\['seed'\].*does not fit into int32 or uint32"):
        held(-1, 2**31)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [[1, 2**64 - 1], [2**53 + 1, 2**53 + 2]])
def test_seeds_of_64_bits_are_whole_in_a_result(seeds: list[int], tmp_path: Any) -> None:
    found = afl.sweep(classifier(), {"seed": seeds}, server_steps=1)
    assert [int(seed) for seed in found.seed] == seeds and found.seed.dtype.kind in "iu"
    found.to_netcdf(tmp_path / "sweep.nc")
    assert [int(seed) for seed in afl.load(tmp_path / "sweep.nc").seed] == seeds


def test_whole_numbers_of_numpy_are_those_of_python_in_static_options() -> None:
    """JAX compares static options of two clients: 2 of NumPy and a tuple were an array of answers."""
    for number in (np.int64(2), np.int32(2), 2):
        client = afl.Client(learning_rate=0.1, steps=number, batch_size=number)
        assert type(client.steps) is type(client.batch_size) is int
        assert jax.tree.structure(client) != jax.tree.structure(afl.Client(learning_rate=0.1, steps=[1, 2, 3]))
        assert type(afl.clock.free_running(durations=afl.clock.uniform(1, 2), buffer=number).buffer) is int
    assert afl.upload.top_k(share=np.float32(0.5)).share == 0.5
