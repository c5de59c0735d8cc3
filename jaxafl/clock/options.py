"""Checks of the options of clocks: combinations, recordings, and the choice of clients by weight or hours."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from jaxafl.clock.durations.duration import Duration
from jaxafl.clock.durations.runs import reads
from jaxafl.options import UserError

C = TypeVar("C", bound=Any)  # a clock with the options `select` and `weights`


def fail_if(owner: str, rules: Sequence[tuple[bool, str]]) -> None:
    """Raises `UserError` for the first rule, a pair of a predicate and a message, that is broken."""
    for broken, message in rules:
        if broken:
            raise UserError(f"{owner}: {message}")


def check_at_most(clock: str, name: str, value: int, num_clients: int) -> None:
    """Raises `ValueError` if an option exceeds the number of clients.

    Args:
        clock: name of the clock, for the message.
        name, value: name and value of the option.
        num_clients: N.
    """
    if value > num_clients:
        raise ValueError(f"{clock}: {name}={value} is more than the {num_clients} clients there are")


def check_durations(clock: str, durations: Any, num_clients: int) -> None:
    """Raises `TypeError` or `ValueError` unless `durations` is a valid duration for the clock."""
    if not isinstance(durations, Duration):
        raise TypeError(f"{clock}: durations must be a duration, e.g. jaxafl.clock.uniform(1, 5), got {durations!r}")
    durations.check(num_clients)
    if durations.transport() is not None and "now" in reads(durations, num_clients):
        raise UserError(
            f"{clock}: durations={durations!r:.100}: with link(shared=...) a run's work begins after its download, but "
            "another term depends on the time at which the run starts; expected terms that do not. Give link(up=...)"
        )
    if durations.pause and "now" in reads(durations, num_clients):
        raise ValueError(
            f"{clock}: durations that depend on the time at which a run starts (as availability of device_trace) need "
            "to know it, and transfers that stop everyone (mac_network) shift it: give mac_network(freeze=False)"
        )


def check_recording(clock: Any, name: str, columns: tuple[int, ...], most: int, *, repeats: bool = True) -> None:
    """Raises `UserError` unless a recording is an array [entry, *columns] of whole numbers from 0 to `most`.

    Args:
        clock, name: the clock, and the name of its recording, which may be `None`.
        columns: lengths of the axes after the first.
        most: largest number.
        repeats: allow an entry to have a number twice.
    """
    if getattr(clock, name) is None:
        return
    table = np.asarray(getattr(clock, name))
    kinds = "iub" if most == 1 else "iu"
    if table.ndim == 0 or table.shape[1:] != columns or table.size == 0 or table.dtype.kind not in kinds:
        raise UserError(
            f"{clock.name}: the recorded {name} are {table.dtype} of shape {table.shape}; expected whole numbers of "
            f"shape [entry{''.join(f', {size}' for size in columns)}]"
        )
    if (outside := np.argwhere((table < 0) | (table > most))).size:
        where = tuple(outside[0])
        raise UserError(f"{clock.name}: entry {where[0]} of the recorded {name} is {table[where]}; expected 0..{most}")
    ordered = np.sort(table, axis=-1)
    if not repeats and (twice := (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)).any():
        raise UserError(
            f"{clock.name}: entry {twice.argmax()} of the recorded {name} names a client twice, who would be busy; "
            "draw with replacement to let a client count twice"
        )


def with_samples(clock: C, counts: np.ndarray) -> C:
    """Returns the clock with the sample counts n_i, int [N], as weights, if it selects by samples."""
    if clock.weights is not None or "samples" not in str(clock.select):
        return clock
    return dataclasses.replace(clock, weights=np.asarray(counts, np.float64), select="uniform")


def draws_by_weight(clock: Any) -> bool:
    """Returns True unless a clock's draws are uniform."""
    return clock.weights is not None or clock.select != "uniform"


def check_weights(clock: Any, num_clients: int, drawn: int, always: bool = False) -> None:
    """Raises `UserError` for weights that have no effect, contradict `select`, or are above 0 for too few clients.

    Args:
        clock: the clock.
        num_clients: N.
        drawn: number of different clients that draws must be able to give.
        always: True if weights have an effect even if all clients can be drawn.
    """
    if not draws_by_weight(clock):
        return
    if drawn >= num_clients and not always:
        raise UserError(
            f"{clock.name}: all {num_clients} clients take part, so select and weights have no effect; "
            "draw fewer clients, or leave them out"
        )
    if clock.weights is None:
        return
    if clock.select != "uniform":
        raise UserError(f"{clock.name}: give weights or select={clock.select!r}, not both")
    positive = np.count_nonzero(np.broadcast_to(np.asarray(clock.weights), (num_clients,)))
    if positive < drawn:
        raise UserError(
            f"{clock.name}: only {positive} of {num_clients} clients have a weight above 0, and {drawn} are drawn; "
            "expected a weight above 0 for at least as many"
        )


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
    if not hasattr(hours, "hours_of"):
        raise UserError(
            f"{clock.name}: hours={hours!r:.100} is not a client's hours; expected jaxafl.clock.available(begin, end). "
            "Other waits are terms of durations"
        )
    hours.check(num_clients)
    for name in (name for name, given in others.items() if given):
        raise UserError(f"{clock.name}: {name} chooses clients, too, and cannot go with hours; leave one of them out")
