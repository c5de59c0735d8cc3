"""Sweeps of simulations."""

from jaxafl.sweep.executors.pools import process_pool
from jaxafl.sweep.folder import gather
from jaxafl.sweep.outlook import Outlook, outlook
from jaxafl.sweep.run import sweep
from jaxafl.sweep.sample import sample

__all__ = ["Outlook", "gather", "outlook", "process_pool", "sample", "sweep"]
