"""What a run returns: datasets with named axes and units, and their files."""

from jaxafl.results.dataset import MISSING, flat, of_run, options_of_parts, plain
from jaxafl.results.files import check_path, load, save

__all__ = ["MISSING", "check_path", "flat", "load", "of_run", "options_of_parts", "plain", "save"]
