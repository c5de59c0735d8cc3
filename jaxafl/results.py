"""What a run returns: an `xarray.Dataset` with named axes, units, and every option of the run in its attributes."""

from __future__ import annotations

import importlib
import io
import json
import os
import pathlib
from typing import Any

import numpy as np
import xarray as xr

from jaxafl.pytrees import plain
from jaxafl.schedule import Schedule

_UNITS = {
    "step": ("1", "server step t; it makes version t + 1"),
    "arrival": ("1", "place among the arrivals of a server step"),
    "evaluation": ("1", "index of the evaluated model"),
    "eval_step": ("1", "server steps made by the evaluated model"),
    "time": ("s", "simulated time of the server step"),
    "started": ("s", "simulated time at which the run started"),
    "arrived": ("s", "simulated time at which the run arrived"),
    "eval_time": ("s", "simulated time of the evaluated model"),
    "eval_updates": ("1", "client updates consumed by the evaluated model"),
    "eval_local_steps": ("1", "local steps behind the evaluated model"),
    "client": ("1", "index of the client that arrived, -1 for none"),
    "run": ("1", "index of the run among the client's"),
    "staleness": ("1", "versions made since the run's, -1 for no arrival"),
    "local_steps": ("1", "local steps of the run"),
    "multiplicity": ("1", "how many times the update counts"),
    "delta_norm": ("1", "Euclidean norm of the update"),
    "local_loss": ("1", "mean over the run's local steps of the mini-batch loss"),
    "loss": ("1", "mean test loss"),
    "accuracy": ("1", "share of test samples classified correctly"),
    "server_rate": ("1", "effective server learning rate"),
    "gamma": ("1", "Euclidean staleness of AsyncFedED"),
    "drift": ("1", "Euclidean distance that the model moved since the run's version"),
    "gradient_norm_squared": ("1", "squared norm of the full training gradient"),
    "asynchronous_error": ("1", "norm of the full gradient minus the applied one"),
    "average_loss": ("1", "mean test loss of the average of all versions"),
    "average_accuracy": ("1", "share of test samples that the average of all versions classifies correctly"),
    "executed_local_steps": ("1", "local steps made before the run stopped early"),
    "next_local_steps": ("1", "local steps replied for the client's next run"),
}


def build(
    schedule: Schedule,
    records: dict[str, np.ndarray],
    evaluations: dict[str, np.ndarray],
    eval_step: np.ndarray,
    attributes: dict[str, Any],
) -> xr.Dataset:
    """The result of one run.

    Args:
        schedule: who arrived when, T steps.
        records: diagnostics of the server steps, each [T, ...].
        evaluations: metrics of the evaluated models, each [E].
        eval_step: int [E], server steps made when they were evaluated (0 for the initial model).
        attributes: of the run; nested values are stored as JSON.

    Returns:
        A dataset with dimensions `step`, `arrival` and `evaluation`.
    """
    mask = schedule.mask
    shown = {
        "client": np.where(mask, schedule.client, -1),
        "run": np.where(mask, schedule.run, -1),
        "staleness": schedule.staleness,
        "local_steps": np.where(mask, schedule.local_steps, 0),
        "multiplicity": np.where(mask, schedule.multiplicity, 0),
        "started": np.where(mask, schedule.started, np.nan),
        "arrived": np.where(mask, schedule.arrived, np.nan),
    }
    variables: dict[str, Any] = {"time": (("step",), schedule.time)}
    variables |= {name: (("step", "arrival"), values) for name, values in shown.items()}
    for name, values in records.items():
        dims = (
            ("step", "arrival") if values.shape[1:] == mask.shape[1:] and not name.startswith("observe_") else ("step",)
        )
        if dims == ("step", "arrival") and values.dtype.kind == "f":
            values = np.where(mask, values, np.nan)
        extra = tuple(f"{name}_{axis}" for axis in range(values.ndim - len(dims)))
        variables[name] = ((*dims, *extra), values)
    variables |= {name: (("evaluation",), values) for name, values in evaluations.items()}
    made = np.concatenate([[0.0], schedule.time])
    updates = np.concatenate([[0], np.cumsum(mask.sum(axis=1))])
    made_steps = records.get("executed_local_steps", schedule.local_steps)
    steps = np.concatenate([[0], np.cumsum(np.where(mask, made_steps, 0).sum(axis=1))])
    coordinates = {
        "step": np.arange(schedule.server_steps),
        "arrival": np.arange(mask.shape[1]),
        "evaluation": np.arange(len(eval_step)),
        "eval_step": (("evaluation",), eval_step),
        "eval_time": (("evaluation",), made[eval_step]),
        "eval_updates": (("evaluation",), updates[eval_step]),
        "eval_local_steps": (("evaluation",), steps[eval_step]),
    }
    dataset = xr.Dataset(variables, coordinates)
    for name, (units, meaning) in _UNITS.items():
        if name in dataset.variables:
            dataset[name].attrs |= {"units": units, "long_name": meaning}
    for name in variables:
        if name.startswith("observe_"):
            meaning = f"`{name.removeprefix('observe_')}` of the user's observe, after the server step"
            dataset[name].attrs |= {"units": "1", "long_name": meaning}
    dataset.attrs |= {name: flat(value) for name, value in attributes.items()}
    return dataset


def flat(value: Any) -> Any:
    """A value that NetCDF can hold as an attribute: nested ones as JSON."""
    value = plain(value)
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return value
    return json.dumps(value, default=str)


def check_path(path: str | os.PathLike[str] | None) -> pathlib.Path | None:
    """The path as given, after making sure that a result can be written there.

    Raises:
        FileNotFoundError: its directory does not exist.
        PermissionError: it, or its directory, cannot be written.
        IsADirectoryError: it is a directory.
        ValueError: it is another thing than a file, such as a device.
    """
    if path is None:
        return None
    importlib.import_module("h5py")  # without it a result could not be written after the run
    path = pathlib.Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"the result path {path} is a directory; name a file, e.g. {path / 'result.nc'}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the result cannot be written: there is no directory {path.parent}; create it first")
    if path.exists() and not path.is_file():
        raise ValueError(f"the result path {path} is no regular file; name a file, e.g. result.nc")
    beside = _beside(path)
    try:
        if path.exists():
            path.open("ab").close()
        beside.open("wb").close()
        beside.unlink()
    except OSError as error:
        raise PermissionError(f"the result cannot be written to {path}: {error.strerror}") from error
    return path


def save(dataset: xr.Dataset, path: str | os.PathLike[str]) -> None:
    """Writes a result as NetCDF-4: under another name in the same directory first, so that an earlier file of this name
    is replaced by a whole one or stays as it is.

    Raises:
        OSError: it could not be written; says why.
    """
    beside = _beside(path)
    try:
        content = io.BytesIO()  # HDF5 itself brings the process down where the disk is full
        dataset.to_netcdf(content, engine="h5netcdf")
        beside.write_bytes(content.getbuffer())
        os.replace(beside, pathlib.Path(path).resolve())
    except Exception as error:  # of the file system, HDF5 or xarray
        beside.unlink(missing_ok=True)
        raise OSError(
            f"the result could not be saved to {path}, where nothing has changed ({type(error).__name__}: {error}); "
            "is the disk full, or the file open elsewhere?"
        ) from error


def save_finished(dataset: xr.Dataset, path: str | os.PathLike[str]) -> None:
    """As `save`, after a run: where that fails, the error holds the result."""
    try:
        save(dataset, path)
    except OSError as error:
        error.dataset = dataset  # type: ignore[attr-defined]
        error.add_note("the result is kept, as the attribute `dataset` of this error: afl.save(error.dataset, path)")
        raise


def _beside(path: str | os.PathLike[str]) -> pathlib.Path:
    """The name of the unfinished file."""
    target = pathlib.Path(path).resolve()  # a link stays one
    return target.with_name(f".{target.name}.{os.getpid()}.part")


def load(path: str | os.PathLike[str]) -> xr.Dataset:
    """Reads a result of a run, a sweep or the quickstart into memory.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is damaged, or not a result.
    """
    if not pathlib.Path(path).is_file():
        raise FileNotFoundError(f"there is no result file {path}")
    try:
        dataset = xr.load_dataset(path, engine="h5netcdf")
    except Exception as error:  # h5netcdf and h5py raise many kinds for damaged files
        raise ValueError(
            f"{path} is not a result file (NetCDF), or it is damaged ({type(error).__name__}: {error}); run again to "
            "make a new one"
        ) from error
    # the quickstart's file holds the attributes of its results as JSON
    made_here = "jaxafl_version" in dataset.attrs or "jaxafl_version" in str(dataset.attrs.get("methods"))
    if "step" not in dataset.dims or not made_here:
        raise ValueError(
            f"{path} is a NetCDF file but not a result of jaxafl: it has no dimension `step` or no attribute "
            "`jaxafl_version`; give a file that run(save=...), sweep(save=...) or the quickstart wrote"
        )
    return dataset
