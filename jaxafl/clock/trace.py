"""Replay: a protocol whose random draws come from the user's arrays."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from jaxafl.checks import as_array
from jaxafl.clock.durations import recorded

T = TypeVar("T")


def trace(protocol: T, *, durations: Any = None, per: str = "run", **recordings: Any) -> T:
    """The protocol with its random draws replaced by recorded ones.

    Args:
        protocol: a clock, e.g. `free_running(...)`.
        durations: array [client, run] of seconds, runs counted per client in the order they start; `None` keeps the
            protocol's.
        per: `"run"`, or `"step"` for seconds per local step.
        **recordings: what else the protocol draws: `starts` [dispatch] for `free_running` (the first M_c are those in
            flight at the start); `sets` [round, n] for `synchronous`, `sampled`, `interrupting` and `stale_rounds`;
            `stale` [round, J] for `stale_rounds`; `uploads` and `downloads` [tick, client] for `bernoulli`.

    Returns:
        A clock of the same protocol.

    Raises:
        ValueError: a recording has rows of different lengths.
        TypeError: the protocol does not draw what was recorded, or durations are no numbers.
    """
    fields = dataclasses.fields(protocol)  # type: ignore[arg-type]
    allowed = [field.name for field in fields if field.default is None and not field.metadata.get("static")]
    timed = any(field.name == "durations" for field in fields)
    for name in [*recordings, *(["durations"] if durations is not None else [])]:
        if name not in allowed and not (name == "durations" and timed):
            replayed = ", ".join([*(["durations"] if timed else []), *allowed])
            raise TypeError(f"{type(protocol).__name__} draws no {name!r}; it can replay: {replayed}")
    changes: dict[str, Any] = {name: as_array("trace", name, values) for name, values in recordings.items()}
    if durations is not None:
        changes["durations"] = recorded(durations, per)
    return dataclasses.replace(protocol, **changes)  # type: ignore[type-var]
