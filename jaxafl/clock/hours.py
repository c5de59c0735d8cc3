"""Clients that a clock draws only within their hours."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxafl.clock.durations.fleet import available
from jaxafl.clock.durations.runs import Run, prepared_of, stream_keys
from jaxafl.device.keys import Key, Purpose, purpose_key, threefry, uniform
from jaxafl.options import UserError

Array = jax.Array
_ROUNDING = 1e-9  # of a day and of the time: without it a client that time has advanced to might still be a bit early


def check_hours(clock: Any, num_clients: int, **others: bool) -> None:
    """Raises unless `clock.hours` is `None` or an `available`, and goes with the other options of the clock.

    Args:
        clock: the clock.
        num_clients: N.
        **others: option -> True if it is given and contradicts hours.
    """
    hours = clock.hours
    if hours is None:
        return
    if not isinstance(hours, available):
        raise UserError(
            f"{clock.name}: hours={hours!r:.100} is not a client's hours; expected jaxafl.clock.available(begin, end). "
            "Other waits are terms of durations"
        )
    hours.check(num_clients)
    for name in (name for name, given in others.items() if given):
        raise UserError(f"{clock.name}: {name} chooses clients, too, and cannot go with hours; leave one of them out")


def prepare_hours(hours: Any, key: Key, num_clients: int) -> Any:
    """Returns the begin, length and zone of each client's hours, or `None`; `key` is that of the schedule."""
    keys = stream_keys(purpose_key(key, Purpose.HOURS), available)
    return None if hours is None else prepared_of(hours, keys, num_clients)


def within_hours(hours: Any, prepared: Any, now: Array, idle: Array) -> tuple[Array, Array]:
    """Returns the idle clients within their hours, bool [N], and the first time from `now` on at which there is one.

    Args:
        hours: an `available`.
        prepared: result of `prepare_hours`.
        now: float64, simulated seconds.
        idle: bool [N], True for idle clients. If there are none, the time is infinite.
    """
    clients = jnp.arange(len(idle), dtype=jnp.int32)
    none = jnp.zeros_like(clients)
    wait = hours.draw(prepared, Run(clients, none, none, now, now)).hang
    awake = idle & (wait <= _ROUNDING * (now + hours.day))
    return awake, jnp.where(jnp.any(awake), now, now + jnp.min(jnp.where(idle, wait, jnp.inf)))


def nth(mask: Array, rank: Array) -> Array:
    """Returns the index of the true entry of rank `rank`, from 0 on; `rank` is a scalar or an array."""
    return jnp.searchsorted(jnp.cumsum(mask, dtype=jnp.int32), rank, side="right").astype(jnp.int32)


def draw_some(key: Key, version: Array, mask: Array, size: int) -> tuple[Array, Array]:
    """Draws `size` true entries without replacement, or all if there are fewer.

    Args:
        key: key of the stream of starts.
        version: int32, index of the server step.
        mask: bool [N].
        size: number of entries.

    Returns:
        Their indices in increasing order, int32 [size], and a mask of them, since there may be padding at the end.
    """
    clients = jnp.arange(len(mask), dtype=jnp.int32)
    priority = uniform(threefry(key, version, clients), jnp.float64)
    order = jnp.argsort(jnp.where(mask, priority, 2.0))[:size].astype(jnp.int32)
    drawn = jnp.sort(jnp.where(mask[order], order, len(mask)))
    return jnp.minimum(drawn, len(mask) - 1), drawn < len(mask)
