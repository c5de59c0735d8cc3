"""A duration: a client is slow in some of its runs."""

from __future__ import annotations

import jax.numpy as jnp

from jaxafl.clock import Draw, Duration, worked
from jaxafl.options import Number, number, static


class every_so_often(Duration):
    """`seconds`, and `factor` times as long in every `period`-th run of a client.

    Args:
        seconds: of most runs, > 0.
        factor: how many times as long the others take, >= 1.
        period: runs from one of them to the next.
    """

    seconds: Number = number(above=0)
    factor: Number = number(default=10.0, least=1)
    period: int = static(default=3)

    def draw(self, prepared, run) -> Draw:
        slow = (run.run + run.client) % self.period == 0
        return worked(jnp.where(slow, self.factor, 1.0) * self.seconds)
