"""Files of results: NetCDF-4 with a checksum."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pathlib
import sys
import zlib
from typing import TYPE_CHECKING

import numpy as np

from jaxafl.options import UserError, as_path
from jaxafl.readers.replacing import replacing, temporary_path
from jaxafl.results.accessor import Privacy

if TYPE_CHECKING:  # importing xarray here would slow down `import jaxafl`
    import xarray as xr

BEGINS = b"\x89HDF"
"""The first bytes of a result's file."""


def check_path(path: str | os.PathLike[str] | None, begins: bytes = b"") -> pathlib.Path | None:
    """Checks that a file can be written to a path, and returns the path.

    Args:
        path: the path; `None` writes nothing.
        begins: the first bytes of the format. An existing file that begins otherwise is not replaced.

    Raises:
        FileNotFoundError: the directory does not exist.
        PermissionError: the file or its directory cannot be written.
        IsADirectoryError: the path is a directory.
        ValueError: the path is not a regular file, such as a device, or a file of other content.
    """
    if path is None:
        return None
    path = as_path(path)
    if path.exists() and not path.is_file() and not path.is_dir():
        raise UserError(f"the result path {path} is no regular file; name a file, e.g. result.nc")
    try:
        if path.exists():
            with path.open("ab+") as file:
                file.seek(0)
                other = not (file.read(len(begins)).lower() or begins).startswith(begins.lower())
            if other:
                raise UserError(f"{path} holds something else, which is not replaced; name another file, or remove it")
        temporary_path(path).touch()
        temporary_path(path).unlink()
    except OSError as error:
        raise type(error)(f"the result cannot be written to {path}: {error.strerror}") from error
    return path


def save(dataset: xr.Dataset, path: str | os.PathLike[str]) -> None:
    """Writes a result as NetCDF-4 with a checksum. An existing file is replaced atomically or stays unchanged.

    Raises:
        TypeError: this is not a path.
        OSError: the file could not be written. The error holds the result as its attribute `dataset`.
    """
    path = as_path(path)
    try:
        content = io.BytesIO()  # HDF5 aborts the process if it writes to a full disk itself
        dask = sys.modules.get("dask")  # its distributed lock needs a client of the cluster
        with dask.config.set(scheduler="single-threaded") if dask else contextlib.nullcontext():
            dataset.to_netcdf(content, engine="h5netcdf")
        data = content.getbuffer()
        table = json.dumps({"": (0, len(data), zlib.crc32(data))})
        with replacing(path) as unfinished, unfinished.open("wb") as file:
            file.writelines([data, table.encode()])
    except Exception as error:  # the file system, HDF5 and xarray raise different kinds
        why = f"the result could not be saved to {path}, where nothing has changed ({type(error).__name__}: {error})"
        failure = OSError(why)
        failure.dataset = dataset  # type: ignore[attr-defined]
        raise failure from error


# A checksum is appended after the end of the HDF5 file, which HDF5 ignores. It covers all bytes, including attributes,
# strings, scalars and the structures of HDF5. It is compared before HDF5 opens the file, because HDF5 may hang on a
# damaged one. Programs that write to the file through HDF5 (xarray, h5py, nco) cut it off, and a copy that xarray
# saves has none; both load unchecked. Fletcher-32, the filter of HDF5, does not suffice: it
# takes 0 for -1 (the client of an empty slot), refuses strings and scalars, skips attributes, and needs 2 kB per
# variable.
def _check_bytes(path: pathlib.Path) -> None:
    """Raises `ValueError` if the file has a checksum, {"": [start, end, CRC-32]}, and its bytes differ."""
    content = memoryview(path.read_bytes())
    at = {b"\0": 40, b"\1": 44}.get(bytes(content[8:9]), 28)  # depends on the version of HDF5's superblock
    end = int.from_bytes(content[at : at + 8], "little")
    if content[:4] != b"\x89HDF" or end >= len(content):
        return
    try:
        start, stop, known = json.loads(bytes(content[end:]))[""]
        intact = zlib.crc32(content[start:stop]) == known
    except (ValueError, TypeError, KeyError):  # the checksum itself is damaged
        intact = False
    if not intact:
        raise ValueError(f"{path} is damaged: it has changed since it was written; run again to make a new one")


def load(path: str | os.PathLike[str]) -> xr.Dataset:
    """Reads a result of a run or a sweep into memory.

    Raises:
        FileNotFoundError, IsADirectoryError: the file does not exist, or is a folder.
        TypeError: this is not a path.
        ValueError: the file is damaged, or no NetCDF file.
    """
    import xarray as xr

    if not hasattr(xr.Dataset, "privacy"):
        xr.register_dataset_accessor("privacy")(Privacy)
    _check_bytes(as_path(path))
    try:
        dataset = xr.load_dataset(as_path(path), engine="h5netcdf")
    except Exception as error:  # h5netcdf and h5py raise many kinds for damaged files
        raise ValueError(
            f"{path} is not a result file (NetCDF), or it is damaged ({type(error).__name__}: {error}); run again to "
            "make a new one"
        ) from error
    dataset.attrs = {
        name: value.item() if isinstance(value, np.generic) else value for name, value in dataset.attrs.items()
    }
    return dataset.drop_encoding()  # of integers, written as such where a sweep has filled them with NaN
