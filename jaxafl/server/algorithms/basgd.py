"""BASGD, a robust aggregate of the means of buffers."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import optax

from jaxafl.client import Client
from jaxafl.clock.contract import Clock, Delivery
from jaxafl.device.buffers import expand
from jaxafl.options import UserError, number, static
from jaxafl.server.aggregate import Aggregate, median
from jaxafl.server.contract import Array, Arrivals, Outcome, Tree, counts
from jaxafl.server.fedopt import OptaxServer
from jaxafl.server.scheduled import Rate

_PER_ARRIVAL = ("mask", "client", "multiplicity", "kind", "staleness", "samples", "local_steps", "loss")


class basgd(OptaxServer):
    """BASGD: x ← x + η A(h_1, ..., h_B), with the mean h_b of the updates in buffer b and a robust aggregate A.

    An update of client i is in buffer i mod B. The paper's server steps once no buffer is empty, see `every_buffer`; on
    other clocks, A gets the buffers that are not empty. One gradient per run, Δ = -∇f_i, in the paper; several local
    steps are our extension. With `Client(correction=local_momentum(μ))` it is BASGDm.

    Args:
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps.
        buffers: B, from 1 to N, as that of the clock. Of B buffers, fewer than B / 2 may have forged updates.
        aggregate: A, in the paper `median` or `trimmed_mean`; `None` for the mean.

    References:
        Yang & Li, "BASGD: Buffered asynchronous SGD for Byzantine learning", ICML 2021, Algorithm 2. Buffers are not
        reassigned.
    """

    learning_rate: Rate = number(default=0.1, least=0)
    buffers: int = static(default=2)
    aggregate: Aggregate | None = dataclasses.field(default=median(), kw_only=True)

    requires = Delivery.CONTINUOUS
    accepts = Delivery.STALE
    buffer = 10
    references = ("yang2021basgd",)

    def check(self, clock: Clock, client: Client, num_clients: int) -> None:
        of_clock = getattr(getattr(clock, "clock", clock), "buffers", self.buffers)
        if of_clock != self.buffers or self.buffers > num_clients:
            few = min(of_clock, num_clients)
            raise UserError(f"basgd: buffers={self.buffers} for {num_clients} clients on {clock!r}; give {few}")
        if self.aggregate is not None and self.aggregate.least_arrivals > self.buffers:
            few = self.aggregate.least_arrivals
            raise UserError(f"basgd: buffers={self.buffers} is too small for {self.aggregate!r}; give at least {few}")

    def update(self, params: Tree, state: optax.OptState, arrivals: Arrivals) -> Outcome:
        buffer, times = arrivals.client % self.buffers, counts(arrivals)
        held = (buffer == jnp.arange(self.buffers)[:, None]) & arrivals.mask
        shares = times / jnp.maximum(jnp.where(held, times, 0).sum(1), 1)[buffer]

        def mean(leaf: Array) -> Array:  # by rows, since 0 · NaN in a product would spread a forged NaN to all buffers
            weighted = jnp.where(expand(arrivals.mask, leaf), expand(shares, leaf).astype(leaf.dtype) * leaf, 0)
            return jax.ops.segment_sum(weighted, buffer, self.buffers)

        filled, first = held.any(1), held.argmax(1)
        each = {name: getattr(arrivals, name)[first] for name in _PER_ARRIVAL}
        each |= {"mask": filled, "multiplicity": filled.astype(jnp.int32), "loss": mean(arrivals.loss)}
        means = arrivals._replace(**each, delta=jax.tree.map(mean, arrivals.delta))
        found = super().update(params, state, means)
        info = {name: value[buffer] if jnp.ndim(value) else value for name, value in found.info.items()}
        return found._replace(info=info, weights=self.weigh(means)[buffer] * shares)
