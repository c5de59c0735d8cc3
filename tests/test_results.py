"""What a run returns, and what is kept in its file."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import h5py
import numpy as np
import optax
import pytest
import xarray as xr

import jaxafl as afl
from jaxafl import results
from tests.problems import classifier


@pytest.fixture(scope="module")
def sim() -> afl.Simulation:
    return classifier()


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
    assert run.result.accuracy.dims == ("evaluation",)
    assert run.result.staleness.dims == ("step", "arrival")
    for name, variable in run.result.variables.items():
        assert variable.attrs["units"] and variable.attrs["long_name"], name
    observed = run.result.observe_norm
    assert observed.dims == ("version",) and observed.size == 10 and (observed > 0).all()


def test_every_option_of_the_run_is_in_its_attributes(run: Run) -> None:
    again = afl.load(run.path)
    assert again.attrs["seed"] == 5
    assert json.loads(again.attrs["server"])["learning_rate"] == 1.0
    clock = json.loads(again.attrs["clock"])
    assert (clock["concurrency"], clock["buffer"], clock["dispatch"]) == (2, 1, "arrival")
    assert clock["durations"] == {"name": "uniform", "low": 1, "high": 2, "per": "run"}
    client = json.loads(again.attrs["client"])
    assert (client["steps"], client["batch_size"], client["learning_rate"]) == (2, 8, 0.1)
    assert json.loads(again.attrs["data"])["clients"] == 4
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


def test_a_file_that_is_no_result(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError):
        results.load(tmp_path / "nothing.nc")
    broken = tmp_path / "broken.nc"
    broken.write_bytes(b"not a result")
    with pytest.raises(ValueError, match="not a result file"):
        results.load(broken)


@pytest.mark.slow
def test_files_without_checksums_are_loaded(sim: afl.Simulation, tmp_path: pathlib.Path) -> None:
    """Which xarray or h5py have written or changed since, with texts and, as a user's means are, without axes."""
    servers = [afl.server.fedbuff(), afl.server.fadas(0.01)]
    grid = afl.sweep(sim, {"seed": [0, 1], "server": servers}, 6, eval_every=3)
    grid = grid.assign(final=grid.eval_time.max())
    path, copy = tmp_path / "result.nc", tmp_path / "copy.nc"
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
    unharmed = {whole, whole[: whole.rindex(b'{"": [')]}  # the second lacks the checksum only, as a copy by xarray does
    damaged = tmp_path / "damaged.nc"
    for start in range(0, len(whole), len(whole) // 50):
        zeroed = whole[:start] + bytes(len(whole[start : start + 300])) + whole[start + 300 :]
        for content in {zeroed, whole[:start] + bytes(len(whole) - start), whole[:start]} - unharmed:
            damaged.write_bytes(content)
            with pytest.raises(ValueError, match=r"damaged\.nc is (not a result file.*it is )?damaged.*run again"):
                afl.load(damaged)
