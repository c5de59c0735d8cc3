"""Servers with an Optax step on a weighted mean of the updates, and the discounts of stale updates."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax

from jaxafl.client import Client, MadeOptimizer, Optimised, optimizer_step
from jaxafl.client.optimizer import nodes_of
from jaxafl.clock.contract import ByOptions, Clock
from jaxafl.device import weighted_sum
from jaxafl.device.keys import renewed
from jaxafl.options import Number, number, static
from jaxafl.options.user_code import like_given, traced_method
from jaxafl.server.aggregate.contract import Aggregate, Center
from jaxafl.server.contract import TICKS, Array, Arrivals, Outcome, Server, Tree, counts, shares
from jaxafl.server.scheduled import Rate

Staleness: TypeAlias = Literal["none", "polynomial", "hinge", "exponential"] | Callable[[Array], Array]
_INJECTED = optax.InjectStatefulHyperparamsState
_SCHEDULED = (optax.ScaleByScheduleState, optax.contrib.ReduceLROnPlateauState)


class Aggregated(NamedTuple):
    """State of a server with an aggregate."""

    optimizer: optax.OptState
    aggregate: Any


class OptaxServer(Server):
    """Base of servers with x ← x + u, where u is an Optax step on the gradient -D, D = Σ_i w_i Δ_i over the arrivals.

    The weights are 1/M unless `weigh` is overridden. An optimiser that needs a `value`
    (`optax.contrib.reduce_on_plateau`, `optax.polyak_sgd`) gets Σ_i w_i loss_i / Σ_i w_i, the mean local training loss
    of the arrivals. PRNG keys in the optimiser's state are replaced by keys of the step (`Arrivals.key`). Batch
    statistics are averaged with these weights, divided by their sum.

    Args:
        aggregate: rule in the place of the weighted mean D, one of `jaxafl.aggregate`; `None` for that mean.

    Attributes:
        bounded: True if an update weighs at most its multiplicity / M, for all clients, staleness and data, and reaches
            the aggregate as it arrived. So it is with the `weigh` and `update` of this class; a class with its own
            for which it holds sets `bounded = True` itself.
    """

    aggregate: Aggregate | None = dataclasses.field(default=None, kw_only=True)

    accepts = Server.accepts | TICKS
    bounded = True

    def weigh(self, arrivals: Arrivals) -> Array:
        """Returns the weights w of the updates, float [A]; 0 for padding."""
        return shares(counts(arrivals))

    def rate(self, arrivals: Arrivals) -> Number | None:
        """Returns the learning rate of this step if it depends on the arrivals (recorded as `server_rate`)."""
        return None

    def applied_rate(self, state: optax.OptState) -> Number | None:
        """Returns `learning_rate` of `optax.inject_hyperparams` or of the options; `None` under a schedule."""
        if nodes_of(state, _SCHEDULED):
            return None
        injected = nodes_of(state, _INJECTED)
        return injected[0].hyperparams.get("learning_rate") if injected else getattr(self, "learning_rate", None)

    def optimizer_of(self, rate: Number) -> optax.GradientTransformation:
        """Returns the optimiser of a step with this learning rate, `optax.sgd` unless overridden.

        Args:
            rate: that of `rate(arrivals)`, else the option `learning_rate`; 1 if the server has neither.
        """
        return optax.sgd(rate)

    def init(self, params: Tree, samples: Array) -> optax.OptState:
        state = self.optimizer_of(getattr(self, "learning_rate", 1.0)).init(params)
        return state if self.aggregate is None else Aggregated(state, self.aggregate.init(params))

    def update(self, params: Tree, state: optax.OptState, arrivals: Arrivals) -> Outcome:
        rate = self.rate(arrivals)
        weights = self.weigh(arrivals)
        like_given(f"the server {self.name}", "weigh", weights, arrivals.samples, types=True)
        info = {} if rate is None else {"server_rate": jnp.asarray(rate)}
        if self.aggregate is None:
            gradient = weighted_sum(-weights, arrivals.delta)
        else:
            rule = self.aggregate
            method = "center" if type(rule).update is Center.update else "update"
            with traced_method(f"the aggregate {rule.name}", method, "`arrivals.key` in `update`"):
                direction, after, more = rule.update(arrivals.delta, weights, state.aggregate, arrivals)
            gradient, state, info = jax.tree.map(jnp.negative, direction), state.optimizer, {**info, **more}
        if arrivals.key is not None:
            state = renewed(state, arrivals.key)
        loss = jnp.sum(jnp.where(weights > 0, weights * arrivals.loss, 0)) / jnp.sum(weights)
        optimizer = self.optimizer_of(getattr(self, "learning_rate", 1.0) if rate is None else rate)
        step, state = optimizer_step(self.name, optimizer, gradient, state, params, {"value": loss})
        state = state if self.aggregate is None else Aggregated(state, after)
        return Outcome(optax.apply_updates(params, step), state, info, weights=weights)


def discount(rule: str | Callable[[Array], Array], tau: Array, exponent: Number | None, threshold: Number) -> Array:
    """Computes the discounts s(τ) of updates, float [A].

    Args:
        rule: `"none"` and `"constant"`: s = 1. `"polynomial"`: s = (1 + τ)^(-a). `"hinge"`: s = 1 if τ <= b, else
            1 / (a (τ - b) + 1). `"exponential"`: s = e^(-aτ). A function returns s for τ, both float [A].
        tau: staleness τ, float [A].
        exponent: exponent or slope a; `None` stands for 1/2, and for 10 with `"hinge"`.
        threshold: largest staleness b that `"hinge"` does not discount.
    """
    if callable(rule):
        return jnp.broadcast_to(jnp.asarray(rule(tau), tau.dtype), tau.shape)
    if rule == "polynomial":
        return 1 / jnp.sqrt(1 + tau) if exponent is None else (1 + tau) ** -jnp.asarray(exponent, tau.dtype)
    if rule == "hinge":
        late = jnp.maximum(tau - threshold, 0)
        return jnp.where(tau <= threshold, 1.0, 1 / ((10.0 if exponent is None else exponent) * late + 1))
    if rule == "exponential":
        return jnp.exp(-jnp.asarray(0.5 if exponent is None else exponent, tau.dtype) * tau)
    return jnp.ones_like(tau)


class Discounted(OptaxServer):
    """Base of servers that multiply the weights of updates by a discount s(τ); options as of `Discounting`."""

    learning_rate: Rate = number(default=1.0, least=0)
    staleness: Staleness = static(default="polynomial")
    exponent: Number | None = number(default=None, least=0, kw_only=True)
    threshold: Number = number(default=4.0, least=0, kw_only=True)

    def discounted(self, arrivals: Arrivals, weights: Array) -> Array:
        """Returns weights times s(τ), float [A]; 0 for padding."""
        tau = arrivals.staleness.astype(weights.dtype)
        return jnp.where(arrivals.mask, weights * discount(self.staleness, tau, self.exponent, self.threshold), 0)


class Discounting(Discounted):
    """Base of servers with the discounted mean D = Σ_i w_i s(τ_i) Δ_i of a buffer.

    Args:
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps.
        staleness: discount s of stale updates. `"polynomial"`: s = (1 + τ)^(-a), in the paper with a = 1/2. `"none"`: s
            = 1. `"hinge"`: s = 1 if τ <= b, else 1 / (a (τ - b) + 1). `"exponential"`: s = e^(-aτ). A function gets τ,
            float [A], and returns s, float [A].
        exponent: exponent or slope a; at least 0. `None`: 1/2, and 10 for `hinge`.
        threshold: largest staleness b that `hinge` does not discount; at least 0.
        weights: weights w_i of the updates before the discount. `"uniform"`: 1/M. `"samples"`: n_i / Σ n over the
            buffer. `"local_steps"`: K_i / ΣK over the buffer, for runs of unequal length.
    """

    weights: Literal["uniform", "samples", "local_steps"] = static(default="uniform", kw_only=True)

    bounded = ByOptions(True, lambda one: one.weights == "uniform" and not callable(one.staleness))

    def weigh(self, arrivals: Arrivals) -> Array:
        times = counts(arrivals)
        weights = times if self.weights == "uniform" else times * getattr(arrivals, self.weights)
        return self.discounted(arrivals, weights) / self._divisor(weights, times)

    def _divisor(self, weights: Array, times: Array) -> Array:
        """Returns the divisor of the weights: their sum, or 1 without arrivals. `times`: multiplicities, float [A]."""
        return jnp.maximum(jnp.sum(weights), 1)


class fedopt(Discounting, Optimised, init=False):
    """Any Optax optimiser on the discounted mean of a buffer: x ← x + u, u its step on -D, D = Σ_i w_i s(τ_i) Δ_i.

    For example `fedopt(optax.adamw, 1e-3, b2=0.99, weight_decay=1e-4)`. With `optax.sgd` it is `fedbuff`.

    Args:
        optimizer: constructor of an Optax optimiser that takes a learning rate. Its other hyperparameters (momentum, b1
            ...) are given by name, and the numbers among them can be swept. A made one, e.g. `optax.adam(0.01)`, is
            static and has its learning rate already.
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps. The result's
            `server_rate` is η as the constructor gets it, or the rate of `optax.inject_hyperparams`. It is omitted for
            a made optimiser that keeps no rate, and under a schedule of Optax.
        staleness, exponent, threshold, weights: s and w_i; see `jaxafl.server.fedopt.Discounting`.

    References:
        Reddi et al., "Adaptive federated optimization", ICLR 2021, Algorithm 1; the discount of Nguyen et al.,
        "Federated learning with buffered asynchronous aggregation", AISTATS 2022.
    """

    buffer = 10
    references = ("reddi2021", "nguyen2022")

    def check(self, clock: Clock, client: Client, num_clients: int) -> None:
        self.check_hyperparameters()
        if isinstance(self.optimizer, MadeOptimizer) and self.learning_rate != 1:
            given = f"learning_rate={self.learning_rate}"
            raise ValueError(f"fedopt: the optimiser is made already; leave {given} out, or give the constructor")
        if "learning_rate" in self.schedules:
            first: Any = self.at_step(0)
            state = jax.eval_shape(first.optimizer_of(first.learning_rate).init, {"x": jnp.zeros(1)})
            if nodes_of(state, _INJECTED):
                raise ValueError(
                    f"fedopt: {self.optimizer_name} keeps its learning_rate in its state, where a schedule of server "
                    "steps has no effect. Give the optimiser without optax.inject_hyperparams"
                )

    def applied_rate(self, state: optax.OptState) -> Number | None:
        rate = super().applied_rate(state)
        return None if isinstance(self.optimizer, MadeOptimizer) and rate is self.learning_rate else rate

    def optimizer_of(self, rate: Number) -> optax.GradientTransformation:
        made = isinstance(self.optimizer, MadeOptimizer)
        return self.make_optimizer(**({} if made else {"learning_rate": rate}))
