"""Starts at a rate, whenever updates arrive."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from jaxafl.device.keys import Key, Purpose, purpose_key, threefry, uniform

Array = jax.Array
Interval: TypeAlias = Literal["poisson", "constant"]


class Opening(NamedTuple):
    """Next start at a rate."""

    time: Array  # float64, simulated seconds
    index: Array  # type: ignore[assignment]
    key: Key

    def after(self, rate: Any, interval: Interval) -> Opening:
        """Returns the start after this one, at `rate` starts per second."""
        index = self.index + 1
        if interval == "constant":  # a sum of intervals would collect rounding
            return self._replace(time=index / jnp.asarray(rate, jnp.float64), index=index)
        gap = -jnp.log1p(-uniform(threefry(self.key, self.index, 0), jnp.float64)) / rate
        return self._replace(time=self.time + gap, index=index)


def first_opening(rate: Any, interval: Interval, key: Key) -> Opening:
    """Returns the first start, one interval after time 0, from the key of the schedule."""
    return Opening(jnp.float64(0), jnp.int32(0), purpose_key(key, Purpose.OPENING)).after(rate, interval)
