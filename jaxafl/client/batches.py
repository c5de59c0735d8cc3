"""Mini-batches as sample positions 0..n-1 of a client, computed when needed and never stored."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxafl.client.options import Client
from jaxafl.device.keys import Key, below, threefry

Array = jax.Array
_ROUNDS = 32


def positions(client: Client, count: Array, size: Array, at: Any, ranks: Array) -> tuple[Array, Array, Array]:
    """Returns the sample positions of ranks in the mini-batch, a mask of the real ones, and how many are real in all.

    Args:
        client: local training.
        count: int32, the client's number of samples.
        size: int32, size of a mini-batch.
        at: `Lane` of the run. Its `key`, `shuffle_key`, `client`, `run` and `step` determine the samples.
        ranks: int32 [B].
    """
    if client.batch_size is None:
        return jnp.minimum(ranks, count - 1), ranks < count, count
    if client.epochs is None and client.sampling == "replacement":
        words, _ = threefry(at.key, at.step, ranks)
        return below(words, count), ranks < size, size
    step = at.step
    if client.epochs is None:  # epochs continue where the client's last run stopped
        per_run = jnp.int32(client.steps)  # [] or [N]: `check` refuses steps per run
        step = step + at.run * (per_run[at.client] if per_run.ndim else per_run)
    batches = -(-count // size)
    first = step % batches * size
    inside = (ranks < size) & (first + ranks < count)
    where = shuffled(at.shuffle_key, step // batches, jnp.where(inside, first + ranks, 0), count)
    return where, inside, jnp.minimum(size, count - first)


def shuffled(key: Key, epoch: Array, ranks: Array, count: Array) -> Array:
    """Returns the samples at the given ranks of an epoch's shuffle, int32 [B]; ranks >= `count` are replaced by 0.

    The shuffle is a keyed permutation evaluated pointwise by the swap-or-not network (Hoang, Morris and Rogaway, "An
    enciphering scheme based on a card shuffle", CRYPTO 2012). In each round, one bit of a hash of the larger of x and
    K - x (mod n) decides if they are swapped. An epoch thus needs no array of the client's size, and can start at any
    rank.

    Args:
        key: key of the client's shuffles.
        epoch: int32, index of the shuffle.
        ranks: int32 [B], ranks in the epoch.
        count: int32, the client's number of samples.
    """
    low, high = threefry(key, epoch, 0xFFFFFFFC)
    count = jnp.uint32(count)
    place = jnp.where(ranks < count.astype(jnp.int32), ranks, 0).astype(jnp.uint32)
    for index in range(_ROUNDS):
        pivot = _mix(low + jnp.uint32(index * 0x9E3779B9 & 0xFFFFFFFF)) % count
        salt = _mix(high ^ jnp.uint32(index * 0x85EBCA6B & 0xFFFFFFFF))
        partner = jnp.where(pivot >= place, pivot - place, pivot + (count - place))
        swap = _mix(jnp.maximum(place, partner) ^ salt) >> 31
        place = jnp.where(swap == 1, partner, place)
    # without the barrier XLA fuses this into the gather and recomputes it; jaxlib 0.11 and 0.12 then never finish
    # compiling
    return jax.lax.optimization_barrier(place.astype(jnp.int32))


def _mix(word: Array) -> Array:
    """Computes a 32-bit integer hash (two multiply-xorshift rounds: Wellons' lowbias32)."""
    word = (word ^ (word >> 16)) * jnp.uint32(0x7FEB352D)
    word = (word ^ (word >> 15)) * jnp.uint32(0x846CA68B)
    return word ^ (word >> 16)
