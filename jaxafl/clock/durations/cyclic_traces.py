"""Quantities that accumulate along periodic traces: bits over a link, seconds of readiness."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array


class CyclicTraces(NamedTuple):
    """Piecewise linear, non-decreasing functions A_i of time on [0, P_i].

    They are continued by A_i(t + P_i) = A_i(t) + A_i(P_i).

    Attributes:
        time: float64 [knots], seconds. Trace i has the knots `offsets[i]:offsets[i + 1]`, from 0 to its period P_i.
        amount: float64 [knots], values of A_i at these times; 0 at the first, non-decreasing, above 0 at the last.
        offsets: int32 [traces + 1], first knot of each trace, followed by the number of knots.
    """

    time: Array | np.ndarray
    amount: Array | np.ndarray
    offsets: Array | np.ndarray

    def period(self, trace: Array) -> Array:
        """Returns the period P_i in seconds."""
        return jnp.asarray(self.time)[jnp.asarray(self.offsets)[trace + 1] - 1]

    def elapsed(self, trace: Array, phase: Array, amount: Array) -> Array:
        """Computes the least d with A_i(phase + d) - A_i(phase) = amount, in O(log knots of the trace).

        Args:
            trace: int32, i.
            phase: float64, seconds in [0, P_i).
            amount: float64, >= 0.

        Returns:
            d in seconds; 0 if the amount is 0.
        """
        time, amounts, offsets = (jnp.asarray(table) for table in (self.time, self.amount, self.offsets))
        first = offsets[trace]
        last = offsets[trace + 1] - 1
        period = time[last]
        total = amounts[last]
        goal = self._interpolate(time, amounts, phase, first, last) + amount
        laps = jnp.maximum(jnp.ceil(goal / total) - 1, 0)  # complete periods before the goal is reached
        reached = self._interpolate(amounts, time, goal - laps * total, first, last)
        return jnp.where(amount > 0, jnp.maximum(laps * period + reached - phase, 0), 0.0)

    def _interpolate(self, given: Array, wanted: Array, value: Array, first: Array, last: Array) -> Array:
        """Interpolates `wanted` where `given` first reaches the value, between knots `first` and `last`."""

        def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = bounds  # given[low - 1] < value, and value <= given[high] unless it exceeds the last knot
            middle = (low + high) // 2
            less = given[middle] < value
            return jnp.where(less & (low < high), middle + 1, low), jnp.where(less, high, middle)

        right, _ = jax.lax.fori_loop(0, len(self.time).bit_length(), halve, (first + 1, last))
        width = given[right] - given[right - 1]
        share = jnp.clip((value - given[right - 1]) / jnp.where(width > 0, width, 1), 0, 1)
        return wanted[right - 1] + share * (wanted[right] - wanted[right - 1])
