"""What a run returns, and what is kept in its file."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re

import h5py
import numpy as np
import optax
import pytest
import xarray as xr

import jaxafl as afl
from jaxafl import results


@pytest.fixture(scope="module")
def grid(sim: afl.Simulation) -> xr.Dataset:
    """A sweep's result with texts and, as one that a user has reduced, a number without axes."""
    servers = [afl.server.fedbuff(), afl.server.fadas(0.01)]
    swept = afl.sweep(sim, {"seed": [0, 1], "server": servers}, 6, eval_every=3)
    return swept.assign(final=swept.eval_time.max())


@pytest.fixture(scope="module")
def sim() -> afl.Simulation:
    return afl.Simulation(
        data=afl.data.synthetic(1.0, 1.0, clients=6, max_size=60),
        model=afl.models.logistic(10),
        client=afl.Client(optax.sgd, learning_rate=0.01, steps=2, batch_size=5),
        server=afl.server.fedbuff(),
        clock=afl.clock.free_running(concurrency=4, buffer=2, durations=afl.clock.uniform(1, 5)),
    )


@dataclasses.dataclass
class Run:
    """A run of nine server steps that is observed, reported and saved."""

    result: xr.Dataset
    path: pathlib.Path


@pytest.fixture(scope="module")
def run(sim: afl.Simulation, tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("run") / "result.nc"
    result = sim.run(9, eval_every=4, seed=5, observe=lambda params: {"norm": optax.tree.norm(params)}, save=path)
    return Run(result, path)


def test_axes_and_units_are_named(run: Run) -> None:
    result = run.result
    assert result.accuracy.dims == ("evaluation",)
    assert result.staleness.dims == ("step", "arrival")
    assert list(result.eval_step.values) == [0, 4, 8, 9]
    np.testing.assert_array_equal(result.eval_time.values[1:], result.time.values[[3, 7, 8]])
    np.testing.assert_array_equal(result.eval_updates.values, [0, 8, 16, 18])
    np.testing.assert_array_equal(result.eval_local_steps.values, [0, 16, 32, 36])
    for name, variable in result.variables.items():
        assert variable.attrs["units"] and variable.attrs["long_name"], name


def test_every_option_of_the_run_is_in_its_attributes(run: Run) -> None:
    again = afl.load(run.path)
    assert again.attrs["seed"] == 5
    assert json.loads(again.attrs["server"])["learning_rate"] == 1.0
    clock = json.loads(again.attrs["clock"])
    assert (clock["concurrency"], clock["buffer"], clock["dispatch"]) == (4, 2, "arrival")
    assert clock["durations"] == {"name": "uniform", "low": 1, "high": 5, "per": "run"}
    client = json.loads(again.attrs["client"])
    assert (client["steps"], client["batch_size"], client["learning_rate"]) == (2, 5, 0.01)
    assert json.loads(again.attrs["data"])["clients"] == 6
    assert again.equals(run.result)


def test_an_earlier_result_survives_a_save_that_fails(sim: afl.Simulation, tmp_path: pathlib.Path) -> None:
    resource = pytest.importorskip("resource", reason="limits of the size of files are of Unix")
    path = tmp_path / "result.nc"
    earlier = sim.run(2, save=path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        with pytest.raises(OSError, match=r"could not be saved to .*result\.nc.*File too large"):
            results.save(earlier.isel(step=[0]), path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert afl.load(path).equals(earlier)
    assert [file.name for file in tmp_path.iterdir()] == ["result.nc"]


def test_observed_arrays_are_recorded_at_every_step(run: Run) -> None:
    result = run.result
    assert result.observe_norm.dims == ("version",) and result.sizes["version"] == 10
    assert (result.observe_norm.values > 0).all()
    assert result.observe_norm.attrs["units"] == "1" and "`norm`" in result.observe_norm.attrs["long_name"]


def test_a_file_that_is_no_result(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError):
        results.load(tmp_path / "nothing.nc")
    broken = tmp_path / "broken.nc"
    broken.write_bytes(b"not a result")
    with pytest.raises(ValueError, match="not a result file"):
        results.load(broken)


@pytest.mark.slow
def test_files_without_checksums_are_loaded(grid: xr.Dataset, tmp_path: pathlib.Path) -> None:
    """Those of version 0.1, and those that xarray or h5py have written or changed since."""
    path, copy = tmp_path / "result.nc", tmp_path / "copy.nc"
    grid.to_netcdf(path, engine="h5netcdf")
    assert afl.load(path).identical(grid)
    results.save(grid, path)
    with xr.open_dataset(path, engine="h5netcdf") as opened:
        changed = opened.assign(accuracy=opened.accuracy / 2).assign_attrs(note="halved").load()
    changed.to_netcdf(copy, engine="h5netcdf")
    assert afl.load(copy).identical(changed)
    xr.Dataset({"added": ("step", np.arange(grid.sizes["step"]))}).to_netcdf(path, mode="a", engine="h5netcdf")
    assert "added" in afl.load(path)
    results.save(grid, path)
    with h5py.File(path, "a") as file:
        file["accuracy"][...] = 0.5
        file.attrs["seed"] = 7
    assert (afl.load(path).accuracy == 0.5).all() and afl.load(path).attrs["seed"] == 7
    results.save(afl.load(path), path)
    assert (afl.load(path).accuracy == 0.5).all()


def test_a_damaged_file_is_named(sim: afl.Simulation, tmp_path: pathlib.Path) -> None:
    sim.run(2, save=tmp_path / "result.nc")
    whole = (tmp_path / "result.nc").read_bytes()
    damaged = tmp_path / "damaged.nc"
    for start in range(0, len(whole), len(whole) // 50):
        zeroed = whole[:start] + bytes(len(whole[start : start + 300])) + whole[start + 300 :]
        for content in {zeroed, whole[:start] + bytes(len(whole) - start), whole[:start]} - {whole}:
            damaged.write_bytes(content)
            with pytest.raises(ValueError, match=r"damaged\.nc is (not a result file.*it is )?damaged.*run again"):
                afl.load(damaged)


@pytest.mark.slow
def test_no_byte_of_a_file_changes_silently(sim: afl.Simulation, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "result.nc"
    result = sim.run(2, save=path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    harmless = set()
    for at in range(0, len(whole), 3):  # all of them are minutes
        byte = whole[at]
        value = rng.choice(list({0, 255 - byte, byte ^ 1 << int(rng.integers(8))} - {byte}))
        path.write_bytes(whole[:at] + bytes([value]) + whole[at + 1 :])
        try:
            assert afl.load(path).identical(result), f"byte {at} of {len(whole)} became {value}"
            harmless.add(at)
        except ValueError as error:
            assert re.search(r"result\.nc is .*damaged.*run again", str(error), re.DOTALL), (at, value, error)
    assert all(at >= whole.rindex(b'{"') for at in harmless)  # only letters of the names beside the checksums
