"""Drawing clients uniformly from the idle ones, at a cost that does not grow with the population.

The idle clients are ordered by client index (this order is part of a schedule's definition): the draw picks a rank
among them. Only the busy clients are stored, as a sorted array padded with a value far past the last client.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from jaxafl.device.buffers import read, write
from jaxafl.device.keys import Key, threefry, uniform

Array = jax.Array
# run counters are updated in rows of 256 bytes: smaller updates inside a loop copy the array in some jaxlib versions
_BLOCK = 64
_PADDING = jnp.iinfo(jnp.int32).max


def idle_rank(key: Key, draw: Array, num_busy: Array, num_clients: int) -> Array:
    """Which of the idle clients, int32 from 0 on by number, the bits of this draw index choose."""
    return jnp.floor(uniform(threefry(key, draw, 0), jnp.float64) * (num_clients - num_busy)).astype(jnp.int32)


def idle_client(key: Key, draw: Array, busy: Array, num_busy: Array, num_clients: int) -> Array:
    """A client drawn uniformly from the idle ones with the bits of this draw index.

    Args:
        key: the key of the stream of starts.
        draw: int32, which draw of the stream.
        busy: int32 [C], the busy clients in increasing order, then padding.
        num_busy: int32, how many are busy.
        num_clients: N.

    Returns:
        int32: the client; work O(C).
    """

    # somebody is idle; but without a branch XLA makes the draw again for every busy client that it is compared with
    drawn = functools.partial(idle_rank, key, draw, num_busy, num_clients)
    rank = jax.lax.cond(num_busy < num_clients, drawn, lambda: jnp.int32(0))
    # the k-th busy client (from 0) has busy[k] - k idle clients before it
    before = busy - jnp.arange(busy.shape[0], dtype=jnp.int32) <= rank
    return rank + jnp.sum(before, dtype=jnp.int32)


def no_busy(capacity: int) -> Array:
    """An empty list of busy clients."""
    return jnp.full(capacity, _PADDING, jnp.int32)


def insert(busy: Array, client: Array) -> Array:
    """The sorted list with one more client (the last entry must be padding)."""
    index = jnp.arange(busy.shape[0], dtype=jnp.int32)
    position = jnp.sum(busy < client, dtype=jnp.int32)
    return jnp.where(index < position, busy, jnp.where(index == position, client, jnp.roll(busy, 1)))


def no_runs(num_clients: int) -> Array:
    """Counters of the runs that each client has started, int32 [ceil(N / 64), 64]."""
    return jnp.zeros((-(-num_clients // _BLOCK), _BLOCK), jnp.int32)


def count_run(runs: Array, client: Array, started: Array) -> tuple[Array, Array]:
    """The counters with this client's raised by one where `started`, and the index of the run it starts."""
    row, column = client // _BLOCK, client % _BLOCK
    mine = (jnp.arange(_BLOCK, dtype=jnp.int32) == column) & started
    runs = write(runs, row, read(runs, row) + mine.astype(jnp.int32))
    # read after the write: a second reader of the old array would make XLA copy all of it at every call
    return runs, runs[row, column] - started.astype(jnp.int32)
