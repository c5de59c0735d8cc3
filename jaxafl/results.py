"""What a run returns: an `xarray.Dataset` with named axes, units, and every option of the run in its attributes."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import pathlib
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.engine.loop import Trained
from jaxafl.options import UserError, options_of
from jaxafl.references import version

if TYPE_CHECKING:  # xarray takes a third of a second to import, so it is when a result is made
    import xarray as xr

_MEANINGS = {
    "step": ("1", "server step t; it makes version t + 1"),
    "version": ("1", "version of the global model, 0 the initial one"),
    "arrival": ("1", "place among the arrivals of a server step"),
    "evaluation": ("1", "index of the evaluated model"),
    "eval_step": ("1", "server steps made by the evaluated model"),
    "time": ("s", "simulated time of the server step"),
    "started": ("s", "simulated time at which the run started"),
    "arrived": ("s", "simulated time at which the run arrived"),
    "eval_time": ("s", "simulated time of the evaluated model"),
    "eval_updates": ("1", "client updates taken by the evaluated model"),
    "eval_local_steps": ("1", "local steps behind the evaluated model"),
    "client": ("1", "index of the client that arrived, -1 for none"),
    "run": ("1", "index of the run among the client's"),
    "staleness": ("1", "versions made since the run's, -1 for no arrival"),
    "local_steps": ("1", "local steps of the run"),
    "multiplicity": ("1", "how many times the update counts"),
    "kind": ("1", "what the protocol says of the arrival, -1 for none"),
    "delta_norm": ("1", "Euclidean norm of the update"),
    "local_loss": ("1", "mean over the run's local steps of the mini-batch loss"),
    "loss": ("1", "mean test loss"),
    "accuracy": ("1", "share of test samples classified correctly"),
    "server_rate": ("1", "effective server learning rate"),
    "drift": ("1", "Euclidean distance that the model moved since the run's version"),
    "gradient_norm_squared": ("1", "squared norm of the full training gradient"),
    "asynchronous_error": ("1", "norm of the full gradient minus the applied one"),
    "average_loss": ("1", "mean test loss of the average of all versions"),
    "average_accuracy": ("1", "share of test samples that the average of all versions classifies correctly"),
    "executed_local_steps": ("1", "local steps made before the run stopped early"),
}
MISSING: dict[str, float] = {"client": -1, "run": -1, "staleness": -1, "kind": -1, "local_steps": 0, "multiplicity": 0}
MISSING |= {"started": np.nan, "arrived": np.nan}
"""What a variable of arrivals says where there is none."""


def of_run(trained: Trained, parts: Mapping[str, Any], seed: int) -> xr.Dataset:
    """The result of one run, with dimensions `step`, `arrival` and `evaluation`; nested attributes are JSON.

    Args:
        trained: the run.
        parts: `data`, `model`, `client`, `server` and `clock` of the simulation.
        seed: of the run.
    """
    import xarray as xr

    made, records, server = trained.schedule, trained.records, parts["server"]
    dataset = xr.Dataset(_variables(trained))
    # the dimensions that a record adds have no coordinates
    indices = {str(name): np.arange(size) for name, size in dataset.sizes.items() if name in _MEANINGS}
    dataset = dataset.assign_coords(indices | _coordinates(trained))
    meanings = _MEANINGS | {name: ("1", meaning) for name, meaning in server.meanings.items()}
    for name, variable in dataset.variables.items():
        units, meaning = meanings.get(str(name), ("1", f"`{name}` as {server.name} reports it"))
        if str(name).startswith("observe_"):
            meaning = f"`{str(name).removeprefix('observe_')}` of the user's observe"
        variable.attrs |= {"units": units, "long_name": meaning}
    if made.kinds:
        dataset["kind"].attrs |= {"flag_values": list(range(len(made.kinds))), "flag_meanings": "; ".join(made.kinds)}
    attributes = {
        "title": f"{server.name} on {parts['clock'].name}, {parts['data'].name}",
        "jaxafl_version": version(),
        "seed": int(seed),
        "precision": str(jnp.result_type(float)),
        "eval_every": trained.eval_every,
        "server_steps": made.server_steps,
        "num_clients": parts["data"].num_clients,
        "data": dict(parts["data"].description),
        "model": {"name": parts["model"].name} | dict(parts["model"].description),
        **{name: plain(parts[name]) for name in ("client", "server", "clock")},
        "backend": jax.default_backend(),
        "failed_step": trained.failure[0] if trained.failure else -1,
        "failed_client": trained.failure[1] if trained.failure else -1,
        "runs_started": made.runs_started,
        "runs_never_consumed": made.runs_started - len(np.unique(made.run_id[made.mask])),
    }
    if not trained.failure:
        found = made.statistics()
        attributes |= {name: found[name] for name in ("staleness_mean", "staleness_max")}
        for mean in ("mean", "median"):
            attributes[f"staleness_max_per_step_{mean}"] = found[f"max_staleness_per_step_{mean}"]
    attributes |= {f"count_{name}": int(records[name].sum()) for name in server.counters if name in records}
    attributes |= {name: round(value, 3) for name, value in trained.seconds.items()}
    dataset.attrs |= {name: flat(value) for name, value in attributes.items()}
    return dataset


def _variables(trained: Trained) -> dict[str, Any]:
    made, mask = trained.schedule, trained.schedule.mask
    missing = {name: value for name, value in MISSING.items() if name != "kind" or made.kinds}
    variables: dict[str, Any] = {"time": (("step",), made.time)}
    for name, value in missing.items():
        variables[name] = (("step", "arrival"), np.where(mask, getattr(made, name), value))
    for name, values in trained.records.items():
        of_version = name.startswith("observe_")
        dims: tuple[str, ...] = ("version",) if of_version else ("step",)
        if values.shape[1:] == mask.shape[1:] and not of_version:
            dims = ("step", "arrival")
            values = np.where(mask, values, np.nan) if values.dtype.kind == "f" else values
        extra = tuple(f"{name}_{axis}" for axis in range(values.ndim - len(dims)))
        variables[name] = ((*dims, *extra), values)
    return variables | {name: (("evaluation",), values) for name, values in trained.evaluations.items()}


def _coordinates(trained: Trained) -> dict[str, Any]:
    made = trained.schedule
    local_steps = np.where(made.mask, trained.records.get("executed_local_steps", made.local_steps), 0).sum(axis=1)
    taken = {
        "eval_step": np.arange(1, made.server_steps + 1),
        "eval_time": made.time,
        "eval_updates": made.mask.sum(axis=1).cumsum(),
        "eval_local_steps": local_steps.cumsum(),
    }
    return {name: (("evaluation",), np.insert(values, 0, 0)[trained.eval_step]) for name, values in taken.items()}


def plain(node: Any) -> Any:
    """A description of a part, and of what it holds, that JSON can hold: for the attributes of a result."""
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        name = getattr(node, "name", None)
        own = {"name": name if isinstance(name, str) else type(node).__name__}
        return own | {option: plain(value) for option, value in options_of(node).items()}
    if isinstance(node, dict):
        return {str(key): plain(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [plain(value) for value in node]
    if isinstance(node, np.ndarray | np.generic | jax.Array):
        array = np.asarray(node)
        return array.tolist() if array.size <= 64 else f"array{list(array.shape)}"
    if callable(node):
        return getattr(node, "__name__", type(node).__name__)
    return node


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
    path = pathlib.Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"the result path {path} is a directory; name a file, e.g. {path / 'result.nc'}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the result cannot be written: there is no directory {path.parent}; create it first")
    if path.exists() and not path.is_file():
        raise UserError(f"the result path {path} is no regular file; name a file, e.g. result.nc")
    try:
        if path.exists():
            path.open("ab").close()
        _beside(path).touch()
        _beside(path).unlink()
    except OSError as error:
        raise PermissionError(f"the result cannot be written to {path}: {error.strerror}") from error
    return path


def save(dataset: xr.Dataset, path: str | os.PathLike[str]) -> None:
    """Writes a result as NetCDF-4 with checksums: under another name in the same directory first, so that an earlier
    file of this name is replaced by a whole one or stays as it is.

    Raises:
        OSError: it could not be written; says why, and holds the result as its attribute `dataset`.
    """
    beside = _beside(path)
    try:
        content = io.BytesIO()  # HDF5 itself brings the process down where the disk is full
        dataset.to_netcdf(content, engine="h5netcdf")
        with beside.open("wb") as file:
            file.writelines([content.getbuffer(), _checksums(content)])
        os.replace(beside, pathlib.Path(path).resolve())
    except Exception as error:  # of the file system, HDF5 or xarray
        beside.unlink(missing_ok=True)
        failure = OSError(
            f"the result could not be saved to {path}, where nothing has changed ({type(error).__name__}: {error}); "
            "is the disk full, or the file open elsewhere?"
        )
        failure.dataset = dataset  # type: ignore[attr-defined]
        failure.add_note("the result is kept, as the attribute `dataset` of this error: afl.save(error.dataset, path)")
        raise failure from error


def _beside(path: str | os.PathLike[str]) -> pathlib.Path:
    """The name of the unfinished file."""
    target = pathlib.Path(path).resolve()  # a link stays one
    return target.with_name(f".{target.name}.{os.getpid()}.part")


# Checksums stand behind the end of the HDF5 file, where HDF5 does not look. They cover all bytes, so also attributes,
# strings, scalars and HDF5's own structures, and are compared before HDF5 opens the file: it may never return from a
# damaged one. Whatever writes to the file through HDF5 (xarray, h5py, nco) cuts them off, and a copy that xarray saves
# has none; both load unchecked, as files of version 0.1 do. HDF5's own filter, Fletcher-32, is no use here: it takes 0
# for -1 (the client of an arrival that did not happen), refuses strings (the options of a sweep's members) and scalars,
# leaves out attributes, and needs 2 kB per variable.
def _checksums(content: io.BytesIO) -> bytes:
    """What stands behind a file of HDF5: name -> [start, end, CRC-32] of the bytes of a variable, "" for all bytes."""
    import h5py

    with h5py.File(content) as file, content.getbuffer() as data:
        places = {"": (0, len(data))}
        for name, variable in file.items():
            if (start := variable.id.get_offset()) is not None:  # a dimension without coordinate has no data
                places[name] = (start, start + variable.id.get_storage_size())
        return json.dumps({name: (at, to, zlib.crc32(data[at:to])) for name, (at, to) in places.items()}).encode()


def _check_bytes(path: str | os.PathLike[str]) -> None:
    """Raises a ValueError that says what is damaged, where the file has checksums."""
    content = memoryview(pathlib.Path(path).read_bytes())
    at = {b"\0": 40, b"\1": 44}.get(bytes(content[8:9]), 28)  # by the version of HDF5's first block
    end = int.from_bytes(content[at : at + 8], "little")
    if content[:4] != b"\x89HDF" or end >= len(content):
        return
    try:
        table = json.loads(bytes(content[end:]))
        damaged = [name for name, (at, to, known) in table.items() if zlib.crc32(content[at:to]) != known]
    except (ValueError, TypeError, AttributeError):  # of a damaged table
        damaged = [""]
    if damaged:
        where = f"variable {', '.join(damaged[1:])}" if damaged[1:] else "its attributes, texts or structure"
        raise ValueError(f"{path} is damaged: {where} changed since it was written; run again to make a new one")


def load(path: str | os.PathLike[str]) -> xr.Dataset:
    """Reads a result of a run, a sweep or the quickstart into memory.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is damaged, or not a result.
    """
    import xarray as xr

    if not pathlib.Path(path).is_file():
        raise FileNotFoundError(f"there is no result file {path}")
    _check_bytes(path)
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
