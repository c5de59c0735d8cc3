"""Checks of the options of clocks: combinations, recordings, and the choice of clients by weight or hours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxafl.options import UserError


def fail_if(owner: str, rules: Sequence[tuple[bool, str]]) -> None:
    """Raises `UserError` for the first rule, a pair of a predicate and a message, that is broken."""
    for broken, message in rules:
        if broken:
            raise UserError(f"{owner}: {message}")


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
    whole = table.ndim and table.size and table.shape[1:] == columns and table.dtype.kind in kinds
    if not whole or table.min() < 0 or table.max() > most:
        found = f", from {table.min()} to {table.max()}" if whole else ""
        raise UserError(
            f"{clock.name}: the recorded {name} are {table.dtype} of shape {table.shape}{found}; expected whole "
            f"numbers from 0 to {most} of shape [entry{''.join(f', {size}' for size in columns)}]"
        )
    if not repeats and (twice := (np.diff(np.sort(table, axis=-1)) == 0).any(axis=1)).any():
        raise UserError(
            f"{clock.name}: entry {twice.argmax()} of the recorded {name} names a client twice, who would be busy; "
            "draw with replacement to let a client count twice"
        )


def check_selection(clock: Any, num_clients: int, drawn: int, always: bool = False) -> None:
    """Raises `UserError` for hours or weights by which clients cannot be chosen.

    Weights must have an effect, go with `select`, and be above 0 for enough clients.

    Args:
        clock: the clock.
        num_clients: N.
        drawn: number of distinct clients that are drawn at once.
        always: True if weights have an effect even if all clients can be drawn.
    """
    weights, hours = (getattr(clock.select, name, getattr(clock, name)) for name in ("weights", "hours"))
    given = weights is not None
    if hours is not None:
        hours.check(num_clients)
    if not given and clock.select == "uniform":
        return
    positive = int(np.count_nonzero(np.broadcast_to(weights, num_clients))) if given else drawn
    fail_if(clock.name, [
        (drawn >= num_clients and not always, f"all {num_clients} clients take part, so select and weights have no "
         "effect; draw fewer clients, or leave them out"),
        (not given and clock.select == "samples", "select='samples' needs the sample counts of the data; run the "
         "clock in a Simulation, or give weights=counts"),
        (clock.weights is not None and clock.select != "uniform", f"give weights or select={clock.select!r}, not both"),
        (positive < drawn, f"only {positive} of {num_clients} clients have a weight above 0, and {drawn} are drawn; "
         "expected a weight above 0 for at least as many"),
    ])  # fmt: skip
