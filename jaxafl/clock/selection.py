"""Draws of idle clients, at a cost that hardly grows with the population.

The idle clients are ordered by client index (this order is part of a schedule's definition): the draw picks a rank
among them. Only the busy clients are stored, as a sorted array padded with a value far past the last client.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from jaxafl.clock import trees
from jaxafl.device.buffers import read, write
from jaxafl.device.keys import Key, threefry, uniform

Array = jax.Array
# run counters are updated in rows of 256 bytes: some jaxlib versions copy the array for smaller updates inside a loop
_BLOCK = 64
_PADDING = jnp.iinfo(jnp.int32).max


def idle_rank(key: Key, draw: Array, num_busy: Array, num_clients: int) -> Array:
    """Draws the rank of an idle client in client order, int32 from 0 on, from the random bits of draw `draw`."""
    return jnp.floor(uniform(threefry(key, draw, 0), jnp.float64) * (num_clients - num_busy)).astype(jnp.int32)


def weighted_client(key: Key, draw: Array, weights: Array, num_clients: int) -> Array:
    """Draws a client from a tree of weights (`trees.weights_of`) with a probability proportional to its weight."""
    return trees.weighted(weights, num_clients, uniform(threefry(key, draw, 0), jnp.float64))


def idle_client(key: Key, draw: Array, busy: Array, num_busy: Array, num_clients: int) -> Array:
    """Draws a client uniformly from the idle ones, with O(C) work.

    Args:
        key: key of the stream of starts.
        draw: int32, index of the draw in the stream.
        busy: int32 [C], busy clients in increasing order, then padding.
        num_busy: int32, number of busy clients.
        num_clients: N.

    Returns:
        int32, the client.
    """

    # the condition is always true; without the branch XLA repeats the draw for every busy client it is compared with
    drawn = functools.partial(idle_rank, key, draw, num_busy, num_clients)
    rank = jax.lax.cond(num_busy < num_clients, drawn, lambda: jnp.int32(0))
    # the k-th busy client (from 0) has busy[k] - k idle clients before it
    before = busy - jnp.arange(busy.shape[0], dtype=jnp.int32) <= rank
    return rank + jnp.sum(before, dtype=jnp.int32)


def no_busy(capacity: int) -> Array:
    """Returns an empty list of busy clients."""
    return jnp.full(capacity, _PADDING, jnp.int32)


def insert(busy: Array, client: Array) -> Array:
    """Inserts a client into a sorted list, whose last entry must be padding."""
    index = jnp.arange(busy.shape[0], dtype=jnp.int32)
    position = jnp.sum(busy < client, dtype=jnp.int32)
    return jnp.where(index < position, busy, jnp.where(index == position, client, jnp.roll(busy, 1)))


def no_runs(num_clients: int) -> Array:
    """Returns zero counters of the clients' runs, int32 [ceil(N / 64), 64]."""
    return jnp.zeros((-(-num_clients // _BLOCK), _BLOCK), jnp.int32)


def count_run(runs: Array, client: Array, started: Array) -> tuple[Array, Array]:
    """Increments a client's counter if `started`; returns the counters, and the index of the client's started run."""
    row = client // _BLOCK
    column = client % _BLOCK
    mine = (jnp.arange(_BLOCK, dtype=jnp.int32) == column) & started
    runs = write(runs, row, read(runs, row) + mine.astype(jnp.int32))
    # reading before the write would make XLA copy the array at every call
    return runs, runs[row, column] - started.astype(jnp.int32)
