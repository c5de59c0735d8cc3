"""Which of its samples a client takes in a local step: positions 0..n-1, computed where they are needed, never
stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxafl.client.options import Client
from jaxafl.device.keys import Key, below, threefry

Array = jax.Array
_ROUNDS = 32


def positions(
    client: Client, count: Array, size: Array, at: Any
) -> tuple[Callable[[Array], tuple[Array, Array]], Array]:
    """(rank in the mini-batch -> sample position and whether the rank is real), and how many ranks are real.

    Args:
        client: local training.
        count: the client's samples.
        size: of a mini-batch.
        at: the run's `Lane`: whose `key`, `shuffle_key`, `client`, `run` and `step` decide which samples come next.
    """
    if client.batch_size is None:
        return lambda ranks: (jnp.minimum(ranks, count - 1), ranks < count), count
    if client.epochs is None and client.sampling == "replacement":

        def drawn(ranks: Array) -> tuple[Array, Array]:
            words, _ = threefry(at.key, at.step, ranks)
            return below(words, count), ranks < size

        return drawn, size
    step = at.step
    if client.epochs is None:  # epochs go on where the client's last run stopped
        per_run = jnp.asarray(client.steps, jnp.int32)  # not per run: `check` refuses that
        step = step + at.run * (per_run[at.client] if per_run.ndim else per_run)
    batches = -(-count // size)
    first = step % batches * size

    def ranked(ranks: Array) -> tuple[Array, Array]:
        inside = (ranks < size) & (first + ranks < count)
        return shuffled(at.shuffle_key, step // batches, jnp.where(inside, first + ranks, 0), count), inside

    return ranked, jnp.minimum(size, count - first)


def shuffled(key: Key, epoch: Array, ranks: Array, count: Array) -> Array:
    """int32 [B]: which samples stand at the given ranks of an epoch's shuffle of `count` samples (rank >= count gives
    rank 0's).

    The shuffle is a keyed permutation evaluated pointwise by the swap-or-not network (Hoang, Morris and Rogaway, "An
    enciphering scheme based on a card shuffle", CRYPTO 2012): in each round, x and K - x (mod n) change places or not
    by one bit of a hash of the larger. So an epoch needs no array of the client's size and may be entered anywhere.

    Args:
        key: of the shuffle (of a client).
        epoch: int32, which shuffle.
        ranks: int32 [B], places in the epoch.
        count: the client's samples.
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
    # in one kernel with the gather that reads them, XLA would compute places again and again; jaxlib 0.11 and 0.12 then
    # never end to compile it
    return jax.lax.optimization_barrier(place.astype(jnp.int32))


def _mix(word: Array) -> Array:
    """A 32-bit integer hash (two multiply-xorshift rounds: Wellons' lowbias32)."""
    word = (word ^ (word >> 16)) * jnp.uint32(0x7FEB352D)
    word = (word ^ (word >> 15)) * jnp.uint32(0x846CA68B)
    return word ^ (word >> 16)
