"""HALoS, Delayed Nesterov momentum in regions and at a global server."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxafl.client import Client
from jaxafl.clock.contract import Clock, Delivery
from jaxafl.clock.protocols.regions import SENDS
from jaxafl.device import buffers
from jaxafl.options import Number, check_number, number, recording, static
from jaxafl.server.algorithms.delayed_nesterov import Delayed, nesterov
from jaxafl.server.contract import Array, Arrivals, Needs, Outcome, Server, Tree, first_of
from jaxafl.server.scheduled import Rate


class Region(NamedTuple):
    """State of a region; of all regions with a leading axis R."""

    model: Tree  # y
    reference: Tree  # r, y at the last merge
    sent: Tree  # u on its way up, or x on its way down
    nesterov: Delayed


class Regions(NamedTuple):
    """Server state."""

    regions: Region  # each leaf [R, ...]
    nesterov: Delayed  # of the global server


class halos(Server):
    """HALoS: Delayed Nesterov steps in every region and, on what regions send, at the global server.

    Region l has a model y_l and a reference r_l, at first x_0. DN and DN_l are the rule of `delayed_nesterov`, each
    with momentum, sum and count of its own.

    - A worker of region l arrives: y_l ← DN_l(y_l, Δ_i), and the worker goes on from this y_l.
    - After K_s arrivals since the last merge the region sends u = y_l - r_l, once per round trip.
    - u reaches the global server: x ← DN(x, u), and this x is sent back to region l only.
    - x reaches region l: y_l ← (1 - α) y_l + α x, r_l ← y_l.

    What arrives during a round trip remains in y_l, times 1 - α, and is part of no u. The momentum of a region does not
    see the merge. x is evaluated, and batch statistics are those of the newest arrival. No update is discounted. A
    worker of `init(start=...)` goes on from the model that it has downloaded last. The rule follows the authors'
    simulator, whose rates per arrival are η/N: 0.15 and 0.2 by default.

    Args:
        learning_rate: η of the global server; at least 0, or an Optax schedule of server steps, which count all events
            of the clock.
        momentum: β of the global server, in [0, 1).
        period: N of the global server, updates of regions between two changes of its momentum.
        activation: c of the global server, in [0, 1/N].
        regional_rate: η of every region; at least 0, or a schedule like that of `learning_rate`.
        regional_momentum: β of every region, in [0, 1).
        regional_period: N of every region, arrivals in it between two changes of its momentum.
        regional_activation: c of every region, in [0, 1/N].
        alpha: weight α of the global model in a merge, in [0, 1]. 1 drops the work of a round trip, 0 never listens.

    References:
        Kim et al., "HALoS: Hierarchical asynchronous local SGD over slow networks for geo-distributed large language
        model training", ICML 2025; Liu et al., "Asynchronous Local-SGD training for language modeling", 2024.
    """

    learning_rate: Rate = number(default=0.3, least=0)
    momentum: Number = number(default=0.5, least=0, below=1)
    period: int = static(default=2)
    activation: Number = number(default=0.0, least=0)
    regional_rate: Rate = number(default=3.2, least=0)
    regional_momentum: Number = number(default=0.9, least=0, below=1)
    regional_period: int = static(default=16)
    regional_activation: Number = number(default=0.0, least=0)
    alpha: Number = number(default=0.25, least=0, most=1)
    sizes: Any = recording(default=None)  # clients of each region, [R]

    requires = Delivery.CONTINUOUS | Delivery.REGIONAL
    accepts = Delivery.STALE | Delivery.EMPTY
    needs = Needs(client_models=True, empty_steps=True)
    single = True
    references = ("kim2025", "liu2024")
    meanings = {
        "region": "region of the event",
        "event": "0 arrival, 1 arrival after which the region sends, 2 update of a region arrives, 3 merge in a region",
        "regional_staleness": "arrivals in the region since the start of the run; 0 for a transfer",
    }

    def check(self, clock: Clock, client: Client, num_clients: int) -> None:
        for name, period in (("activation", self.period), ("regional_activation", self.regional_period)):
            check_number(self.name, name, getattr(self.at_step(0), name), least=0, most=1 / period)

    def prepare(self, clock: Any, client: Client, counts: np.ndarray, seed: int) -> tuple[halos, Client]:
        return dataclasses.replace(self, sizes=np.bincount(clock.regions).astype(float)), client

    def _levels(self) -> tuple[optax.GradientTransformation, optax.GradientTransformation]:
        """Returns the rules of a region and of the global server."""
        regional = self.regional_rate, self.regional_momentum, self.regional_period, self.regional_activation
        return nesterov(*regional), nesterov(self.learning_rate, self.momentum, self.period, self.activation)

    def init(self, params: Tree, samples: Array) -> Regions:
        regional, outer = self._levels()
        one = Region(params, params, params, regional.init(params))
        every = jax.tree.map(lambda leaf: jnp.repeat(jnp.asarray(leaf)[None], len(self.sizes), 0), one)
        return Regions(every, outer.init(params))

    def update(self, params: Tree, state: Regions, arrivals: Arrivals) -> Outcome:
        region, event = arrivals.columns["region"], arrivals.columns["event"]
        regional, outer = self._levels()

        def moved(rule: optax.GradientTransformation, x: Tree, change: Tree, known: Delayed) -> tuple[Tree, Delayed]:
            step, known = rule.update(jax.tree.map(jnp.negative, change), known)
            return optax.apply_updates(x, step), known

        def arrives(x: Tree, momentum: Delayed, one: Region) -> tuple[Tree, Delayed, Region]:
            delta = first_of(arrivals.delta)
            model, regional_momentum = moved(regional, one.model, delta, one.nesterov)
            change = optax.tree.sub(model, one.reference)
            sent = optax.tree.where(event == SENDS, change, one.sent)
            return x, momentum, Region(model, one.reference, sent, regional_momentum)

        def rises(x: Tree, momentum: Delayed, one: Region) -> tuple[Tree, Delayed, Region]:
            x, momentum = moved(outer, x, one.sent, momentum)
            return x, momentum, one._replace(sent=x)

        def merges(x: Tree, momentum: Delayed, one: Region) -> tuple[Tree, Delayed, Region]:
            alpha = self.alpha
            mixed = jax.tree.map(lambda y, x: ((1 - alpha) * y + alpha * x).astype(y.dtype), one.model, one.sent)
            return x, momentum, one._replace(model=mixed, reference=mixed)

        given = params, state.nesterov, buffers.read(state.regions, region)
        x, momentum, one = jax.lax.switch(event, (arrives, arrives, rises, merges), *given)
        regions = buffers.write(state.regions, region, one)
        models = jax.tree.map(lambda leaf: leaf[None], one.model)
        return Outcome(x, Regions(regions, momentum), dict(arrivals.columns), client_params=models)
