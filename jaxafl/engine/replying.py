"""Runs whose server replies: its replies change the work of later runs, so a call of the program makes one server step.

Several members, each with a clock of its own, take a server step each per call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.clock import Schedule
from jaxafl.clock.fleet import ServerStep
from jaxafl.device import compiled, on_device
from jaxafl.engine.execution import Execution
from jaxafl.engine.places import Places, tables_for
from jaxafl.engine.plan import LoopRows, Tables
from jaxafl.engine.planned import chunk_of, power_of_two
from jaxafl.engine.problem import Problem, Program, Shapes, Speed
from jaxafl.engine.program import advance
from jaxafl.engine.state import Records, State

Reached = Callable[[ServerStep, int], tuple[int, str]]
"""(server step, arrivals before it) -> 1 if the step is within the limits, else 0; and the limit that it reaches."""
_AHEAD = 32  # most lanes that train runs in flight ahead of their arrival, on an accelerator


class Replying(Execution):
    """Runs whose server replies, in one program.

    Attributes:
        places: of each run.
    """

    def __init__(self, problems: Sequence[Problem], speed: Speed, limits: Reached | None = None) -> None:
        """
        Args:
            problems: one per run, with other numbers and seeds only.
            speed: execution options.
            limits: of a single run; `None` for none.
        """
        first, clients, self.limits = problems[0], problems[0].data.num_clients, limits
        fixed, flying = first.clock.arrivals(clients), first.clock.in_flight(clients)
        arrivals, devices = fixed or 1, 1 if first.mesh is None else first.mesh.size
        # an update that is trained ahead does not know yet when it arrives, nor what its client remembers then
        ahead = jax.default_backend() != "cpu" and not first.client.remembers and first.client.rate_schedule is None
        lanes = speed.lanes or (max(arrivals, min(flying, _AHEAD)) if ahead else arrivals)
        lanes = -(-lanes // devices) * devices
        chunk = chunk_of(lanes, speed.chunk, first, len(problems))
        self.scratch = int(len(problems) > 1)  # a slot of the ring for the writes of members that have ended
        shapes = Shapes(
            lanes=lanes,
            chunk=lanes if devices > 1 or self.scratch else chunk,
            ring=power_of_two(flying + 2),
            store=power_of_two(arrivals + (flying if ahead else 0)),
            arrivals=arrivals,
            mask=fixed is None,
            slots=True,
            base=first.reads_base,
            per_lane=True,
            steady=lanes == 1 and not self.scratch,
            steps_per_row=1,
        )
        super().__init__(problems, shapes, speed.deterministic, shared=False)
        self.places = [Places(problem, lanes, ahead) for problem in problems]
        self.build(shapes)

    def advance(self, start: int, stop: int) -> Records:
        outputs: list[np.ndarray] = []
        for number in range(start, stop):
            if not self._fill(number):
                break
            self.state, output, _ = self.compiled(self.constant, self.vector.copy(), self.state)
            outputs.append(np.asarray(output))
            found, failed = self.packing_out.views(outputs[-1])
            self._hear(found.replies, failed)
            if self.ended is not None:
                break
        records, _ = self.packing_out.views(np.array(outputs, np.uint32).reshape(-1, self.packing_out.size))
        # from [steps, P, 1, ...] to [P, steps, ...]
        return jax.tree.map(lambda leaf: np.moveaxis(leaf[:, :, 0], 0, 1).copy(), records)

    def resume(self, steps: int, records: Sequence[Records]) -> None:
        known = self.joined(records).replies
        failed = np.array([-1 if failure is None else failure[0] for failure in self.failures()])
        for number in range(steps):
            self._fill(number)
            self._hear(known[:, number : number + 1], np.where(failed <= number, failed, -1))

    def schedule(self, index: int) -> Schedule:
        return self.places[index].schedule()

    def build(self, shapes: Shapes) -> None:
        self.enlarge(shapes)
        self.program, count = self.program._replace(shapes=shapes), len(self.problems)
        one, each = np.zeros(1, np.int32), np.zeros((count, 1), np.int32)
        several = LoopRows(each, one, each, each, None, one)  # those that have ended take no step
        rows = several if count > 1 else LoopRows(each, one, each)
        tables = Tables(*tables_for(shapes, count), rows, np.int32(0))
        packing = Packing.of(tables)
        self.vector = np.zeros(packing.size, np.uint32)
        self.tables = packing.views(self.vector)
        both = self.tables.segments, self.tables.steps
        self.tables_of_runs = [jax.tree.map(lambda leaf, at=at: leaf[at], both) for at in range(count)]
        leaves, structure = jax.tree.flatten((self.members, self.problems[0].device))
        self.constant = tuple(leaves)  # flat, since a call would flatten the parts of the simulation again each time
        static, arguments = (self.program, packing, structure), (self.constant, on_device(self.vector), self.state)
        how: dict[str, Any] = dict(donate=(2,), deterministic=self.deterministic)
        self.compiled, seconds = compiled(one_step, static, arguments, **how)
        results = self.compiled.out_tree
        _, _, self.packing_out = jax.tree.unflatten(results, [None] * results.num_leaves)
        self.compile_seconds += seconds

    def _fill(self, number: int) -> bool:
        """Writes the tables of a server step; returns False if there is none."""
        planned = {index: places.next() for index, places in enumerate(self.places) if places.going}
        if self.limits is not None and planned:
            places = self.places[0]
            within, why = self.limits(planned[0].step, places.taken - len(planned[0].step.runs))
            self.ended = (number + within, why) if why else None
            if not within:
                places.steps.pop()  # it will not be made
                return False
        shapes = self.shapes
        for index, one in planned.items():
            shapes = self.places[index].room(one, shapes, self.scratch)
        if shapes != self.shapes:
            self.build(shapes)
        self.vector[:] = 0
        rows = self.tables.rows
        self.tables.origin[...] = number
        rows.step[...] = number
        rows.segments[0] = max((len(one.segments) for one in planned.values()), default=0)
        for index, one in planned.items():
            if len(self.places) > 1:
                rows.steps[index] = 1
                longest = max((each.run.local_steps for segment in one.segments for each in segment), default=0)
                rows.local_steps[0] = max(rows.local_steps[0], longest)
            self.places[index].write(one, *self.tables_of_runs[index])
        return bool(planned)

    def _hear(self, replies: np.ndarray, failed: np.ndarray) -> None:
        """Takes the replies [P, 1, A] of a server step, and ends the runs that have failed."""
        for index, places in enumerate(self.places):
            places.going &= bool(failed[index] < 0)
            if places.going:
                places.answered(replies[index, 0])


def one_step(
    program: Program, packing: Packing, structure: Any, constant: Any, vector: Any, state: State
) -> tuple[State, Any, Packing]:
    """Makes one server step of every member; see `jaxafl.engine.program.advance`.

    Args:
        program, packing, structure: static; the program, the places of the tables in the vector, and the structure of
            hyperparameters and data.
        constant: leaves of hyperparameters and data.
        vector: the tables.
        state: of the runs.

    Returns:
        The new state, the vector of the records and the steps of failures, and the places in it.
    """
    members, device = jax.tree.unflatten(structure, constant)
    tables = packing.unpack(vector)
    number = tables.origin
    state, records = advance(program, members, device, tables, state, number, number + 1, number)
    found = records, state.failure.step
    places = Packing.of(found)
    return state, places.pack(found), places


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Packing:
    """Places of the leaves of a tree of small arrays in a vector of words of 32 bits.

    A call of a program then moves one array between host and device instead of many. It is static.

    Attributes:
        structure: of the tree.
        record: type of the vector as a record of NumPy, with a field for each leaf; a bool is an int32.
        types: types of the leaves.
    """

    structure: Any
    record: np.dtype[Any]
    types: tuple[np.dtype[Any], ...]

    @classmethod
    def of(cls, tree: Any) -> Packing:
        """Returns the packing of a tree of arrays or shapes."""
        leaves, structure = jax.tree.flatten(tree)
        types = tuple(np.dtype(leaf.dtype) for leaf in leaves)
        fields = [(str(place), _stored(leaf.dtype), leaf.shape) for place, leaf in enumerate(leaves)]
        return cls(structure, np.dtype(fields), types)

    @property
    def size(self) -> int:
        """Number of words."""
        return self.record.itemsize // 4

    def views(self, vectors: np.ndarray) -> Any:
        """Returns the tree whose leaves are views of vectors [..., n], each [..., *shape]; bools are int32."""
        records = vectors.view(self.record)[..., 0]
        return jax.tree.unflatten(self.structure, [records[name] for name in self.record.names or ()])

    def pack(self, tree: Any) -> jax.Array:
        """Returns the vector of a traced tree."""
        leaves = (leaf.astype(_stored(leaf.dtype)) for leaf in jax.tree.leaves(tree))
        return jnp.concatenate([jax.lax.bitcast_convert_type(leaf, jnp.uint32).ravel() for leaf in leaves])

    def unpack(self, vector: jax.Array) -> Any:
        """Returns the traced tree of a vector."""
        found = []
        for name, kind in zip(self.record.names or (), self.types, strict=True):
            field, begin = self.record[name], self.record.fields[name][1]  # type: ignore[index]
            words = vector[begin // 4 : (begin + field.itemsize) // 4]
            wide = (2,) if field.base.itemsize == 8 else ()
            leaf = jax.lax.bitcast_convert_type(words.reshape(*field.shape, *wide), field.base)
            found.append(leaf.astype(kind))
        return jax.tree.unflatten(self.structure, found)


def _stored(kind: Any) -> np.dtype[Any]:
    """Returns the type that stores a leaf: one of 32 or 64 bits."""
    if np.dtype(kind).itemsize >= 4:
        return np.dtype(kind)
    return np.dtype(np.float32 if jnp.issubdtype(kind, jnp.floating) else np.int32)
