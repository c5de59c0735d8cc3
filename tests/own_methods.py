"""Methods of a user's own, as `python -m experiments... --method tests.own_methods:NAME` takes them."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

import jaxafl as afl
from jaxafl.options import Number, number
from jaxafl.server import Arrivals, Outcome, Server


class Halving(Server):
    """x ← x + η Δ.

    Args:
        learning_rate: η.
    """

    learning_rate: Number = number(default=0.5, least=0)

    def update(self, params: Any, state: Any, arrivals: Arrivals) -> Outcome:
        return Outcome(jax.tree.map(lambda x, d: x + self.learning_rate * d.sum(0), params, arrivals.delta), state, {})


class needs(Halving):
    """The same.

    Args:
        learning_rate: η.
        more: another.
    """

    learning_rate: Number = number(least=0)
    more: Number = number(least=0)


halving = Halving(0.25)
a = halving


def doubled(learning_rate: float = 2.0) -> Server:
    return Halving(learning_rate)


def whole(base: afl.Simulation) -> afl.Simulation:
    return dataclasses.replace(base, server=Halving())


def tuned(base: afl.Simulation, learning_rate: float = 0.1) -> Server:
    return Halving(learning_rate)
