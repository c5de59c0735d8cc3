"""The members of a sweep, and which of them advance together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxafl.callbacks.limits import Limited
from jaxafl.clock import Schedule
from jaxafl.device import on_cpu
from jaxafl.engine.state import example_batch
from jaxafl.options import check_whole, user_errors
from jaxafl.simulation import Simulation
from jaxafl.sweep.assemble import Dimension
from jaxafl.sweep.axes import Axis, is_static_path, replace_at

# Parameters up to which members that share a plan train faster together than one after another on a CPU: sweeps of
# eight in fours make 2.36 times the updates of members apart with an MLP of 6,370, 1.27 with `logistic` of 7,850, 1.09
# with an MLP of 25,450, and no more with one of 50,890 (but with a CNN of 21,840 only 0.80).
_TOGETHER = 50_000
# Members of a batch on a CPU, whose batches run at once. Not a matter of its cores, so that rounding is not one either:
# batched products round differently by how many there are. In twos the MLP of 6,370 makes 0.79 of the updates in fours,
# `logistic` 0.90, the MLP of 25,450 0.96.
_BATCH = 4


@dataclasses.dataclass(eq=False)
class Member:
    """One combination of values: axis or path -> label, the same in words, its simulation and its seed."""

    position: tuple[int, ...]
    labels: dict[str, Any]
    simulation: Simulation
    seed: int

    @property
    def where(self) -> str:
        """Which it is, in words."""
        return f"in the sweep at {', '.join(f'{name}={label}' for name, label in self.labels.items())}"


def members_of(simulation: Simulation, axes: Sequence[Axis], dims: Sequence[Dimension], seed: int) -> list[Member]:
    """All combinations, checked."""
    members = []
    for position in np.ndindex(*(len(axis.rows) for axis in axes)):
        variant, own = simulation, seed
        labels: dict[str, Any] = {}
        for axis, dim, at in zip(axes, dims, position, strict=True):
            labels |= {path: column[at] for path, column in (dim.beside or {dim.name: dim.labels}).items()}
            for path, value in zip(axis.paths, axis.rows[at], strict=True):
                if path == "seed":
                    own = value
                else:
                    variant = value if path == "simulation" else replace_at(variant, path, value)
        member = Member(position, labels, variant, check_whole("sweep", "seed", own, least=0, most=2**64 - 1))
        with user_errors(member.where):
            variant.check()
        members.append(member)
    return members


class Scheduled:
    """The schedules of members, one object for those that share it: of one program and one timing."""

    def __init__(
        self, members: Sequence[Member], axes: Sequence[Axis], server_steps: int | None, until: Mapping[str, float]
    ) -> None:
        """
        Args:
            members, axes: of the sweep.
            server_steps: T, if it is given.
            until: limits of time, updates or bytes.
        """
        self.members, self.server_steps, self.until = members, server_steps, until
        static = [_programs(axis, members[0].simulation) for axis in axes]
        self.shared = []
        for member in members:
            where = list(zip(axes, static, member.position, strict=True))
            program = *(values[at] for _, values, at in where), *_form(member)
            self.shared.append((program, tuple(at for axis, _, at in where if axis.times)))
        self.made: dict[Any, Schedule] = {}
        self.known: dict[Any, Limited] = {}

    def limited(self, place: int) -> Limited:
        """Returns what ends a member."""
        member, key = self.members[place], self.shared[place]
        if key not in self.known:
            with user_errors(member.where):
                self.known[key] = Limited.of(
                    "sweep", member.simulation, self.server_steps, self.until or None, member.seed
                )
        return self.known[key]

    def of(self, place: int) -> Schedule | None:
        """The schedule of a member; none where training makes it."""
        member, key = self.members[place], self.shared[place]
        if member.simulation.clock_sees_training:
            return None
        if key not in self.made:
            with user_errors(member.where):
                self.made[key] = member.simulation.compute_schedule(self.limited(place).server_steps, member.seed)
        return self.made[key]

    def bytes(self) -> Iterator[int]:
        """Of the versions that members keep, and of what they keep per client, for one member of each program."""
        for place in {program: place for place, (program, _) in enumerate(self.shared)}.values():
            one, schedule = self.members[place].simulation, self.of(place)
            rows = one.data.num_clients if one.server.needs.client_rows or one.server.needs.client_models else 0
            rows += schedule.ring_slots if schedule else one.clock.in_flight(one.data.num_clients)
            yield 4 * rows * _num_parameters(one)

    def batches(self, together: int | None, devices: int, processes: int = 1) -> list[list[int]]:
        """The places of members that advance together, in groups that share a schedule where they share a plan.

        Args:
            together: the most members of a batch on each device; `None`: as many as is fast.
            devices: that share the members of a batch; one that advances alone is on one of them.
            processes: that share the batches.
        """
        places = range(len(self.members))
        programs = _grouped(places, lambda place: self.shared[place][0])
        groups = [_grouped(group, lambda place: self.shared[place]) for group in programs]
        return [batch for sharing in groups for batch in self._batches(sharing, together, devices, processes)]

    def _batches(self, sharing: list[list[int]], together: int | None, devices: int, processes: int) -> list[list[int]]:
        first = self.members[sharing[0][0]].simulation
        if first.clock_sees_training or (together is None and on_cpu() and _num_parameters(first) > _TOGETHER):
            together = 1
        in_lockstep = not (self.until or on_cpu() or first.server.needs.client_rows or first.server.needs.client_models)
        if in_lockstep and all(len(members) == 1 for members in sharing):
            sharing = [[place for members in sharing for place in members]]
        size = together * (devices if together > 1 else 1) if together else max(map(len, sharing))
        if together is None and on_cpu():
            size = -(-size // -(-size // _BATCH))
        size = min(size, -(-sum(map(len, sharing)) // processes))
        return [members[at : at + size] for members in sharing for at in range(0, len(members), size)]


def _programs(axis: Axis, simulation: Simulation) -> list[tuple[int, ...]]:
    """Of every place along an axis: where the values of its static options, which fix a program, stand first."""
    static = [axis.column(path) for path in axis.paths if path != "seed" and is_static_path(simulation, path)]
    return [tuple(map(_first, static, row)) for row in zip(*static, strict=True)] or [()] * len(axis.rows)


def _first(column: list[Any], value: Any) -> int:
    plain = isinstance(value, str | int | float | None.__class__)
    return next(
        at for at, one in enumerate(column) if one is value or (plain and type(one) is type(value) and one == value)
    )


def _form(member: Member) -> tuple[Any, ...]:
    """The form of a member's numbers: an option may be `None` for some, or an array of another shape."""
    leaves, structure = jax.tree.flatten((member.simulation.client, member.simulation.server))
    return structure, tuple((np.shape(leaf), np.asarray(leaf).dtype.kind) for leaf in leaves)


def _grouped(places: Sequence[int], key: Callable[[int], Any]) -> list[list[int]]:
    groups: dict[Any, list[int]] = {}
    for place in places:
        groups.setdefault(key(place), []).append(place)
    return list(groups.values())


def _num_parameters(simulation: Simulation) -> int:
    model, data = simulation.model, simulation.data
    params, _ = jax.eval_shape(lambda: model.init(jax.random.key(0), example_batch(data.form)))
    return sum(leaf.size for leaf in jax.tree.leaves(params))
