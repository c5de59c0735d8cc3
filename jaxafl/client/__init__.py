"""Local training: options, local steps and mini-batches."""

from jaxafl.client.examples import dp_sgd
from jaxafl.client.frozen import frozen_by, zero_outputs
from jaxafl.client.memory import Memory, Turns, first_memory, first_shared, turns_of
from jaxafl.client.optimizer import MadeOptimizer, Optimised
from jaxafl.client.options import Client, Moment, Timing
from jaxafl.client.personal import filled, sent_of, shared_of
from jaxafl.client.sending import Traffic, check_sent, computed_norm, sent_update, traffic
from jaxafl.client.stepping import optimizer_step
from jaxafl.client.training import Draw, Lane, begin, draw, local_step

__all__ = [
    "Client",
    "Draw",
    "Lane",
    "MadeOptimizer",
    "Memory",
    "Moment",
    "Optimised",
    "Timing",
    "Traffic",
    "Turns",
    "begin",
    "check_sent",
    "computed_norm",
    "dp_sgd",
    "draw",
    "filled",
    "first_memory",
    "first_shared",
    "frozen_by",
    "local_step",
    "optimizer_step",
    "sent_of",
    "sent_update",
    "shared_of",
    "traffic",
    "turns_of",
    "zero_outputs",
]
