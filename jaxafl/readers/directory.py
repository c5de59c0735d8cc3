"""The data directory, its files, and the error for a missing dataset."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from jaxafl.options import as_path

Directory: TypeAlias = str | os.PathLike[str] | None
"""A data directory; `None` takes the default, see `data_directory`."""


class MissingDataset(FileNotFoundError):
    """Error for a dataset that no place holds, or holds only in part."""


def data_directory(data_dir: Directory = None) -> pathlib.Path:
    """Returns the directory of datasets: `data_dir`, else `$JAXAFL_DATA_DIR`, else the default of TensorFlow Datasets.

    Args:
        data_dir: a directory; `None` takes the next choice.

    Returns:
        The directory, which need not exist. The default of TFDS is `$TFDS_DATA_DIR`, else `~/tensorflow_datasets`.
    """
    chosen = data_dir or os.environ.get("JAXAFL_DATA_DIR") or os.environ.get("TFDS_DATA_DIR")
    return as_path(chosen or "~/tensorflow_datasets")


def find_files(name: str, places: Iterable[tuple[pathlib.Path, Sequence[str]]]) -> list[pathlib.Path]:
    """Returns the files of a dataset, gzipped as `*.gz` or not, from the first folder that holds any of them.

    Args:
        name: name of the dataset.
        places: folders, each with the names of the files in it.

    Returns:
        The paths in the order of the names; empty if no folder holds any.

    Raises:
        FileNotFoundError: the folder holds only some of them.
    """
    for folder, names in places:
        found = {file: path for file in names for path in (folder / f"{file}.gz", folder / file) if path.is_file()}
        if found and len(found) < len(names):
            absent = ", ".join(file for file in names if file not in found)
            raise MissingDataset(
                f"{folder} holds only part of {name}: {absent} (or *.gz) is missing. Add what is missing, or remove "
                "the rest to let another source be used."
            )
        if found:
            return [found[file] for file in names]
    return []


def missing_dataset(name: str, looked_in: Sequence[pathlib.Path], ways: Sequence[str]) -> MissingDataset:
    """Returns the error for a dataset that was not found.

    Args:
        name: name of the dataset.
        looked_in: the tried directories or files.
        ways: ways to get it, one sentence each.

    Returns:
        The error, to be raised by the caller.
    """
    places = "".join(f"\n  {place}{'' if place.exists() else ' (does not exist)'}" for place in looked_in)
    choices = "".join(f"\n  {number}. {way}" for number, way in enumerate(ways, 1))
    return MissingDataset(
        f"dataset {name!r} was not found. Looked in:{places}\nWays to get it:{choices}\n"
        "The data directory is the data_dir argument (--data-dir on the command line), else the environment variable "
        "JAXAFL_DATA_DIR, else TensorFlow Datasets' own default."
    )
