"""`jaxafl data`: the datasets in the data directory, and their downloads."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Iterator

from tyro.conf import Positional

from jaxafl.cli import surroundings
from jaxafl.readers.directory import data_directory
from jaxafl.readers.download import PLACES, download


def data(names: Positional[tuple[str, ...]] = (), data_dir: pathlib.Path | None = None) -> int:
    """Download datasets by name, or list all datasets: where they are, and how to get missing ones.

    Args:
        names: datasets to download (complete files are only checked); without names, all datasets are read and listed
        data_dir: data directory; by default $JAXAFL_DATA_DIR, else the default of TensorFlow Datasets
    """
    for name in names:
        print(f"{name}: complete in {download(name, data_dir)}")
    if not names:
        print(f"datasets in {data_directory(data_dir)} (--data-dir, or JAXAFL_DATA_DIR, names another folder)")
        print("\n".join(lines(surroundings.datasets(data_dir))))
        print(f"jaxafl data NAME ... downloads {', '.join(PLACES)}")
    return 0


def lines(datasets: Iterable[tuple[str, dict[str, str]]]) -> Iterator[str]:
    """Yields the findings of `surroundings.datasets` as lines of text."""
    for name, one in datasets:
        first, *more = one["error"].splitlines() if "error" in one else [one["found"]]
        if "Download it" in first:
            first, more = f"missing; jaxafl data {name} downloads it", []
        yield f"  {name:<20} {first.removesuffix(' Looked in:')}"
        yield from (f"      {line.strip()}" for line in more if line.strip()[:2] in ("1.", "2."))
