"""What round-based clocks share: drawing sets of clients, and the durations of several runs at once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxafl.clock import selection
from jaxafl.clock.durations import Run
from jaxafl.keys import Key, threefry, uniform

Array = jax.Array


def without_replacement(key: Key, round: Array, size: int, num_clients: int) -> Array:
    """int32 [size]: distinct clients, drawn one after another uniformly from those not yet drawn."""
    if size == num_clients:
        return jnp.arange(size, dtype=jnp.int32)
    order = jnp.arange(size, dtype=jnp.int32)

    def pick(chosen: Array, indexed: tuple[Array, Array]) -> tuple[Array, Array]:
        position, draw = indexed
        client = selection.idle_client(key, draw, chosen, position, num_clients)
        return selection.insert(chosen, client), client

    return jax.lax.scan(pick, selection.no_busy(size, num_clients), (order, round * size + order))[1]


def with_replacement(key: Key, round: Array, size: int, num_clients: int) -> Array:
    """int32 [size]: independent uniform draws."""
    draws = round * size + jnp.arange(size, dtype=jnp.int32)
    return jnp.floor(uniform(threefry(key, draws, 0), jnp.float64) * num_clients).astype(jnp.int32)


def distinct(drawn: Array) -> tuple[Array, Array, Array]:
    """The drawn clients in client order, whether an entry is the first of its client, how often it was drawn."""
    client = jnp.sort(drawn)
    first = jnp.concatenate([jnp.ones(1, bool), client[1:] != client[:-1]])
    return client, first, jnp.sum(client[:, None] == client[None, :], axis=1, dtype=jnp.int32)


def durations_of(
    durations: Any, prepared: Any, client: Array, run: Array, local_steps: Array, longest: Array, now: Array
) -> tuple[Array, Array]:
    """Durations of runs that start in this order at one instant `now`, and the time worked in them (hangs excluded)."""

    def draw(client: Array, run: Array, local_steps: Array, longest: Array) -> Any:
        return durations.draw(prepared, Run(client, run, local_steps, longest, now))

    before = jnp.full(client.shape, longest)
    work = jax.vmap(draw)(client, run, local_steps, before).work
    earlier = jnp.concatenate([before[:1], jax.lax.cummax(work)[:-1]])
    drawn = jax.vmap(draw)(client, run, local_steps, jnp.maximum(before, earlier))
    return drawn.work + drawn.hang, work
