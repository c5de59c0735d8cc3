"""Groups of clients that are to arrive together: the choice of a group and of local steps in `compass`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from jaxafl.clock.trees import LATE
from jaxafl.device.buffers import read, write
from jaxafl.options import Number

Array = jax.Array
T = TypeVar("T")
_ROUNDING = 1e-9  # relative; 60 s at 2.4 s per step are 25 steps, and an arrival at T_max counts
_CHUNK = 32  # groups that are compared at once


class Queue(NamedTuple):
    """Linked list of clients, int32."""

    first: Array  # -1 if it is empty
    last: Array

    def then(self, client: Array, where: Array) -> Queue:
        """Appends a client if `where`."""
        return Queue(jnp.where(where & (self.first < 0), client, self.first), jnp.where(where, client, self.last))

    def rest(self, behind: Array) -> Queue:
        """Removes the first client; `behind` [N] has the client behind each."""
        return Queue(jnp.where(self.first == self.last, -1, behind[self.first]), self.last)


class Groups(NamedTuple):
    """Groups by place; a place is free once the server has stepped, or T_max has passed."""

    arrival: Array  # float64, T_a
    latest: Array  # float64, T_max
    number: Array  # int32, of the group in order of creation, from 1 on
    fastest: Array  # float64, least seconds per local step of a member; 0 if it must be found again
    missing: Array  # int32, number of members that have not arrived
    waiting: Queue  # members that have arrived


class Alarm(NamedTuple):
    """Earliest T_max of a group in which a client waits; of several the first group."""

    time: Array  # float64, infinite if no client waits
    number: Array  # int32, of the group
    place: Array  # int32, of the group

    def earliest(self, other: Alarm) -> Alarm:
        """Returns the earlier one of two."""
        earlier = (other.time < self.time) | ((other.time == self.time) & (other.number < self.number))
        return choose(earlier, other, self)


class Grouping(NamedTuple):
    """Groups, and per client its group and speed."""

    groups: Groups
    alarm: Alarm
    created: Array  # number of groups so far
    high: Array  # all places from this one on are free
    steps: Array  # int32 [N], local steps of the next or current run
    speed: Array  # float64 [N], seconds per local step; 0 if unknown
    place: Array  # int32 [N], place of the client's group, or -1
    number: Array  # int32 [N], of the client's group


def no_groups(num_clients: int, steps: int) -> Grouping:
    """Returns clients without groups, of unknown speed, with `steps` local steps."""
    places, clients = (jnp.zeros(size, jnp.int32) for size in (-(-num_clients // _CHUNK) * _CHUNK, num_clients))
    never = places - jnp.inf
    groups = Groups(never, never, places, never, places, Queue(places - 1, places - 1))
    return Grouping(
        groups, no_alarm(), jnp.int32(0), jnp.int32(0), clients + steps, jnp.zeros(num_clients), clients - 1, clients
    )


def choose(where: Array, new: T, old: T) -> T:
    """Returns the leaves of `new` if `where`, else those of `old`."""
    return jax.tree.map(lambda a, b: jnp.where(where, a, b), new, old)


def no_alarm() -> Alarm:
    """Returns the alarm if no client waits."""
    return Alarm(jnp.float64(jnp.inf), jnp.int32(LATE), jnp.int32(0))


def first_alarm(grouping: Grouping) -> Alarm:
    """Finds the alarm again."""

    def fold(first: Alarm, groups: Groups, places: Array) -> Alarm:
        alarms = jnp.where(groups.waiting.first >= 0, groups.latest, jnp.inf)
        time = jnp.min(alarms)
        number = jnp.min(jnp.where(alarms == time, groups.number, LATE))
        place = jnp.max(jnp.where((alarms == time) & (groups.number == number), places, 0))
        return first.earliest(Alarm(time, number, place))

    return _over_groups(grouping.groups, grouping.high, fold, no_alarm())


def assign(grouping: Grouping, client: Array, now: Array, fewest: int, most: int, tolerance: Number) -> Grouping:
    """Assigns a group, and `fewest` to `most` local steps, to a client of known speed that has no group.

    XLA copies an array that a loop reads and a later write changes, unless the write depends on the loop. So members
    are entered before the loop over the groups.
    """
    groups, speed = grouping.groups, grouping.speed[client]

    def steps_in(seconds: Array) -> Array:
        return jnp.floor(seconds / jnp.where(speed > 0, speed, 1) * (1 + _ROUNDING))

    def join(best: tuple[Array, ...], groups: Groups, places: Array) -> tuple[Array, ...]:
        steps, number, place, free = best
        fits = steps_in(groups.arrival - now)
        fits = jnp.where((fits >= fewest) & (fits <= most), fits, -1)
        here = jnp.max(fits)
        latest = jnp.max(jnp.where(fits == here, groups.number, -1))
        at = jnp.max(jnp.where((fits == here) & (groups.number == latest), places, -1))
        better = (here > steps) | ((here == steps) & (latest > number))
        free = jnp.minimum(free, jnp.min(jnp.where(groups.latest < now, places, free)))
        return *choose(better, (here, latest, at), (steps, number, place)), free

    high = jax.lax.while_loop(
        lambda high: (high > 0) & (groups.latest[jnp.maximum(high - 1, 0)] < now), lambda high: high - 1, grouping.high
    )
    nothing, none = jnp.float64(-1), jnp.int32(-1)
    begin: tuple[Array, ...] = (nothing, none, jnp.int32(0), high)
    steps, _, place, free = _over_groups(groups, high, join, begin)
    joins = steps >= 0
    place = jnp.where(joins, place, free)
    old, never = read(groups, place), jnp.float64(-jnp.inf)
    joined = old._replace(fastest=jnp.minimum(old.fastest, speed), missing=old.missing + 1)
    alone = Groups(never, never, grouping.created + 1, speed, jnp.int32(1), Queue(none, none))
    group = choose(joins, joined, alone)
    groups = write(groups, place, group)
    number = write(grouping.number, client, group.number)

    def create(place: Array, steps: Array) -> Array:
        group = read(groups, place)
        compared, unknown = now < group.latest, group.fastest == 0
        fastest = jax.lax.fori_loop(
            0,
            jnp.where(compared & unknown, len(number), 0),
            lambda one, least: jnp.where(number[one] == group.number, jnp.minimum(least, grouping.speed[one]), least),
            jnp.float64(jnp.inf),
        )
        fits = steps_in(group.latest + most * jnp.where(unknown, fastest, group.fastest) - now)
        return jnp.where(compared & (fits <= most), jnp.maximum(steps, fits), steps)

    fits = jax.lax.fori_loop(0, jnp.where(joins, 0, high), create, nothing)
    steps = jnp.where(joins, steps, jnp.where(fits < 0, most, jnp.maximum(fits, fewest)))
    arrival = jnp.where(joins, group.arrival, now + steps * speed)
    latest = jnp.where(joins, group.latest, now + tolerance * steps * speed * (1 + _ROUNDING))
    return grouping._replace(
        groups=groups._replace(
            arrival=write(groups.arrival, place, arrival), latest=write(groups.latest, place, latest)
        ),
        created=grouping.created + ~joins,
        high=jnp.maximum(high, place + 1),
        steps=write(grouping.steps, client, steps.astype(jnp.int32)),
        place=write(grouping.place, client, place),
        number=number,
    )


def _over_groups(groups: Groups, high: Array, fold: Callable[[T, Groups, Array], T], initial: T) -> T:
    """Folds the groups below the place `high`, a number of them at once: fold(result, groups, places)."""

    def one(chunk: Array, result: T) -> T:
        begin = chunk * _CHUNK
        some = jax.tree.map(lambda column: jax.lax.dynamic_slice_in_dim(column, begin, _CHUNK), groups)
        return fold(result, some, begin + jnp.arange(_CHUNK, dtype=jnp.int32))

    return jax.lax.fori_loop(0, (high + _CHUNK - 1) // _CHUNK, one, initial)
