"""Quantities that accumulate along recorded traces, repeated for ever: bits over a link, seconds of readiness."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.options import Part, static
from jaxafl.readers.phones import Traces

Array = jax.Array


class CyclicTraces(Part):
    """Piecewise linear, non-decreasing functions A_i of time on [0, P_i], continued by A_i(t + P_i) = A_i(t) + A_i(P_i)
    for ever.

    Attributes:
        time: float64 [knots], seconds; trace i owns `offsets[i]:offsets[i + 1]`, from 0 to its period P_i.
        amount: float64 [knots], A_i at these times, 0 at the first; never decreasing, above 0 at the last.
        offsets: int32 [traces + 1].
        halvings: of the longest trace, until one knot is left.
    """

    time: Array | np.ndarray
    amount: Array | np.ndarray
    offsets: Array | np.ndarray
    halvings: int = static()

    @classmethod
    def of(cls, traces: Traces) -> CyclicTraces:
        """Traces that have been read."""
        return cls(*traces, halvings=int(np.diff(traces.offsets).max()).bit_length())

    @property
    def count(self) -> int:
        """The number of traces."""
        return self.offsets.shape[0] - 1

    def period(self, trace: Array) -> Array:
        """P_i in seconds."""
        return jnp.asarray(self.time)[jnp.asarray(self.offsets)[trace + 1] - 1]

    def elapsed(self, trace: Array, phase: Array, amount: Array) -> Array:
        """The least d with A_i(phase + d) - A_i(phase) = amount, in O(log knots of the trace).

        Args:
            trace: int32, i.
            phase: float64, seconds in [0, P_i).
            amount: float64, >= 0.

        Returns:
            d in seconds, 0 where nothing is to be accumulated.
        """
        time, amounts, offsets = (jnp.asarray(table) for table in (self.time, self.amount, self.offsets))
        first, last = offsets[trace], offsets[trace + 1] - 1
        period, total = time[last], amounts[last]
        goal = self._interpolate(time, amounts, phase, first, last) + amount
        laps = jnp.maximum(jnp.ceil(goal / total) - 1, 0)  # whole periods before the one in which the goal is reached
        reached = self._interpolate(amounts, time, goal - laps * total, first, last)
        return jnp.where(amount > 0, jnp.maximum(laps * period + reached - phase, 0), 0.0)

    def _interpolate(self, given: Array, wanted: Array, value: Array, first: Array, last: Array) -> Array:
        """`wanted` where `given` first reaches the value, between the knots `first` and `last`."""

        def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = bounds  # given[low - 1] < value, and value <= given[high] unless it is beyond the last
            middle = (low + high) // 2
            less = given[middle] < value
            return jnp.where(less & (low < high), middle + 1, low), jnp.where(less, high, middle)

        right, _ = jax.lax.fori_loop(0, self.halvings, halve, (first + 1, last))
        width = given[right] - given[right - 1]
        share = jnp.clip((value - given[right - 1]) / jnp.where(width > 0, width, 1), 0, 1)
        return wanted[right - 1] + share * (wanted[right] - wanted[right - 1])
