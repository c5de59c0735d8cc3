"""Shared checks of clocks: combinations of options, and recordings."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxafl.clock.durations.duration import Duration
from jaxafl.clock.durations.link import shared_link
from jaxafl.clock.durations.runs import reads
from jaxafl.options import UserError, check_number, check_options, check_whole, shown


def check_clock(clock: Any, num_clients: int) -> None:
    """Raises `ValueError` or `TypeError` for options of a clock, or methods of the user's, that cannot work."""
    if not hasattr(clock, "next"):
        raise UserError(f"`prepare` of a clock must return the clock, such as self; it returned {shown(clock)}")
    check_options(clock, num_clients)
    clock.check(num_clients)
    for name in ("capacity", "entries", "in_flight", "ring_slots"):
        check_whole(clock.name, f"{name}(num_clients)", getattr(clock, name)(num_clients))
    check_number(clock.name, "pause", clock.pause, least=0)


def check_at_most(clock: str, name: str, value: int, num_clients: int) -> None:
    """Raises `ValueError` if an option exceeds the number of clients.

    Args:
        clock: name of the clock, for the message.
        name, value: name and value of the option.
        num_clients: N.
    """
    if value > num_clients:
        raise ValueError(f"{clock}: {name}={value} is more than the {num_clients} clients there are")


def check_room(clock: Any, num_clients: int, least: int) -> None:
    """Raises `UserError` if a server step has room for fewer arrivals than close it.

    Args:
        clock: the clock, with the option `max_arrivals`.
        num_clients: N.
        least: fewest arrivals that close a server step.
    """
    room = clock.capacity(num_clients)
    if room < least:
        raise UserError(
            f"{clock.name}: a server step has room for {room} arrivals, and needs {least} to close; expected room for "
            f"as many. Give max_arrivals={least} or more"
        )


def check_bound(clock: Any) -> None:
    """Raises `ValueError` if `max_staleness`, `on_bound`, windows or rate contradict other options, or lack one."""
    if clock.on_bound != "refuse" and clock.max_staleness is None:
        raise ValueError(f"{clock.name}: on_bound={clock.on_bound!r} needs a bound: give max_staleness=R")
    if clock.on_bound == "wait" and clock.period is not None:
        raise ValueError(
            f"{clock.name}: period={clock.period} ends a server step at its time, but on_bound='wait' waits for late "
            "runs: give buffer=M instead of the period, or on_bound='refuse' or 'stop'"
        )
    if clock.windows != "constant" and clock.period is None:
        raise ValueError(f"{clock.name}: windows={clock.windows!r} needs their mean length: give period=P")
    if clock.interval != "poisson" and clock.rate is None:
        raise ValueError(f"{clock.name}: interval={clock.interval!r} needs starts at a rate: give rate=r")
    if clock.on_bound == "stop" and (clock.before_step or clock.start_skew):
        raise ValueError(
            f"{clock.name}: on_bound='stop' restarts clients from the newest version, but before_step=True and "
            "start_skew=True hand out an older one: give on_bound='refuse'"
        )
    if clock.rate is not None and (clock.dispatch == "step" or clock.before_step or clock.on_bound == "stop"):
        raise ValueError(
            f"{clock.name}: rate={clock.rate} starts clients whenever updates arrive, but dispatch='step', "
            "before_step=True and on_bound='stop' start them then; leave these out, or the rate"
        )


def check_durations(clock: str, durations: Any, num_clients: int) -> None:
    """Raises `TypeError` or `ValueError` unless `durations` is a valid duration for the clock."""
    if not isinstance(durations, Duration):
        raise TypeError(f"{clock}: durations must be a duration, e.g. jaxafl.clock.uniform(1, 5), got {durations!r}")
    durations.check(num_clients)
    if shared_link(durations) is not None and any(reads(durations, num_clients)["now"]):
        raise UserError(
            f"{clock}: durations={durations!r:.100}: with link(shared=...) a run's work begins after its download, but "
            "another term depends on the time at which the run starts; expected terms that do not. Give link(up=...)"
        )
    if durations.pause and any(reads(durations, num_clients)["now"]):
        raise ValueError(
            f"{clock}: durations that depend on the time at which a run starts (as availability of device_trace) need "
            "to know it, and transfers that stop everyone (mac_network) shift it: give mac_network(freeze=False)"
        )


def check_starts(clock: str, starts: Any, num_clients: int) -> None:
    """Raises `ValueError` unless recorded starts are one client index per start."""
    allowed = "starts must be a one-dimensional array of client indices, one per start"
    array = _recorded(clock, allowed, starts, "iu")
    _check_clients(clock, "starts", "start number", array, num_clients)


def check_sets(clock: str, sets: Any, size: int, num_clients: int, *, repeats: bool) -> None:
    """Raises `ValueError` unless recorded sets are client indices [round, size].

    Args:
        clock: name of the clock, for the message.
        sets: the recording, or `None`.
        size: clients per set.
        num_clients: N.
        repeats: allow a set to name a client twice.
    """
    allowed = f"sets must be an integer array [round, n] with n = {size} clients"
    array = _recorded(clock, allowed, sets, "iu", size, got="shape {0.shape}")
    _check_clients(clock, "sets", "round", array, num_clients)
    ordered = np.sort(array, axis=1)
    repeated = np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))
    if repeated.size and not repeats:
        raise ValueError(
            f"{clock}: round {repeated[0]} of the recorded sets names a client twice, who would be busy; "
            "draw with replacement to let a client count twice"
        )


def check_masks(clock: str, name: str, masks: Any, num_clients: int) -> None:
    """Raises `ValueError` unless recorded masks are bool [tick, client].

    Args:
        clock, name: names of the clock and of the recording, for the message.
        masks: the recording, or `None`.
        num_clients: N.
    """
    allowed = f"{name} must be a bool array [tick, client] with {num_clients} clients"
    array = _recorded(clock, allowed, masks, "biu", num_clients)
    others = array[~np.isin(array, (0, 1))]
    if others.size:
        raise ValueError(f"{clock}: recorded {name} must be 0 or 1, got {others[0]}")


def check_stale(clock: str, stale: Any, size: int, oldest: int) -> None:
    """Raises `ValueError` unless recorded ages of versions are integers 0 .. oldest, [round, size].

    Args:
        clock: name of the clock, for the message.
        stale: the recording, or `None`.
        size: clients per round J.
        oldest: largest age.
    """
    allowed = f"stale versions must be an integer array [round, J] with J = {size}"
    array = _recorded(clock, allowed, stale, "iu", size)
    if ((array < 0) | (array > oldest)).any():
        raise ValueError(
            f"{clock}: recorded stale versions must be in 0..{oldest} (max_staleness), got {array.min()}..{array.max()}"
        )


def _recorded(
    clock: str, allowed: str, recording: Any, kinds: str, *columns: int, got: str = "shape {0.shape} of {0.dtype}"
) -> np.ndarray:
    """Returns the recording as an array [entry, *columns], with 0 entries for `None`; raises `ValueError` for others.

    Args:
        clock: name of the clock, for the message.
        allowed: name and requirements of the recording, for the message.
        recording: the recording, or `None`.
        kinds: allowed kinds of NumPy types.
        *columns: lengths of the axes after the first.
        got: template by which the message describes a wrong array.
    """
    if recording is None:
        return np.zeros((0, *columns), int)
    array = np.asarray(recording)
    if array.ndim == 0 or array.shape[1:] != columns or array.size == 0 or array.dtype.kind not in kinds:
        raise ValueError(f"{clock}: recorded {allowed}, got {got.format(array)}")
    return array


def _check_clients(clock: str, name: str, entry: str, clients: np.ndarray, num_clients: int) -> None:
    """Raises `ValueError` for client indices outside of 0 .. N - 1; `entry`: word for a row in the message."""
    outside = np.argwhere((clients < 0) | (clients >= num_clients))
    if len(outside):
        named = clients[tuple(outside[0])]
        raise ValueError(
            f"{clock}: recorded {name} must name clients 0..{num_clients - 1}; {entry} {outside[0][0]} names {named}"
        )
