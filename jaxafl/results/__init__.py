"""Results of runs: datasets with named axes and units, and their files."""

from jaxafl.results.arrivals import MISSING
from jaxafl.results.dataset import flat, of_run, options_of_parts, plain
from jaxafl.results.files import BEGINS, check_path, load, save
from jaxafl.results.points import at
from jaxafl.results.tables.frames import tidy

__all__ = [
    "BEGINS",
    "MISSING",
    "at",
    "check_path",
    "flat",
    "load",
    "of_run",
    "options_of_parts",
    "plain",
    "save",
    "tidy",
]
