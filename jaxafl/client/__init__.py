"""Local training: options, local steps and mini-batches."""

from jaxafl.client.memory import Memory, Turns, check_lasting, first_memory, first_shared, shared_of, turns_of
from jaxafl.client.optimizer import MadeOptimizer, Optimised, dp_sgd, optimizer_step, takes_examples
from jaxafl.client.options import Client, Moment, Timing, check_examples
from jaxafl.client.sending import Traffic, sent_update, traffic
from jaxafl.client.training import Lane, begin, local_step
from jaxafl.models.frozen import filled

__all__ = [
    "Client",
    "Lane",
    "MadeOptimizer",
    "Memory",
    "Moment",
    "Optimised",
    "Timing",
    "Traffic",
    "Turns",
    "begin",
    "check_examples",
    "check_lasting",
    "dp_sgd",
    "filled",
    "first_memory",
    "first_shared",
    "local_step",
    "optimizer_step",
    "sent_update",
    "shared_of",
    "takes_examples",
    "traffic",
    "turns_of",
]
