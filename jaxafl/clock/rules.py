"""Invariants that every schedule must satisfy. The engine relies on them and does not check them again."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.clock.contract import Clock, Delivery, ServerStep
from jaxafl.clock.ragged import PER_STEP, columns_of, per_step
from jaxafl.device.user_code import like_given
from jaxafl.options import UserError

Rule: TypeAlias = tuple[np.ndarray, str, str]  # violations, bool [n]; names of the values to show; text of the rule
_NAMES = ("client", "run", "run_id")
_TYPES = {"time": "float64", "started": "float64", "arrived": "float64", "mask": "bool", "advances": "bool"}


@dataclasses.dataclass
class Earlier:
    """Checked server steps, against which later ones are checked.

    Attributes:
        steps: `time` and `runs_begun` of the server steps, [t].
        arrivals: `t`, `client`, `run` and `run_id` of the arrivals, [n].
    """

    steps: dict[str, np.ndarray] = dataclasses.field(default_factory=lambda: _none("time", "runs_begun"))
    arrivals: dict[str, np.ndarray] = dataclasses.field(default_factory=lambda: _none("t", *_NAMES))

    def end(self, start: int) -> None:
        """Removes the server steps from `start` on, before they are computed again."""
        before = self.arrivals["t"] < start
        self.steps = {name: values[:start] for name, values in self.steps.items()}
        self.arrivals = {name: values[before] for name, values in self.arrivals.items()}

    def last(self, name: str) -> Any:
        """Returns `time` or `runs_begun` of the last server step; 0 if there is none."""
        return self.steps[name][-1] if len(self.steps[name]) else 0

    def of(self, arrivals: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the earlier arrivals that share a run or a `run_id` with `arrivals`."""
        base = 1 + max(values["run"].max(initial=0) for values in (self.arrivals, arrivals))
        of_run = np.isin(_runs(self.arrivals, base), _runs(arrivals, base))
        alike = np.isin(self.arrivals["run_id"], arrivals["run_id"]) | of_run
        return {name: self.arrivals[name][alike] for name in _NAMES}

    def add(self, steps: dict[str, np.ndarray], arrivals: dict[str, np.ndarray]) -> None:
        """Appends server steps and their arrivals."""
        for known, new in ((self.steps, steps), (self.arrivals, arrivals)):
            known |= {name: np.concatenate([values, new[name]]) for name, values in known.items()}


def check_next(clock: Clock, num_clients: int, before: Any, result: Any) -> None:
    """Raises `UserError` unless `next` returned a state with `starts` and a server step of its capacity; traced.

    Args:
        clock: the clock.
        num_clients: N.
        before: state that `next` was given.
        result: result of `next`.
    """
    about = f"the clock {clock.name}: next(state, workload) must return"
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], ServerStep)):
        returned = ", ".join(type(one).__name__ for one in result) if type(result) is tuple else type(result).__name__
        raise UserError(f"{about} (state, ServerStep), it returned ({returned})")
    state, step = result
    if not hasattr(state, "starts"):
        raise UserError(f"{about} a state with a field `starts` (jaxafl.clock.Starts), {type(state).__name__} has none")
    like_given(f"the clock {clock.name}", "next", state, before, types=True)
    size = clock.capacity(num_clients)
    if step.advances is not None and jnp.ndim(step.mask) == 1:  # the steps of one version share its entries
        size = min(size, len(step.mask))
    complete = step.complete()
    for name, value in {**columns_of(complete), **per_step(complete)}.items():
        if value is None:  # `advances`
            continue
        word = _TYPES.get(name, "integer")
        shape = () if name in PER_STEP else (size,)
        found = jnp.shape(value)
        dtype = jnp.result_type(value)
        fits = dtype == word if word == "float64" else dtype.kind in {"bool": "b", "integer": "iu"}[word]
        if found != shape or not fits:
            raise UserError(
                f"{about} `{name}` as {word} of shape {shape} (capacity {size}), it is {dtype} of shape {found}"
            )


def held_by(clock: Clock, state: Any) -> list[jax.Array]:
    """Returns the versions that a clock holds; raises `UserError` unless `held` returns a list of integer arrays."""
    held = clock.held(state)
    if not isinstance(held, list | tuple) or any(jnp.result_type(one).kind not in "iu" for one in held):
        raise UserError(f"the clock {clock.name}: held(state) must return a list of arrays of integers, got {held!r}")
    return [jnp.asarray(one) for one in held]


def check_steps(
    clock: Clock,
    num_clients: int,
    steps: ServerStep,
    runs_begun: np.ndarray,
    start: int = 0,
    earlier: Earlier | None = None,
) -> None:
    """Raises `UserError` for the first server step that violates a rule.

    Args:
        clock: clock of the schedule.
        num_clients: N.
        steps: complete server steps [T, ...] (`ServerStep.complete`), on the host.
        runs_begun: int32 [T], runs started up to each server step.
        start: index of the first server step.
        earlier: earlier server steps; the checked ones are added to it.
    """
    earlier = Earlier() if earlier is None else earlier
    earlier.end(start)
    mask = np.asarray(steps.mask)
    place, entry = np.nonzero(mask)
    of_steps = {"time": np.asarray(steps.time), "runs_begun": np.asarray(runs_begun), "arrivals": mask.sum(axis=1)}
    if steps.advances is not None:
        of_steps["advances"] = np.asarray(steps.advances)
    of_arrivals = {name: np.asarray(value)[mask] for name, value in columns_of(steps).items()}
    of_arrivals |= {name: of_steps[name][place] for name in ("time", "runs_begun")}
    of_steps["t"] = start + np.arange(len(steps.time))
    of_arrivals |= {"t": start + place, "entry": entry}
    for values, rules in (
        (of_steps, _of_steps(clock, of_steps, earlier)),
        (of_arrivals, _of_arrivals(clock, num_clients, of_arrivals, earlier)),
    ):
        for broken, names, rule in rules:
            if broken.any():
                first = int(broken.argmax())
                where = f"server step {values['t'][first]}" + (
                    f", entry {entry[first]}" if values is of_arrivals else ""
                )
                given = ", ".join(f"{name}={values[name][first]}" for name in names.split())
                raise UserError(f"the clock {clock.name} makes no schedule: {where} has {given}; {rule}")
    earlier.add(of_steps, of_arrivals)


def check_ends(clock: Clock, steps: ServerStep, number: np.ndarray) -> None:
    """Raises `UserError` for a server step that waits for runs that never arrive.

    Args:
        clock: clock of the schedule.
        steps: complete server steps [T, ...] (`ServerStep.complete`), on the host.
        number: int [T], index of each server step.
    """
    never = np.isinf(steps.time)
    if never.any():
        t = int(never.argmax())
        runs = steps.runs
        late = np.flatnonzero(np.asarray(steps.mask)[t] & np.isinf(np.asarray(runs.arrived)[t]))
        names = [f"run {runs.run[t][one]} of client {runs.client[t][one]}" for one in late[:1]]
        who = (*names, "runs")[0]
        raise UserError(
            f"the clock {clock.name} waits for {who} for ever at server step {number[t]}: its duration is "
            f"infinite. Clocks that go on with the other clients are free_running, interrupting, semi_async and "
            "synchronous(deadline=...)"
        )


def _of_steps(clock: Clock, of: dict[str, np.ndarray], earlier: Earlier) -> Iterator[Rule]:
    backwards = np.diff(of["time"], prepend=earlier.last("time")) < 0
    yield ~np.isfinite(of["time"]) | backwards, "time", "times are finite, none is before that of the step before or 0"
    yield np.diff(of["runs_begun"], prepend=earlier.last("runs_begun")) < 0, "runs_begun", "`starts.count` never falls"
    if "advances" in of:
        yield ~of["advances"], "arrivals", "more arrive before it makes a version; give the clock a larger capacity"
    if Delivery.EMPTY not in clock.delivers:
        yield of["arrivals"] == 0, "arrivals", "steps without any need Delivery.EMPTY in `delivers`"


def _of_arrivals(clock: Clock, num_clients: int, of: dict[str, np.ndarray], earlier: Earlier) -> Iterator[Rule]:
    has = clock.delivers.__contains__
    yield _outside(of["client"], num_clients), "client", f"clients are 0..{num_clients - 1}"
    for name in ("version", "reference"):
        yield _outside(of[name], of["t"] + 1), name, "a version is 0..t: x_t is the newest that server step t can take"
    if not has(Delivery.STALE):
        yield of["version"] < of["t"], "version", "versions before x_t need Delivery.STALE in `delivers`"
    yield of["local_steps"] < 0, "local_steps", "they are counted from 0"
    if not has(Delivery.PARTIAL):
        yield of["local_steps"] < 1, "local_steps", "runs without any need Delivery.PARTIAL in `delivers`"
    ordered = (of["started"] >= 0) & (of["started"] <= of["arrived"]) & (of["arrived"] <= of["time"])
    yield ~ordered, "started arrived time", "0 <= started <= arrived <= time of the server step"
    yield _outside(of["run"], np.inf), "run", "a client's runs are numbered from 0"
    numbered = "runs are numbered from 0 as they start, and `starts.count` counts them"
    yield _outside(of["run_id"], of["runs_begun"]), "run_id runs_begun", numbered
    known = earlier.of(of)
    before = len(known["run"])
    joined = {name: np.concatenate([known[name], of[name]]) for name in _NAMES}
    run_id = joined["run_id"]
    run = _runs(joined, 1 + joined["run"].max(initial=0))
    if not has(Delivery.REPEATED):
        yield _later(run_id)[before:], "run_id", "to take a run again needs Delivery.REPEATED in `delivers`"
    for one, other in ((run_id, run), (run, run_id)):
        alike = (_later(one) & ~_later(one, other))[before:]
        yield (
            alike,
            "run_id client run",
            "two arrivals of one run_id are one client's same run, and the other way round",
        )
    yield of["multiplicity"] < 1, "multiplicity", "an update that arrives counts at least once"
    if not has(Delivery.MULTIPLE):
        yield of["multiplicity"] > 1, "multiplicity", "more than once needs Delivery.MULTIPLE in `delivers`"
    kinds = max(1, len(clock.kinds))
    yield _outside(of["kind"], kinds), "kind", f"it is an index into the clock's `kinds`, 0..{kinds - 1}"
    if has(Delivery.BY_CLIENT):
        yield of["client"] != of["entry"], "client entry", "by Delivery.BY_CLIENT entry i is client i"


def _none(*names: str) -> dict[str, np.ndarray]:
    return {name: np.zeros(0, float if name == "time" else np.int32) for name in names}


def _runs(arrivals: dict[str, np.ndarray], base: int) -> np.ndarray:
    """Encodes client and run < base as one number, int64 [n]; small ones, which `numpy.isin` looks up in a table."""
    return arrivals["client"].astype(np.int64) * base + arrivals["run"]


def _outside(values: np.ndarray, end: Any) -> np.ndarray:
    return (values < 0) | (values >= end)


def _later(*keys: np.ndarray) -> np.ndarray:
    """Marks the arrivals whose keys occur in an earlier arrival, bool [n]."""
    order = np.lexsort(keys)  # stable
    same = np.logical_and.reduce([key[order][1:] == key[order][:-1] for key in keys])
    later = np.zeros(len(order), bool)
    later[order[1:]] = same
    return later
