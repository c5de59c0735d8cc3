"""Options `select` and `weights` of clocks that draw clients."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.options import UserError

Array = jax.Array
C = TypeVar("C", bound=Any)  # a clock with the options


def by_samples(clock: C, counts: np.ndarray) -> C:
    """Returns the clock with the sample counts n_i, int [N], as weights, if it selects by samples."""
    if clock.select != "samples" or clock.weights is not None:
        return clock
    return dataclasses.replace(clock, weights=np.asarray(counts, np.float64), select="uniform")


def weights_of(clock: Any, num_clients: int) -> Array | None:
    """Returns the weights of the clients in draws, float64 [N]; `None` for uniform draws.

    Raises:
        UserError: the weights are sample counts, which are unknown without data.
    """
    if clock.weights is not None:
        return jnp.broadcast_to(jnp.asarray(clock.weights, jnp.float64), (num_clients,))
    if clock.select == "samples":
        raise UserError(
            f"{clock.name}: select='samples' needs the sample counts of the data; run the clock in a Simulation, or "
            "give weights=counts"
        )
    return None


def draws_by_weight(clock: Any) -> bool:
    """Returns True unless a clock's draws are uniform."""
    return clock.weights is not None or clock.select != "uniform"


def check_weights(clock: Any, num_clients: int, drawn: int, always: bool = False) -> None:
    """Raises `UserError` for weights that have no effect, contradict `select`, or are above 0 for too few clients.

    Args:
        clock: the clock.
        num_clients: N.
        drawn: number of different clients that draws must be able to give.
        always: True if weights have an effect even if all clients can be drawn.
    """
    if not draws_by_weight(clock):
        return
    if drawn >= num_clients and not always:
        raise UserError(
            f"{clock.name}: all {num_clients} clients take part, so select and weights have no effect; "
            "draw fewer clients, or leave them out"
        )
    if clock.weights is None:
        return
    if clock.select != "uniform":
        raise UserError(f"{clock.name}: give weights or select={clock.select!r}, not both")
    positive = np.count_nonzero(np.broadcast_to(np.asarray(clock.weights), (num_clients,)))
    if positive < drawn:
        raise UserError(
            f"{clock.name}: only {positive} of {num_clients} clients have a weight above 0, and {drawn} are drawn; "
            "expected a weight above 0 for at least as many"
        )
