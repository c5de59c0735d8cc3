"""Starts at a rate, and ends of windows, whenever updates arrive."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from jaxafl.device.keys import Key, Purpose, purpose_key, threefry, uniform

Array = jax.Array
Interval: TypeAlias = Literal["poisson", "constant"]


class Opening(NamedTuple):
    """Next start at a rate, or next end of a window."""

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


def first_opening(rate: Any, interval: Interval, key: Key, purpose: Purpose = Purpose.OPENING) -> Opening:
    """Returns the first start, one interval after time 0, from the key of the schedule."""
    return Opening(jnp.float64(0), jnp.int32(0), purpose_key(key, purpose)).after(rate, interval)


def first_window(period: Any, windows: Interval, key: Key) -> Array | Opening:
    """Returns the first window: its index for windows of one length, or else its end, drawn from the schedule's key."""
    return jnp.int32(1) if windows == "constant" else first_opening(1 / period, windows, key, Purpose.WINDOW)


def end_of(window: Array | Opening, period: Any) -> Array:
    """Returns the end of a window in simulated seconds, float64."""
    return window.time if isinstance(window, Opening) else window * jnp.asarray(period, jnp.float64)


def next_window(window: Array | Opening, period: Any) -> Array | Opening:
    """Returns the window after this one."""
    return window.after(1 / period, "poisson") if isinstance(window, Opening) else window + 1
