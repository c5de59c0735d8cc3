"""What ends a run before its last server step, or in the place of one: the limits of `until`, and callbacks."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxafl.callbacks.base import Callback, Chunk, Run, check_metric
from jaxafl.callbacks.content import content, source_of
from jaxafl.client import Traffic
from jaxafl.clock.accounts.contract import Mechanism
from jaxafl.clock.fleet import Gone, ServerStep
from jaxafl.clock.live import Live
from jaxafl.clock.schedule import joined
from jaxafl.engine.loop import Trained
from jaxafl.engine.planned import UNBOUNDED
from jaxafl.models.metrics import falls, reaches
from jaxafl.options import UserError, check_number, check_whole, shown

_PRIVATE = ("epsilon", "delta")
_EXACT = ("time", "updates", "bytes", *_PRIVATE)
_OTHERS = (*_EXACT, "seconds")  # limits that are no metrics
_NOT_COUNTED = Traffic(0, 0)
_FIRST = 2**10  # server steps of the first advance of a clock
_LARGEST = 2**17  # most server steps of one advance


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
    if callback.ends is not None:
        return callback.ends
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
        return self.reached(chunk.evaluation, chunk.run)

    def reached(self, evaluation: Mapping[str, float], run: Run) -> str | None:
        """Returns the first target that an evaluation reaches, in words; `None` if it reaches none."""
        for name, target in self.targets.items():
            value = evaluation[name]
            if reaches(value, target, falls(name, run.metrics, self.owner)):
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

    others = _OTHERS

    def __init__(self, owner: str, targets: Mapping[str, float]) -> None:
        """
        Args:
            owner: the function that the user called, for messages.
            targets: metric -> value.
        """
        self.owner = f"{owner}, until"
        super().__init__(**targets)
        self.ends = {}  # the limits of a run are compared anyway


@dataclasses.dataclass(frozen=True)
class Limited:
    """The limits that end a run, and its length.

    Attributes:
        owner: the function that the user called, for messages.
        given: all limits, as in `until`.
        exact: limits that hold at every server step: `time` (simulated seconds), `updates`, `bytes`, `epsilon`.
        stops: callbacks that end the run at an evaluation.
        server_steps: T.
        size: bytes of an update, and of a model that a client downloads.
        why: the limit that determines T; empty if none does.
    """

    owner: str
    given: Mapping[str, float]
    exact: Mapping[str, float]
    stops: tuple[Callback, ...]
    server_steps: int = UNBOUNDED
    size: Traffic = _NOT_COUNTED
    why: str = ""

    def reached(
        self, time: Any, arrivals: Any, unused: Any, downloads: Any, start: int, before: int
    ) -> tuple[int, str]:
        """Returns the number of server steps within the limits, and the limit that ends them (empty if none does).

        Args:
            time: float [T] or of one server step, simulated seconds.
            arrivals: int [T], arrivals of the server steps.
            unused: int [T], uploads that were refused or lost up to each server step.
            downloads: int [T], runs that were started up to each server step.
            start: server steps of the run before these.
            before: arrivals of those.

        Raises:
            ValueError: the first server step of the run is later than the limit of time.
        """
        updates = before + np.cumsum(arrivals, dtype=np.int64)
        sent = (updates + unused) * self.size.up + np.int64(self.size.down) * downloads
        reached = {}
        for name, column in {"time": np.atleast_1d(time), "updates": updates, "bytes": sent}.items():
            # a step after the time would change the model at it; the step that reaches another limit belongs to the run
            side, last = ("right", 0) if name == "time" else ("left", 1)
            at = int(np.searchsorted(column, self.exact.get(name, np.inf), side))  # type: ignore[call-overload]
            if at < len(updates):
                reached[name] = at + last
        if not reached:
            return len(updates), ""
        name = min(reached, key=reached.__getitem__)
        why = f"until {name} {self.exact[name]:g}"
        if not start + reached[name]:
            raise UserError(f"{self.owner}: {why} s: the first server step is at {np.min(time):.6g} s, later than that")
        return reached[name], why

    def ahead(self, clock: Live, mechanism: Mechanism | None = None) -> tuple[int, str]:
        """Advances a clock until a limit is reached, and returns `reached` for it.

        Args:
            clock: the clock.
            mechanism: noise of the simulation, if ε is limited.

        Raises:
            ValueError: the clock fails before a limit, or the first server step exceeds one.
        """
        done, before, count = 0, 0, _FIRST
        parts = []
        while done < self.server_steps:
            try:
                part = clock.advance(min(count, self.server_steps - done), early=True)
            except Gone:
                if "time" not in self.exact or not done:
                    raise
                return done, f"until time {self.exact['time']:g}, all clients were gone after server step {done - 1}"
            unused = part.runs_refused + part.runs_lost
            within, why = self.reached(part.time, part.taken, unused, part.runs_begun, done, before)
            if mechanism:
                from jaxafl.clock.accounts.privacy import privacy_of

                parts.append(part)
                found = privacy_of(joined(parts), mechanism, None, self.exact["delta"], "participation")
                allowed = int(np.searchsorted(found.max_epsilon, self.exact["epsilon"], side="right"))
                if allowed < done + within:
                    within, why = allowed - done, f"until epsilon {self.exact['epsilon']:g}"
                if not allowed:
                    raise UserError(
                        f"{self.owner}: {why}: the first server step exceeds it; give more noise, or a larger limit"
                    )
            if why:
                return done + within, why
            done += len(part.taken)
            before += int(part.taken.sum())
            count = min(8 * count, _LARGEST)
        return self.server_steps, ""

    def of_run(self, simulation: Any, server_steps: int | None, seed: int) -> Limited:
        """Returns the limits with the length of a run.

        Args:
            simulation: a checked `Simulation`.
            server_steps: T, if given.
            seed: seed of the run.
        """
        if server_steps is None and not self.given:
            raise TypeError(f"{self.owner} needs server_steps, or limits such as until={{'time': 3600}}")
        if "time" in self.exact and simulation.client.charge == "executed" and self.owner != "schedule":
            raise UserError(f"{self.owner}: until time reads planned times, not executed ones; give another limit")
        mechanism = simulation.mechanism() if "epsilon" in self.exact else None
        if mechanism is not None and mechanism.refused:
            raise UserError(f"{self.owner}: until epsilon: {mechanism.refused}")
        steps = UNBOUNDED if server_steps is None else check_whole(self.owner, "server_steps", server_steps)
        size = simulation.traffic() if "bytes" in self.exact else self.size
        found, why = dataclasses.replace(self, server_steps=steps, size=size), ""
        if self.exact and not simulation.clock_sees_training:
            steps, why = found.ahead(simulation.live(seed), mechanism)
        if steps == UNBOUNDED:
            why = f"{UNBOUNDED:,} server steps are over, and no limit was reached"
        return dataclasses.replace(found, server_steps=steps, why=why)

    def without_training(self) -> int:
        """Returns T of a schedule that is computed without training.

        Raises:
            ValueError: a limit is only known in training, or no limit is ever reached.
        """
        if names := [name for stop in self.stops for name in getattr(stop, "targets", ["seconds"])]:
            raise UserError(
                f"{self.owner}: until {', '.join(names)} is only known in training; expected time, updates, bytes, or "
                "epsilon with delta. Call run(until=...) for it"
            )
        if self.server_steps == UNBOUNDED:
            raise UserError(
                f"{self.owner}: no limit is reached in {UNBOUNDED:,} server steps; expected one. Give server_steps"
            )
        return self.server_steps

    def noted(self, trained: Trained) -> Trained:
        """Returns the finished run with its limit in the notes."""
        ended = dict(trained.notes)
        complete = trained.failure is None and trained.schedule.server_steps == self.server_steps
        if self.why and complete and "stopped" not in ended:
            ended["stopped"] = self.why
        if "time" in self.exact and ended.get("stopped", "").startswith("until time"):
            ended["until_time"] = float(self.exact["time"])
        return trained._replace(notes=ended)

    def of_steps(self, clock: Any) -> Callable[[ServerStep, int], tuple[int, str]] | None:
        """Returns (server step, arrivals before it) -> `reached`, for a clock that is advanced step by step.

        It is `None` without exact limits.
        """
        if not self.exact:
            return None

        def within(step: ServerStep, before: int) -> tuple[int, str]:
            started, refused, _, lost, _ = step.totals
            time = step.time + clock.pause * (step.version + 1)
            return self.reached(time, len(step.runs), refused + lost, started, step.version, before)

        return within


def limits_of(owner: str, until: Any) -> Limited:
    """Returns the limits of `until`.

    Args:
        owner: the function that the user called, for messages.
        until: e.g. `{"time": 3600, "accuracy": 0.9, "updates": 10**6, "bytes": 1e9, "seconds": 600}`, or
            `{"epsilon": 8, "delta": 1e-5}`.

    Raises:
        ValueError, TypeError: `until` is no mapping of names to numbers, or a number cannot be a limit.
    """
    if until is None:
        return Limited(owner, {}, {}, ())
    if not isinstance(until, Mapping) or not until:
        raise TypeError(f"{owner}: until must be name -> limit, such as {{'time': 3600}}, got {shown(until)}")
    given = dict(until)
    for name in [name for name in _OTHERS if name in given]:
        check_number(owner, f"until, {name}", given[name], above=0, below=1 if name == "delta" else None)
    exact = {name: given.pop(name) for name in _EXACT if name in given}
    updates = exact.get("updates", 1)
    check_whole(owner, "until, updates", int(updates) if float(updates).is_integer() else updates)
    if len({*_PRIVATE} & exact.keys()) == 1:
        raise UserError(
            f"{owner}: until epsilon needs delta, until={{'epsilon': 8, 'delta': 1e-5}}; got {shown(until)}"
        )
    if "epsilon" in exact and given.keys() - {"seconds"}:
        raise UserError(
            f"{owner}: until epsilon and {', '.join(sorted(given.keys() - {'seconds'}))}: a run that ends by a metric "
            "depends on data, and has no ε. Leave one out"
        )
    stops: list[Callback] = [StopAfter(wall=given.pop("seconds"))] if "seconds" in given else []
    stops += [Targets(owner, given)] if given else []
    return Limited(owner, until, exact, tuple(stops))


def divided(until: Mapping[str, float] | None, share: int, renamed: Callable[[str], str]) -> dict[str, float]:
    """Returns limits with `1 / share` of the time, updates, bytes and seconds. Targets and ε keep their value.

    Args:
        until: checked limits, or `None`.
        share: the divisor, >= 1.
        renamed: name of a target -> its new name.

    Raises:
        UserError: less than one update is left.
    """
    found = {}
    for name, limit in (until or {}).items():
        part = limit // share if name == "updates" else limit / share
        if name == "updates" and part == 0:
            raise UserError(
                f"tune: {limit:g} updates are too few for a rung of 1/{share} of them; give more, or rungs=1"
            )
        found[name if name in _OTHERS else renamed(name)] = part if name in {*_OTHERS} - {*_PRIVATE} else limit
    return found


def parsed_limits(text: str) -> dict[str, float]:
    """Returns the limits of `"time=3600,accuracy=0.9"`."""
    pairs = [part.partition("=") for part in text.split(",")]
    with contextlib.suppress(ValueError):
        found = {name.strip(): float(value) for name, _, value in pairs}
        if len(found) == len(pairs):
            return found
    raise UserError(f"until needs name=number, each name once, such as time=3600,accuracy=0.9; got {text!r}")
