"""Which of its samples a client takes in a local step: positions 0..n-1, computed where they are needed, never
stored."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxafl.keys import Key, below, threefry

Array = jax.Array
_ROUNDS = 32


def with_replacement(key: Key, step: Array, batch_size: int, count: Array) -> Array:
    """int32 [B]: uniform draws from `count` samples, independent of each other and between steps."""
    words, _ = threefry(key, step, jnp.arange(batch_size, dtype=jnp.uint32))
    return below(words, count)


def shuffled(key: Key, epoch: Array, ranks: Array, count: Array) -> Array:
    """int32 [B]: which samples stand at the given ranks of an epoch's shuffle of `count` samples (rank >= count gives
    rank 0's).

    The shuffle is a keyed permutation evaluated pointwise by the swap-or-not network (Hoang, Morris and Rogaway, "An
    enciphering scheme based on a card shuffle", CRYPTO 2012): in each round, x and K - x (mod n) change places or not
    by one bit of a hash of the larger. So an epoch needs no array of the client's size and may be entered anywhere.
    """
    low, high = threefry(key, epoch, 0xFFFFFFFC)
    count = jnp.asarray(count).astype(jnp.uint32)
    place = jnp.where(ranks < count.astype(jnp.int32), ranks, 0).astype(jnp.uint32)
    for index in range(_ROUNDS):
        pivot = _mix(low + jnp.uint32(index * 0x9E3779B9 & 0xFFFFFFFF)) % count
        salt = _mix(high ^ jnp.uint32(index * 0x85EBCA6B & 0xFFFFFFFF))
        partner = jnp.where(pivot >= place, pivot - place, pivot + (count - place))
        swap = _mix(jnp.maximum(place, partner) ^ salt) >> 31
        place = jnp.where(swap == 1, partner, place)
    return place.astype(jnp.int32)


def _mix(word: Array) -> Array:
    """A 32-bit integer hash (two multiply-xorshift rounds: Wellons' lowbias32)."""
    word = (word ^ (word >> 16)) * jnp.uint32(0x7FEB352D)
    word = (word ^ (word >> 15)) * jnp.uint32(0x846CA68B)
    return word ^ (word >> 16)
