"""Callbacks that stop a run."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from jaxafl.callbacks.base import Callback, Chunk, Run, check_metric
from jaxafl.device.content import content, source_of
from jaxafl.models.metrics import falls, reaches
from jaxafl.options import UserError, check_number


def check_target(owner: str, metric: str, target: float) -> None:
    """Raises if a target is no finite number, or, for an accuracy, not in [0, 1].

    Args:
        owner: owner of the target, for the message.
        metric: the metric.
        target: its target.
    """
    check_number(owner, metric, target, **({"least": 0, "most": 1} if metric.endswith("accuracy") else {}))


def ends_of(callback: Any) -> Mapping[str, Any]:
    """Returns what decides where a callback ends runs, as JSON; see `Callback.ends`."""
    ends = getattr(callback, "ends", None)
    if ends is not None:
        return ends
    kind: Any = type(callback)
    if kind.chunk is Callback.chunk:
        return {}
    given = {name: getattr(callback, name, None) for name in [*inspect.signature(kind.__init__).parameters][1:]}
    return {"name": kind.__qualname__, **content(given), "source": source_of(kind)}


class StopAt(Callback):
    """Stops a run as soon as an evaluation reaches a target: `StopAt(accuracy=0.9)`.

    A metric that is better when lower has to fall to its target, any other to rise (see `jaxafl.models.Model.better`).

    Args:
        **targets: metric -> value; the first target that is reached stops the run.

    Raises:
        ValueError, TypeError: there is no target, one is no finite number, or that of an accuracy is not in [0, 1].
            Before compilation: a metric does not exist, or its better direction is unknown.
    """

    owner, others = "StopAt", tuple[str, ...]()  # in messages

    def __init__(self, **targets: float) -> None:
        if not targets:
            raise UserError("StopAt needs a metric and its target, e.g. StopAt(accuracy=0.9)")
        for name, target in targets.items():
            check_target(self.owner, name, target)
        self.ends = self.targets = targets

    def check(self, run: Run) -> None:
        for name in self.targets:
            check_metric(self.owner, run, name, self.others)

    def chunk(self, chunk: Chunk) -> str | None:
        for name, target in self.targets.items():
            value = chunk.evaluation[name]
            if reaches(value, target, falls(name, chunk.run.metrics, self.owner)):
                return f"{name} {value:.6g} has reached {target:g}"
        return None


class StopAfter(Callback):
    """Stops a run at the first evaluation after a given time.

    Args:
        simulated: simulated seconds.
        wall: wall-clock seconds since the run started or resumed, without compilation.

    Raises:
        ValueError, TypeError: neither is given, or one is not a number above 0.
    """

    def __init__(self, simulated: float | None = None, wall: float | None = None) -> None:
        given = {"simulated": simulated, "wall": wall}
        self.limits = {name: limit for name, limit in given.items() if limit is not None}
        if not self.limits:
            raise UserError("StopAfter needs seconds, e.g. StopAfter(simulated=3600)")
        for name, limit in self.limits.items():
            check_number("StopAfter", name, limit, above=0)
        self.ends = {name: limit for name, limit in self.limits.items() if name == "simulated"}

    def chunk(self, chunk: Chunk) -> str | None:
        for name, limit in self.limits.items():
            seconds, kind = (chunk.time, "simulated") if name == "simulated" else (chunk.seconds, "wall-clock")
            if seconds >= limit:
                return f"{seconds:.6g} {kind} seconds are over (of {limit:g})"
        return None


class Targets(StopAt):
    """Stops a run as soon as an evaluation reaches a target of `until`."""

    def __init__(self, owner: str, targets: Mapping[str, float], others: tuple[str, ...]) -> None:
        """
        Args:
            owner: the function that the user called, for messages.
            targets: metric -> value.
            others: limits that are no metrics, for messages.
        """
        self.owner = f"{owner}, until"
        self.others = others
        super().__init__(**targets)
        self.ends = {}  # the limits of a run are compared anyway
