"""The data directory, and the error for a missing dataset."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence

from jaxafl.options import as_path


class MissingDataset(FileNotFoundError):
    """Error for a dataset that no place holds, or holds only in part."""


def data_directory(data_dir: str | os.PathLike[str] | None = None) -> pathlib.Path:
    """Returns the directory of datasets: `data_dir`, else `$JAXAFL_DATA_DIR`, else the default of TensorFlow Datasets.

    Args:
        data_dir: a directory; `None` takes the next choice.

    Returns:
        The directory, which need not exist. The default of TFDS is `$TFDS_DATA_DIR`, else `~/tensorflow_datasets`.
    """
    chosen = data_dir or os.environ.get("JAXAFL_DATA_DIR") or os.environ.get("TFDS_DATA_DIR")
    return as_path(chosen or "~/tensorflow_datasets")


def find_file(name: str, places: Sequence[pathlib.Path], ways: Sequence[str]) -> pathlib.Path:
    """Returns the first path that is a file; raises the error of `missing_dataset` if there is none."""
    for path in places:
        if path.is_file():
            return path
    raise missing_dataset(name, places, ways)


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
