"""Contract of aggregates, rules in the place of the weighted mean of a server."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from jaxafl.client import Client
from jaxafl.clock.contract import Clock
from jaxafl.device.buffers import expand
from jaxafl.options import Part
from jaxafl.options.user_code import like_given
from jaxafl.server.contract import Array, Arrivals, Tree, counts, first_of

Combined = tuple[Tree, Any, dict[str, Array]]
"""Direction, next state and diagnostics."""
_MOST_COUNTED = 64
"""Most updates of which ranks are counted, which takes A² comparisons; XLA's sort takes longer on a CPU."""


class Aggregate(Part):
    """Base class of rules in the place of a server's weighted mean D = Σ_i w_i Δ_i.

    A subclass defines `update`, and `init` if it has a state. Its fields are options, whose numbers can be swept. Empty
    steps do not reach it. Batch statistics are averaged with the weights w_i, whatever the rule selects.

    Attributes:
        linear: `update` uses the updates only through `weighted_sum` and `squares` of `jaxafl.device.buffers`. For
            other rules no privacy can be planned.
        meanings: descriptions of diagnostics, by name, for the result.
        least_arrivals: the smallest buffer for which the rule is defined.
        noise: standard deviation of the noise in the sum of updates, over their clipping norm; `None` without noise.
    """

    linear: ClassVar[bool] = False
    meanings: ClassVar[dict[str, str]] = {}
    least_arrivals: ClassVar[int] = 1
    noise: ClassVar[Any] = None

    def check(self, server: Any, clock: Clock, client: Client, num_clients: int) -> None:
        """Raises `ValueError` for options that contradict each other, the server, the clock or the client."""

    def init(self, params: Tree) -> Any:
        """Returns the state before the first server step, a pytree."""
        return ()

    def update(self, deltas: Tree, weights: Array, state: Any, arrivals: Arrivals) -> Combined:
        """Computes the direction D of a server step.

        Args:
            deltas: updates as received, each leaf [A, ...].
            weights: the server's weights w_i with multiplicity, float [A]; 0 for padding.
            state: of the rule.
            arrivals: the arrivals of the step. `arrivals.key` is for random draws.

        Returns:
            D with the structure of the parameters, the next state, and diagnostics, scalars or [A].
        """
        raise NotImplementedError(f"the aggregate {self.name} has no update(deltas, weights, state, arrivals)")


class Center(Aggregate):
    """Base class of aggregates D = W c with a centre c of the updates and the sum W = Σ_i w_i of the server's weights.

    With weights of sum 1, D = c. A discount of stale updates thus scales D by its mean. An update of multiplicity m is
    m points.
    """

    least_arrivals = 2  # a single update is its own centre

    def update(self, deltas: Tree, weights: Array, state: Any, arrivals: Arrivals) -> Combined:
        points = jax.vmap(lambda delta: ravel_pytree(delta)[0])(deltas)
        restored = ravel_pytree(first_of(deltas))[1]
        center, state, info = self.center(points, counts(arrivals), weights, state)
        center = like_given(f"the aggregate {self.name}", "center", center, points[0])
        return restored((jnp.sum(weights) * center).astype(points.dtype)), state, info

    def center(self, points: Array, times: Array, weights: Array, state: Any) -> tuple[Array, Any, dict[str, Array]]:
        """Computes the centre c, [d].

        Args:
            points: updates, float [A, d].
            times: multiplicities, float [A]; 0 for padding.
            weights: the server's weights, float [A].
            state: of the rule.

        Returns:
            The centre, the next state, and diagnostics.
        """
        raise NotImplementedError(f"the aggregate {self.name} has no center(points, times, weights, state)")


def mean_of_ranks(values: Array, times: Array, first: Array, end: Array) -> Array:
    """Computes the mean of the values of ranks `first` .. `end - 1`, from the smallest on, along axis 0.

    Args:
        values: float [A, ...]. A NaN counts as infinity.
        times: the number of times that each value counts, float [A, ...], or [A, 1].
        first, end: scalars, or [...].
    """
    values = jnp.where(jnp.isnan(values), jnp.inf, values)
    if len(values) <= _MOST_COUNTED:
        share = overlap(_number_below(values, times), times, first, end)
    else:
        given = (values, jnp.broadcast_to(times, values.shape))
        values, times = jax.lax.sort(given, dimension=0, num_keys=1)
        share = overlap(jnp.cumsum(times, axis=0) - times, times, first, end)
    return jnp.sum(jnp.where(share > 0, share * values, 0), axis=0) / jnp.sum(share, axis=0)


def overlap(below: Array, times: Array, first: Array | int, end: Array | int) -> Array:
    """Returns how often each of several entries is among the ranks `first` .. `end - 1`, float [A, ...].

    Args:
        below: rank of the entry, float [A, ...].
        times: the number of times that it counts, float [A, ...].
        first, end: the ranks.
    """
    return jnp.maximum(jnp.minimum(below + times, end) - jnp.maximum(below, first), 0)


def _number_below(values: Array, times: Array) -> Array:
    """Computes the rank of every value by comparison with all others, of equal ones in order, float [A, ...]."""
    places = expand(jnp.arange(len(values)), values)

    def add(place: Array, below: Array) -> Array:
        smaller = (values[place] < values) | ((values[place] == values) & (place < places))
        return below + jnp.where(smaller, times[place], 0)

    # unrolled, since each pass over the values reads and writes them all in memory: half the time on a CPU
    return jax.lax.fori_loop(0, len(values), add, jnp.zeros(values.shape, times.dtype), unroll=4)
