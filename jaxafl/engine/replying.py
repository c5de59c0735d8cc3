"""Runs whose server replies with the number of local steps of a client's next run.

A client may start before the reply to it is known. Its run is then in flight with the duration of one local step, the
shortest that is possible. The clock needs the reply when this run would be the next one to end, and a call of the
program then makes the server steps up to that reply. Several members, each with a clock of its own, make equally many
server steps per call.
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
from jaxafl.engine.places import Places, grown
from jaxafl.engine.plan import LoopRows
from jaxafl.engine.planner import make_plan
from jaxafl.engine.problem import Problem, Program, Shapes, Speed
from jaxafl.engine.program import advance
from jaxafl.engine.sizes import chunk_of, power_of_two, tables_of
from jaxafl.engine.state import Records, State
from jaxafl.options import check_whole

Reached = Callable[[ServerStep, int], tuple[int, str]]
"""(server step, arrivals before it) -> 1 if the step is within the limits, else 0; and the limit that it reaches."""
_WINDOW = 16  # most server steps of a call
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
        most = max(arrivals, min(flying, _AHEAD)) if ahead else arrivals
        lanes = check_whole("run", "lanes", most if speed.lanes is None else speed.lanes)
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
            picks_rows=True,
            base=first.reads_base,
            per_lane=True,
            rows=_WINDOW,
            segments=_WINDOW,
            steps_per_call=_WINDOW,
            steady=lanes == 1 and not self.scratch,
            steps_per_row=1,
        )
        super().__init__(problems, shapes, speed.deterministic, shared=False)
        self.places = [Places(problem, lanes, ahead, self._hear) for problem in problems]
        self.empty = make_plan(self.places[0].known, lanes=lanes, keep_base=first.reads_base)
        self.build(shapes)

    def advance(self, start: int, stop: int) -> Records:
        nothing, _ = self.packing_out.views(np.zeros(self.packing_out.size, np.uint32))
        self.pieces = [jax.tree.map(lambda leaf: leaf[:, :0], nothing)]
        self._plan(start, stop, self._execute)
        return self.joined(self.pieces)

    def resume(self, steps: int, records: Sequence[Records]) -> None:
        known = self.joined(records).replies
        failed = np.array([steps if failure is None else failure[0] for failure in self.failures()])
        self._plan(0, steps, lambda begin, end: (known[:, begin:end], failed < end))

    def schedules_of(self, index: int) -> list[Schedule]:
        return [self.places[index].schedule()]

    def build(self, shapes: Shapes) -> None:
        self.enlarge(shapes)
        self.program, count = self.program._replace(shapes=shapes), len(self.problems)
        one, each = np.zeros(_WINDOW, np.int32), np.zeros((count, _WINDOW), np.int32)
        several = LoopRows(each, one, each, each, None, one)  # those that have ended take no step
        rows = several if count > 1 else LoopRows(each, one, each)
        one_member = tables_of(self.empty, shapes)
        tables = jax.tree.map(lambda leaf: np.repeat(leaf[None], count, axis=0), one_member)
        packing = Packing.of((tables._replace(rows=rows, origin=np.int32(0)), np.int32(0)))
        self.vector = np.zeros(packing.size, np.uint32)
        self.tables, self.end = packing.views(self.vector)
        both = self.tables.segments, self.tables.steps
        self.tables_of_runs = [jax.tree.map(lambda leaf, at=at: leaf[at], both) for at in range(count)]
        leaves, structure = jax.tree.flatten((self.hyperparameters, self.problems[0].device))
        self.constant = tuple(leaves)  # flat, since a call would flatten the parts of the simulation again each time
        static, arguments = (self.program, packing, structure), (self.constant, on_device(self.vector), self.state)
        how: dict[str, Any] = dict(donate=(2,), deterministic=self.deterministic)
        self.compiled, seconds = compiled(several_steps, static, arguments, **how)
        results = self.compiled.out_tree
        _, _, self.packing_out = jax.tree.unflatten(results, [None] * results.num_leaves)  # it is static
        self.compile_seconds += seconds

    def _plan(self, start: int, stop: int, execute: Callable[[int, int], tuple[np.ndarray, np.ndarray]]) -> None:
        """Brings the clocks and the plans to server step `stop`, from `start`.

        Whenever a reply is missing, or a call is full, `execute(begin, end)` makes the planned steps, or on resume
        reads their records. It returns their replies [P, steps, A] and which runs have failed. A clock that needs a
        missing reply calls `_hear` from within `next`: `begin` is the first planned step that is not made yet.
        """
        self.begin, self.execute = start, execute
        for number in range(start, stop):
            if number - self.begin == _WINDOW:
                self._hear()
            for places in self.places:
                if places.going:
                    places.next()
            places = self.places[0]
            if self.limits is not None and places.going:
                step = places.queue[-1].step
                within, why = self.limits(step, places.taken - len(step.runs))
                self.ended = (number + within, why) if why else None
                if not within:  # it will not be made
                    del places.queue[-1], places.steps[-1]
            if self.ended is not None or not any(places.going for places in self.places):
                break
        self._hear()

    def _hear(self) -> None:
        """Makes the server steps that all members have planned, and takes the replies."""
        if count := min((len(places.queue) for places in self.places if places.going), default=0):
            replies, failed = self.execute(self.begin, self.begin + count)
            self.begin += count
            for places, reply, ends in zip(self.places, replies, failed, strict=True):
                if places.going:
                    places.answered(reply, ends)

    def _execute(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Makes planned server steps by a call of the program."""
        going = [index for index, places in enumerate(self.places) if places.going]
        shapes, first = self.shapes, 0
        for index in going:
            shapes = self.places[index].room(shapes, end - begin, self.scratch)
        queues = zip(*(self.places[index].queue[: end - begin] for index in going), strict=True)
        most = [max(len(one.segments) for one in each) for each in queues]
        shapes = shapes._replace(segments=grown(shapes.segments, sum(most)))
        if shapes != self.shapes:
            self.build(shapes)
        self.vector[:] = 0
        rows = self.tables.rows
        self.tables.origin[...], self.end[...] = begin, end
        for at, number in enumerate(most):
            rows.step[:, at], rows.segment[:, at], rows.segments[at] = begin + at, first, number
            for index in going:
                self.places[index].write(at, first, *self.tables_of_runs[index])
            if len(self.places) > 1:
                rows.steps[going, at] = 1
                rows.local_steps[at] = self.tables.segments.active[:, first : first + number].max(initial=0)
            first += number
        self.state, output, _ = self.compiled(self.constant, self.vector.copy(), self.state)
        found, failed = self.packing_out.views(np.asarray(output))
        count = end - begin
        if len(self.places) == 1 and failed[0] >= 0:
            count, self.ended = int(failed[0]) + 1 - begin, None  # it fails before it reaches a limit
        self.pieces.append(jax.tree.map(lambda leaf: leaf[:, :count].copy(), found))
        return found.replies[:, : end - begin], failed >= 0


def several_steps(
    program: Program, packing: Packing, structure: Any, constant: Any, vector: Any, state: State
) -> tuple[State, Any, Packing]:
    """Makes server steps of every member; see `jaxafl.engine.program.advance`.

    Args:
        program, packing, structure: static; the program, the places of the tables in the vector, and the structure of
            hyperparameters and data.
        constant: leaves of hyperparameters and data.
        vector: the tables and the server step after the last one.
        state: of the runs.

    Returns:
        The new state, the vector of the records and the steps of failures, and the places in it.
    """
    members, device = jax.tree.unflatten(structure, constant)
    tables, end = packing.unpack(vector)
    state, records = advance(program, members, device, tables, state, tables.origin, end, tables.origin)
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
        leaves = jax.tree.leaves(tree)
        return jnp.concatenate([leaf.astype(_stored(leaf.dtype)).ravel().view(jnp.uint32) for leaf in leaves])

    def unpack(self, vector: jax.Array) -> Any:
        """Returns the traced tree of a vector."""
        found = []
        for name, kind in zip(self.record.names or (), self.types, strict=True):
            field, begin = self.record[name], self.record.fields[name][1]  # type: ignore[index]
            words = vector[begin // 4 : (begin + field.itemsize) // 4]
            found.append(words.view(field.base).reshape(field.shape).astype(kind))
        return jax.tree.unflatten(self.structure, found)


def _stored(kind: Any) -> np.dtype[Any]:
    """Returns the type that stores a leaf: one of 32 or 64 bits."""
    if np.dtype(kind).itemsize >= 4:
        return np.dtype(kind)
    return np.dtype(np.float32 if jnp.issubdtype(kind, jnp.floating) else np.int32)
