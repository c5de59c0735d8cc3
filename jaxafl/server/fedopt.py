"""Servers whose step is an Optax transformation of a weighted mean of the updates."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import optax

from jaxafl.client import Client, Optimised
from jaxafl.clock.contract import Clock, Delivery
from jaxafl.device import weighted_sum
from jaxafl.options import Number, number, static
from jaxafl.server.contract import Arrivals, Needs, Outcome, Server, Tree, counts, shares

Array = jax.Array


class OptaxServer(Server):
    """x ← x + u with u what an Optax optimiser makes of the gradient -D, D = Σ_i w_i Δ_i over the arrivals.

    The weights are 1/M unless `weigh` says otherwise. It averages whatever arrives by itself.
    """

    accepts = Server.accepts | Delivery.REPEATED | Delivery.EMPTY | Delivery.BY_CLIENT

    @property
    def needs(self) -> Needs:
        parts = (getattr(type(self), name) for name in ("update", "weigh", "rate"))
        return Needs(sums=all(part.__module__.startswith("jaxafl.") for part in parts))  # others may look at updates

    def weigh(self, arrivals: Arrivals) -> Array:
        """w [A], 0 where there is no arrival."""
        return shares(counts(arrivals))

    def rate(self, arrivals: Arrivals) -> Number | None:
        """The learning rate of this step where it depends on the arrivals (`server_rate` of the result)."""
        return None

    def optimizer_of(self, rate: Number | None) -> optax.GradientTransformation:
        """The optimiser of a step with this rate (`None`: its own)."""
        raise NotImplementedError(f"the server {self.name} has no optimizer_of(rate)")

    def init(self, params: Tree, samples: Array) -> optax.OptState:
        return self.optimizer_of(None).init(params)

    def update(self, params: Tree, state: optax.OptState, arrivals: Arrivals) -> Outcome:
        rate = self.rate(arrivals)
        gradient = weighted_sum(-self.weigh(arrivals), arrivals.delta)
        step, state = self.optimizer_of(rate).update(gradient, state, params)
        info = {} if rate is None else {"server_rate": jnp.asarray(rate)}
        return Outcome(optax.apply_updates(params, step), state, info)


def discounted(staleness: Literal["none", "polynomial"], arrivals: Arrivals, mean: bool = True) -> Array:
    """(1/M) s(τ_i), [A]: s = 1, or 1/√(1 + τ); not divided by M unless `mean`."""
    weights = counts(arrivals)
    total = jnp.maximum(jnp.sum(weights), 1)
    if staleness == "polynomial":
        weights = weights / jnp.sqrt(1 + arrivals.staleness.astype(weights.dtype))
    return weights / total if mean else weights


class fedopt(Optimised, OptaxServer, init=False):
    """Any Optax optimiser on the discounted mean of a buffer: x ← x + u, u its step on -D, D = (1/M) Σ s(τ_i) Δ_i.

    `fedopt(optax.adamw, 1e-3, b2=0.99, weight_decay=1e-4)`; with `optax.sgd` it is `fedbuff`.

    Args:
        optimizer: an Optax optimiser's constructor that takes a learning rate; its other hyper-parameters (momentum, b1
            ...) are given by name, and numbers among them can be swept.
        learning_rate: η >= 0.
        staleness: `"none"`: s = 1; `"polynomial"`: s = 1/√(1 + τ).

    References:
        Reddi et al., "Adaptive federated optimization", ICLR 2021, Algorithm 1; the discount of Nguyen et al.,
        "Federated learning with buffered asynchronous aggregation", AISTATS 2022.
    """

    learning_rate: Number = number(default=1.0, least=0)
    staleness: Literal["none", "polynomial"] = static(default="none")

    references = ("reddi2021", "nguyen2022")

    def check(self, clock: Clock, client: Client, num_clients: int) -> None:
        self.check_hyperparameters()

    def weigh(self, arrivals: Arrivals) -> Array:
        return discounted(self.staleness, arrivals)

    def optimizer_of(self, rate: Number | None) -> optax.GradientTransformation:
        return self.optimizer(learning_rate=self.learning_rate, **self.hyperparameters, **dict(self.switches))
