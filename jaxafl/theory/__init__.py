"""Convergence bounds of the papers, a function of named constants per theorem, and sources of the constants.

A bound is a dataset with a variable per term. It holds in expectation, so compare it with the mean over seeds.
`quadratic` is a problem with known constants; `estimate` measures them on a run of any simulation. `optimal_times` and
`queues` predict simulated seconds.
"""

from jaxafl.theory import afl, asyncfeded, defedavg, delayed_gradients, fadas, optimal_times, queues, staleness
from jaxafl.theory.bounds import CONSTANTS, Constant, evaluate, speed_up, steps_to
from jaxafl.theory.estimate import estimate
from jaxafl.theory.quadratic import Quadratic, quadratic

__all__ = [
    "CONSTANTS",
    "Constant",
    "Quadratic",
    "afl",
    "asyncfeded",
    "defedavg",
    "delayed_gradients",
    "estimate",
    "evaluate",
    "fadas",
    "optimal_times",
    "quadratic",
    "queues",
    "speed_up",
    "staleness",
    "steps_to",
]
