"""Several runs as one program: the members of a sweep.

Members that share a plan (they differ in server or client numbers) are advanced by one `vmap`: the plan and the
mini-batches stay unbatched. Members with plans of their own (other seeds, other clock numbers) advance in lockstep, row
by row: in a row every member trains one segment and takes the server steps that it can, the loop bounds are those of
the slowest member, known from the plans, and whatever a member does not take part in is a dropped write. (A plain
`vmap` would batch every predicate: it trains at every event and copies the ring in every iteration.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl import history
from jaxafl.execute import advance, evaluate, server_step
from jaxafl.local import Lane
from jaxafl.plan import Plan, Segments, Steps
from jaxafl.state import Config, Dataset, Program, State, Version
from jaxafl.train import train

Array = jax.Array
_SHARED = ("key", "shuffle_key", "client", "run", "step", "staleness", "duration")


class Rows(NamedTuple):
    """The rows of a lockstep: R rows of P members. int32."""

    segment: Any  # [R, P]: the segment that a member trains (an empty one if it has none left in its chunk)
    first: Any  # [R, P]: the first server step that it takes after that
    taken: Any  # [R, P]: how many it takes
    local_steps: Any  # [R]: the most local steps of a lane of any member
    most: Any  # [R]: the most server steps of any member
    chunk_start: Any  # [C + 1]: rows before each chunk of server steps


def advance_shared(
    program: Program,
    length: int,
    varies: tuple[bool, ...],
    config: Config,
    dataset: Dataset,
    segments: Segments,
    steps: Steps,
    state: State,
    start: Array,
    stop: Array,
) -> tuple[State, dict[str, Array]]:
    """`execute.advance` for members that share a plan.

    Args:
        program, length, dataset, segments, steps, start, stop: as there.
        varies: for every leaf of the configuration, whether it has one entry per member.
        config: the numbers of all members.
        state: with a leading member axis where `shared_axes` says so.
    """
    own = shared_axes(state)
    axes = jax.tree.unflatten(jax.tree.structure(config), [0 if own else None for own in varies])

    def member(config: Config, state: State) -> tuple[State, dict[str, Array]]:
        return advance(program, length, config, dataset, segments, steps, state, start, stop)

    return jax.vmap(member, in_axes=(axes, own), out_axes=(own, 0))(config, state)


def shared_axes(state: State) -> Any:
    """Which parts of the state differ between members that share a plan (`vmap`'s axes).

    Members make the same local steps of the same runs, unless runs stop early: each member then by its own losses.
    """
    shared = _SHARED if state.lanes.stopping is None else ()
    lanes: Any = dict.fromkeys(Lane._fields, 0) | dict.fromkeys(shared)
    axes: Any = dict.fromkeys(State._fields, 0) | {"lanes": Lane(**lanes), "batch_key": None}
    return State(**axes)


def advance_lockstep(
    program: Program,
    length: int,
    config: Config,
    dataset: Dataset,
    segments: Segments,
    steps: Steps,
    rows: Rows,
    state: State,
    chunk: Array,
    start: Array,
) -> tuple[State, dict[str, Array]]:
    """One chunk of server steps of members with plans of their own.

    Args:
        program, length, dataset: as in `execute.advance`; the last ring slot is scratch, for the writes that are
            dropped.
        config, segments, steps, state: with a leading member axis.
        rows: the rows of all chunks.
        chunk: int32, which chunk.
        start: int32, its first server step.
    """
    total = steps.time.shape[1]
    last = total - 1

    def member_step(
        config: Config, steps: Steps, first: Array, count: Array, index: Array, state: State, records: Any
    ) -> tuple[State, Any]:
        number = jnp.minimum(first + index, last)
        taken = index < count
        step = history.read(steps, number)
        step = step._replace(write_slot=jnp.where(taken, step.write_slot, program.slots - 1))
        new, record = server_step(program, config, dataset, step, number, state)
        kept = jax.tree.map(
            lambda a, b: jnp.where(taken, a, b),
            (new.model, new.server, new.failure, new.average),
            (state.model, state.server, state.failure, state.average),
        )
        where = jnp.where(taken, number - start, length)
        records = jax.tree.map(lambda leaf, value: leaf.at[where].set(value, mode="drop"), records, record)
        return new._replace(model=kept[0], server=kept[1], failure=kept[2], average=kept[3]), records

    def row(index: Array, carry: tuple[State, Any]) -> tuple[State, Any]:
        state, records = carry
        bound = rows.local_steps[index]

        def member_train(config: Config, segments: Segments, which: Array, state: State) -> State:
            return train(program, config, dataset, history.read(segments, which), state, bound)

        state = jax.vmap(member_train)(config, segments, rows.segment[index], state)

        first, count = rows.first[index], rows.taken[index]

        def steps_of_row(place: Array, carry: tuple[State, Any]) -> tuple[State, Any]:
            return jax.vmap(member_step, in_axes=(0, 0, 0, 0, None, 0, 0))(config, steps, first, count, place, *carry)

        return jax.lax.fori_loop(0, rows.most[index], steps_of_row, (state, records))

    shapes = jax.eval_shape(
        jax.vmap(lambda c, p, s: server_step(program, c, dataset, history.read(p, jnp.int32(0)), jnp.int32(0), s)[1]),
        config, steps, state,
    )  # fmt: skip
    records = jax.tree.map(lambda leaf: jnp.zeros((leaf.shape[0], length, *leaf.shape[1:]), leaf.dtype), shapes)
    return jax.lax.fori_loop(rows.chunk_start[chunk], rows.chunk_start[chunk + 1], row, (state, records))


def evaluate_members(
    program: Program, batch_size: int, frozen: Any, x: Any, y: Array, model: Version
) -> dict[str, Array]:
    """`execute.evaluate` of every member, one after another on a CPU."""

    def member(model: Version) -> dict[str, Array]:
        return evaluate(program, batch_size, frozen, x, y, model)

    return jax.lax.map(member, model) if program.sliced else jax.vmap(member)(model)


def member(tree: Any, index: int) -> Any:
    """One member's part of a tree with a leading member axis."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


def make_rows(plans: list[Plan], every: int) -> Rows:
    """The rows of members with plans of their own; all members end a chunk of `every` server steps together."""
    total = len(plans[0].steps.time)
    empty = [len(plan.segments.active) for plan in plans]  # one past a member's last segment: padding, no work
    table: list[list[tuple[int, int, int]]] = []
    before = [0]
    for start in range(0, total, every):
        stop = min(start + every, total)
        columns = [_member_rows(plan.steps.segments_before, start, stop, empty[m]) for m, plan in enumerate(plans)]
        longest = max(map(len, columns))
        for index in range(longest):
            table.append(
                [column[index] if index < len(column) else (empty[m], 0, 0) for m, column in enumerate(columns)]
            )
        before.append(before[-1] + longest)
    entries = np.asarray(table, np.int32).reshape(len(table), len(plans), 3)
    segment, first, count = entries[..., 0], entries[..., 1], entries[..., 2]
    widest = np.stack(
        [np.append(plan.segments.active.max(axis=1), 0)[segment[:, m]] for m, plan in enumerate(plans)], axis=1
    )
    return Rows(
        segment, first, count, widest.max(axis=1).astype(np.int32), count.max(axis=1), np.asarray(before, np.int32)
    )


def stack_plans(plans: list[Plan]) -> tuple[Segments, Steps]:
    """Plans of their own as arrays with a leading member axis, segments padded by at least one empty one."""
    longest = max(len(plan.segments.active) for plan in plans) + 1
    padded = 1 << (longest - 1).bit_length()
    segments = [
        Segments(*(np.pad(leaf, [(0, padded - len(leaf))] + [(0, 0)] * (leaf.ndim - 1)) for leaf in plan.segments))
        for plan in plans
    ]
    return (
        Segments(*(jnp.asarray(np.stack(leaves)) for leaves in zip(*segments, strict=True))),
        Steps(*(jnp.asarray(np.stack(leaves)) for leaves in zip(*(plan.steps for plan in plans), strict=True))),
    )


def _member_rows(segments_before: np.ndarray, start: int, stop: int, empty: int) -> list[tuple[int, int, int]]:
    """(segment, first step, steps) rows of one member for the server steps start .. stop - 1."""
    rows: list[tuple[int, int, int]] = []
    done = int(segments_before[start - 1]) if start else 0
    for step in range(start, stop):
        while done < segments_before[step]:
            rows.append((done, step, 0))
            done += 1
        segment, first, count = rows.pop() if rows else (empty, step, 0)
        rows.append((segment, first, count + 1))
    return rows
