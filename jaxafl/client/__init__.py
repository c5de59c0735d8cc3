"""Local training: its options, its steps, its mini-batches."""

from jaxafl.client.optimizer import Optimised
from jaxafl.client.options import Client, Moment
from jaxafl.client.training import Lane, begin, local_step

__all__ = ["Client", "Lane", "Moment", "Optimised", "begin", "local_step"]
