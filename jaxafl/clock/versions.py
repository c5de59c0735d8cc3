"""Advance of a clock to its next version, through the steps that make none."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxafl.clock.contract import Clock, Fault, RunCounts, ServerStep, Workload
from jaxafl.clock.ragged import per_step, without_step
from jaxafl.clock.rules import check_next, held_by
from jaxafl.device.user_code import traced_method

Array = jax.Array


def next_version(clock: Clock, state: Any, workload: Workload) -> tuple[Any, ServerStep]:
    """Advances a clock to the next step that makes a version, and returns it with all arrivals since the last one.

    Raises:
        ValueError: `next` returns no valid state or server step.
    """
    size = clock.capacity(workload.num_clients)

    def once(state: Any) -> tuple[Any, ServerStep]:
        with traced_method(f"the clock {clock.name}", "next", "a key that `init` keeps in the state"):
            result = clock.next(state, workload)
        check_next(clock, workload.num_clients, state, result)
        return result[0], result[1].complete()

    after, step = once(state)
    if step.advances is None:
        return after, step

    def gather(carry: tuple[Any, ServerStep, Array, Array]) -> tuple[Any, ServerStep, Array, Array]:
        before, gathered, count, _ = carry
        state, step = once(before)
        places = jnp.where(step.mask, count + jnp.cumsum(step.mask, dtype=jnp.int32) - 1, size)
        pair = without_step(gathered), without_step(step)
        gathered = jax.tree.map(lambda old, new: old.at[places].set(new, mode="drop"), *pair)
        count += jnp.sum(step.mask, dtype=jnp.int32)
        exceeds = count > size  # `check_steps` raises
        advances = jnp.asarray(step.advances) & ~exceeds
        ends = advances | exceeds | (state.starts.fault.code > 0)  # after a fault there might never be a version
        return state, gathered._replace(**per_step(step) | {"advances": advances}), count, ends

    def blank(column: Array) -> Array:
        return jnp.zeros((size, *column.shape[1:]), column.dtype)

    none = jax.tree.map(blank, without_step(step))._replace(**per_step(step) | {"advances": jnp.bool_(False)})
    carry = (state, none, jnp.int32(0), jnp.bool_(False))
    return jax.lax.while_loop(lambda carry: ~carry[3], gather, carry)[:2]


def rows_of_versions(
    size: int, clock: Clock, workload: Workload, state: Any, steps: Array
) -> tuple[Any, ServerStep, RunCounts, Array, Fault, list[Array]]:
    """Computes up to `size` rows of arrivals of up to `steps` server steps, and returns their number, too."""

    def one(state: Any) -> tuple[Any, tuple[ServerStep, RunCounts]]:
        state, step = clock.next(state, workload)
        return state, (step.complete(), state.starts.counts)

    def advance(carry: Any) -> Any:
        state, rows, number, done = carry
        state, row = one(state)
        rows = jax.tree.map(lambda table, entry: table.at[number].set(entry), rows, row)
        return state, rows, number + 1, done + row[0].advances

    def goes_on(carry: Any) -> Array:
        state, _, number, done = carry
        return (number < size) & (done < steps) & (state.starts.fault.code == 0)

    blank = jax.tree.map(lambda row: jnp.zeros((size, *row.shape), row.dtype), jax.eval_shape(one, state)[1])
    begin = (state, blank, jnp.int32(0), jnp.int32(0))
    state, rows, number, _ = jax.lax.while_loop(goes_on, advance, begin)
    return state, *rows, number, state.starts.fault, held_by(clock, state)
