"""The loop over the rows of a plan: train some segments, then take some server steps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxafl.device import buffers
from jaxafl.engine.devices import constrained
from jaxafl.engine.members import over_axis, state_axes
from jaxafl.engine.plan import Tables
from jaxafl.engine.problem import DeviceData, Hyperparameters, Program
from jaxafl.engine.state import Records, State
from jaxafl.engine.step import TracedStep
from jaxafl.engine.train import train_segment

Array = jax.Array


def advance(
    program: Program,
    members: Hyperparameters,
    device: DeviceData,
    tables: Tables,
    state: State,
    start: Array,
    stop: Array,
    first_step: Array,
) -> tuple[State, Records]:
    """Executes rows start .. stop - 1 of all members.

    A single member stops at the end of the block of rows in which it fails; several go on.

    The state is one pytree, donated from call to call. Trip counts and predicates come from the plan and are never
    batched, so `vmap` turns nothing into a select over whole buffers. In a row in which the plan of a member has no
    step, its state stays, its record is dropped, and its write to the ring goes to a scratch slot, the last.

    Args:
        program: static.
        members, device: hyperparameters and data.
        tables: the plan; with a leading member axis, if members have plans of their own.
        state: of the runs.
        start, stop: int32, rows.
        first_step: int32, the server step of the first record.

    Returns:
        The new state and the records of the steps, each [P, steps_per_call, ...].
    """
    count, shapes = len(state.failure.step), program.shapes

    def member(hyperparameters: Hyperparameters, tables: Tables, state: State) -> tuple[State, Records]:
        segments, steps, rows, origin = tables
        server_step = TracedStep(program, hyperparameters.client, hyperparameters.server, device)
        # `jit`, so that the step is traced once for the loop and for its shapes
        take = jax.jit(lambda place, number, state: server_step(buffers.read(steps, place), number, state), inline=True)

        def take_masked(number: Array, taken: Array, state: State, records: Records) -> tuple[State, Records]:
            last, scratch = len(steps.time) - 1, len(jax.tree.leaves(state.ring)[0]) - 1
            row = buffers.read(steps, jnp.minimum(number - origin, last))
            row = row._replace(write_slot=jnp.where(taken, row.write_slot, scratch))
            new, record = server_step(row, number, state)
            others = new._replace(ring=state.ring)  # the ring's write went to the scratch slot
            kept = jax.tree.map(lambda a, b: b if a is b else jnp.where(taken, a, b), others, state)
            new = kept._replace(ring=new.ring)
            where = jnp.where(taken, number - first_step, shapes.steps_per_call)
            return new, jax.tree.map(lambda leaf, value: leaf.at[where].set(value, mode="drop"), records, record)

        def row(_: Any, carry: tuple[Array, State, Records]) -> tuple[Array, State, Records]:
            index, state, records = carry
            one = buffers.read(rows, index - origin)

            def train_one(entry: Array | int, state: State) -> State:
                segment = buffers.read(segments, one.segment + entry)
                return train_segment(program, hyperparameters, device, segment, state, one.local_steps)

            def step_one(entry: Array | int, carry: tuple[State, Records]) -> tuple[State, Records]:
                number = one.step + entry
                if one.steps is not None:
                    return take_masked(number, entry < one.steps, *carry)
                state, record = take(number - origin, number, carry[0])
                return state, buffers.write(carry[1], number - first_step, record)

            state = _repeat(shapes.segments_per_row or one.segments, train_one, state)
            return index + 1, *_repeat(shapes.steps_per_row or one.most_steps, step_one, (state, records))

        def proceed(carry: tuple[Array, State, Records]) -> Array:
            # of several members, which would batch the predicate, failed ones go on
            return (carry[0] < stop) & (carry[1].failure.step < 0) if count == 1 else carry[0] < stop

        none = jnp.int32(0)
        records = buffers.allocate(jax.eval_shape(take, none, none, state)[1], shapes.steps_per_call)
        block = functools.partial(_repeat, shapes.rows_per_check, row)
        return jax.lax.while_loop(proceed, block, (start, state, records))[1:]

    own_plans = tables.axes
    state_in = state_axes(state, shared=own_plans is None)
    every = over_axis(member, count, (0, own_plans, state_in), (state_in, 0))
    state, records = every(members, tables, state)
    return state if program.mesh is None else constrained(program.mesh, state), records


def _repeat(count: Any, body: Callable[[Any, Any], Any], carry: Any) -> Any:
    """Executes `body(index, carry)` `count` times; once, if it is 1 or None, without a loop."""
    once = count is None or (isinstance(count, int) and count == 1)
    return body(0, carry) if once else jax.lax.fori_loop(0, count, body, carry)
