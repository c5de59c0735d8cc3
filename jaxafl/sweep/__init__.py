"""Sweeps, comparisons and tuning of simulations."""

from jaxafl.sweep.compare import compare
from jaxafl.sweep.comparison import Comparison
from jaxafl.sweep.gather import gather
from jaxafl.sweep.outlook import Outlook, outlook
from jaxafl.sweep.pool import process_pool
from jaxafl.sweep.run import sweep
from jaxafl.sweep.sample import sample
from jaxafl.sweep.tune import tune

__all__ = ["Comparison", "Outlook", "compare", "gather", "outlook", "process_pool", "sample", "sweep", "tune"]
