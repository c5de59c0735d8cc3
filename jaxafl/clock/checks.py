"""Checks that clocks share: rules between options, and recordings."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxafl.clock.durations.duration import Duration


def check_at_most(clock: str, name: str, value: int, num_clients: int) -> None:
    """No more clients than there are.

    Args:
        clock: its name, for the message.
        name, value: the option.
        num_clients: N.
    """
    if value > num_clients:
        raise ValueError(f"{clock}: {name}={value} is more than the {num_clients} clients there are")


def check_durations(clock: str, durations: Any, num_clients: int) -> None:
    """A duration, whose options go together."""
    if not isinstance(durations, Duration):
        raise TypeError(f"{clock}: durations must be a duration, e.g. jaxafl.clock.uniform(1, 5), got {durations!r}")
    durations.check(num_clients)


def check_starts(clock: str, starts: Any, num_clients: int) -> None:
    """Recorded starts: one client index per start."""
    if starts is None:
        return
    array = np.asarray(starts)
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.size == 0:
        raise ValueError(
            f"{clock}: recorded starts must be a one-dimensional array of client indices, one per start, "
            f"got shape {array.shape} of {array.dtype}"
        )
    outside = np.flatnonzero((array < 0) | (array >= num_clients))
    if outside.size:
        raise ValueError(
            f"{clock}: recorded starts must name clients 0..{num_clients - 1}; "
            f"start number {outside[0]} names {array[outside[0]]}"
        )


def check_sets(clock: str, sets: Any, size: int, num_clients: int, *, repeats: bool) -> None:
    """Recorded sets of clients: an integer array [round, size], without repeats in a round unless they are allowed.

    Args:
        clock: its name, for the message.
        sets: the recording, or `None`.
        size: clients of a set.
        num_clients: N.
        repeats: whether a set may name a client twice.
    """
    if sets is None:
        return
    array = np.asarray(sets)
    if array.ndim != 2 or array.shape[1] != size or array.shape[0] == 0 or array.dtype.kind not in "iu":
        raise ValueError(
            f"{clock}: recorded sets must be an integer array [round, n] with n = {size} clients, "
            f"got shape {array.shape}"
        )
    outside = np.argwhere((array < 0) | (array >= num_clients))
    if len(outside):
        where, what = outside[0], array[tuple(outside[0])]
        raise ValueError(
            f"{clock}: recorded sets must name clients 0..{num_clients - 1}; round {where[0]} names {what}"
        )
    ordered = np.sort(array, axis=1)
    repeated = np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))
    if repeated.size and not repeats:
        raise ValueError(
            f"{clock}: round {repeated[0]} of the recorded sets names a client twice, who would be busy; "
            "draw with replacement to let a client count twice"
        )


def check_masks(clock: str, name: str, masks: Any, num_clients: int) -> None:
    """Recorded masks: bool [tick, client].

    Args:
        clock, name: whose recording, and which, for the message.
        masks: the recording, or `None`.
        num_clients: N.
    """
    if masks is None:
        return
    array = np.asarray(masks)
    if array.ndim != 2 or array.shape[1] != num_clients or array.shape[0] == 0 or array.dtype.kind not in "biu":
        raise ValueError(
            f"{clock}: recorded {name} must be a bool array [tick, client] with {num_clients} clients, "
            f"got shape {array.shape} of {array.dtype}"
        )
    if not np.isin(array, (0, 1)).all():
        raise ValueError(f"{clock}: recorded {name} must be 0 or 1, got {array[~np.isin(array, (0, 1))][0]}")


def check_stale(clock: str, stale: Any, size: int, oldest: int) -> None:
    """Recorded ages: an integer array [round, size] of versions back.

    Args:
        clock: its name, for the message.
        stale: the recording, or `None`.
        size: J.
        oldest: the largest age.
    """
    if stale is None:
        return
    array = np.asarray(stale)
    if array.ndim != 2 or array.shape[1] != size or array.dtype.kind not in "iu" or not len(array):
        raise ValueError(
            f"{clock}: recorded stale versions must be an integer array [round, J] with J = {size}, "
            f"got shape {array.shape} of {array.dtype}"
        )
    if (array < 0).any() or (array > oldest).any():
        raise ValueError(
            f"{clock}: recorded stale versions must be in 0..{oldest} (max_staleness), got {array.min()}..{array.max()}"
        )
