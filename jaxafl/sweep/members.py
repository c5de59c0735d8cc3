"""The members of a sweep, and their division into batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxafl.callbacks.limits import Limited
from jaxafl.clock import Schedule
from jaxafl.device import on_cpu
from jaxafl.engine.private import noise_of
from jaxafl.engine.state import example_batch
from jaxafl.options import check_whole, user_errors
from jaxafl.simulation import Simulation
from jaxafl.sweep.assemble import Dimension
from jaxafl.sweep.axes import Axis, is_static_path, replace_at

# Most parameters of a model whose members are batched on a CPU. Larger models train faster one after another.
_MOST_BATCHED = 50_000
# Members of a batch on a CPU, more if there would be over eight batches, and up to half of all as long as they have few
# parameters together. It must not depend on the number of cores: batched products round differently by their number.
_BATCH = 4
_BATCHES = 8
_FEW = 10_000


@dataclasses.dataclass(eq=False)
class Member:
    """A combination of values: position in the grid, axis or path -> label, simulation and seed."""

    position: tuple[int, ...]
    labels: dict[str, Any]
    simulation: Simulation
    seed: int

    @property
    def where(self) -> str:
        """The labels as a text, for messages."""
        return f"in the sweep at {', '.join(f'{name}={label}' for name, label in self.labels.items())}"


def members_of(simulation: Simulation, axes: Sequence[Axis], dims: Sequence[Dimension], seed: int) -> list[Member]:
    """Returns all combinations of values, checked."""
    members = []
    for position in np.ndindex(*(len(axis.rows) for axis in axes)):
        variant = simulation
        member_seed = seed
        labels: dict[str, Any] = {}
        for axis, dim, at in zip(axes, dims, position, strict=True):
            labels |= {path: column[at] for path, column in (dim.coords or {dim.name: dim.labels}).items()}
            for path, value in zip(axis.paths, axis.rows[at], strict=True):
                if path == "seed":
                    member_seed = value
                else:
                    variant = value if path == "simulation" else replace_at(variant, path, value)
        member_seed = check_whole("sweep", "seed", member_seed, least=0, most=2**64 - 1)
        member = Member(position, labels, variant, member_seed)
        with user_errors(member.where):
            variant.check()
        members.append(member)
    return members


class Scheduled:
    """The schedules of members. Members with the same program and timing share one object."""

    def __init__(
        self, members: Sequence[Member], axes: Sequence[Axis], server_steps: int | None, until: Mapping[str, float]
    ) -> None:
        """
        Args:
            members, axes: members and axes of the sweep.
            server_steps: T, if given.
            until: limits of time, updates, bytes or ε.
        """
        self.members = members
        self.server_steps = server_steps
        self.until = until
        static = [_programs(axis, members[0].simulation) for axis in axes]
        self.shared = []
        for member in members:
            along = list(zip(axes, static, member.position, strict=True))
            program = *(values[at] for _, values, at in along), *_form(member)
            noise = str(noise_of(member.simulation.client, member.simulation.server)) if "epsilon" in until else ""
            self.shared.append((program, (noise, *(at for axis, _, at in along if axis.changes_schedule))))
        self.computed: dict[Any, Schedule] = {}
        self.known: dict[Any, Limited] = {}

    def limited(self, place: int) -> Limited:
        """Returns the length and the limits of a member."""
        member = self.members[place]
        key = self.shared[place]
        if key not in self.known:
            with user_errors(member.where):
                self.known[key] = Limited.of(
                    "sweep", member.simulation, self.server_steps, self.until or None, member.seed
                )
        return self.known[key]

    def of(self, place: int) -> Schedule | None:
        """Returns the schedule of a member; `None` if it depends on the training."""
        member = self.members[place]
        key = self.shared[place]
        if member.simulation.clock_sees_training:
            return None
        if key not in self.computed:
            with user_errors(member.where):
                self.computed[key] = member.simulation.compute_schedule(self.limited(place).server_steps, member.seed)
        return self.computed[key]

    def bytes(self, places: Iterable[int]) -> Iterator[int]:
        """Yields, for one member of each program, the bytes of its kept versions and of its rows per client."""
        for place in {self.shared[place][0]: place for place in places}.values():
            one = self.members[place].simulation
            schedule = self.of(place)
            rows = one.data.num_clients if one.server.needs.client_rows or one.server.needs.client_models else 0
            rows += schedule.ring_slots if schedule else one.clock.in_flight(one.data.num_clients)
            yield 4 * rows * _num_parameters(one)

    def batches(self, most: int | None, devices: int, processes: int = 1) -> list[list[int]]:
        """Returns the indices of the members of each batch. Members of a batch share a program.

        Args:
            most: most members of a batch per device; `None` chooses the fastest.
            devices: number of devices that share the members of a batch. A single member uses one of them.
            processes: number of processes that share the batches.
        """
        places = range(len(self.members))
        programs = _grouped(places, lambda place: self.shared[place][0])
        groups = [_grouped(group, lambda place: self.shared[place]) for group in programs]
        return [batch for sharing in groups for batch in self._batches(sharing, most, devices, processes)]

    def _batches(self, sharing: list[list[int]], most: int | None, devices: int, processes: int) -> list[list[int]]:
        first = self.members[sharing[0][0]].simulation
        if first.clock_sees_training or (most is None and on_cpu() and _num_parameters(first) > _MOST_BATCHED):
            most = 1
        in_lockstep = not (self.until or on_cpu() or first.server.needs.client_rows or first.server.needs.client_models)
        if in_lockstep and all(len(members) == 1 for members in sharing):
            sharing = [[place for members in sharing for place in members]]
        size = most * (devices if most > 1 else 1) if most else max(map(len, sharing))
        if most is None and on_cpu():
            count, few = sum(map(len, sharing)), _FEW // max(1, _num_parameters(first))
            batch = max(_BATCH, -(-count // _BATCHES), min(-(-count // 2), few))
            size = -(-size // -(-size // batch))
        size = min(size, -(-sum(map(len, sharing)) // processes))
        return [members[at : at + size] for members in sharing for at in range(0, len(members), size)]


def _programs(axis: Axis, simulation: Simulation) -> list[tuple[int, ...]]:
    """Returns, for each position along an axis, the indices at which its static values first occur: equal ones share a
    program."""
    static = [axis.column(path) for path in axis.paths if path != "seed" and is_static_path(simulation, path)]
    return [tuple(map(_first, static, row)) for row in zip(*static, strict=True)] or [()] * len(axis.rows)


def _first(column: list[Any], value: Any) -> int:
    plain = isinstance(value, str | int | float | None.__class__)
    return next(
        at for at, one in enumerate(column) if one is value or (plain and type(one) is type(value) and one == value)
    )


def _form(member: Member) -> tuple[Any, ...]:
    """Returns tree structure, shapes and kinds of a member's numbers, which determine its program."""
    leaves, structure = jax.tree.flatten((member.simulation.client, member.simulation.server))
    return structure, tuple((np.shape(leaf), np.asarray(leaf).dtype.kind) for leaf in leaves)


def _grouped(places: Sequence[int], key: Callable[[int], Any]) -> list[list[int]]:
    groups: dict[Any, list[int]] = {}
    for place in places:
        groups.setdefault(key(place), []).append(place)
    return list(groups.values())


def _num_parameters(simulation: Simulation) -> int:
    model = simulation.model
    data = simulation.data
    params, _ = jax.eval_shape(lambda: model.init(jax.random.key(0), example_batch(data.form)))
    return sum(leaf.size for leaf in jax.tree.leaves(params))
