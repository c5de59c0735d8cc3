"""Paired comparison of methods: runs and their folder, summaries, differences, times to a target, tables."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack

import numpy as np

from jaxafl.callbacks.base import Callback, file_name
from jaxafl.callbacks.identity import content_of
from jaxafl.callbacks.limits import check_target
from jaxafl.callbacks.store import check_folder
from jaxafl.options import (
    UserError,
    as_path,
    check_choice,
    check_number,
    check_whole,
    did_you_mean,
    named,
    shown,
    user_errors,
)
from jaxafl.results.curves import AXES, check_at, falls, has_failed, known_until, percent, reach, scale_of, value
from jaxafl.results.failures import warned
from jaxafl.results.points import in_words
from jaxafl.results.tables.text import Cell, decimals, header_of, table
from jaxafl.simulation import Simulation
from jaxafl.study.paired import Difference, Summary, TimeTo, difference, summary
from jaxafl.study.paired import time_to as time_to_target
from jaxafl.sweep.folder import gather
from jaxafl.sweep.members import Work
from jaxafl.sweep.run import SweepOptions, completed

if TYPE_CHECKING:  # xarray takes a third of a second to import, so it is when a result is made
    import xarray as xr

T = TypeVar("T")
_FORM = {"source", "files", "form", "preprocessing"}  # differ between equal samples, so they must not be compared
_METHODS = "methods.json"
_SIGNS = str.maketrans("-", "−")
At = str | Mapping[str, Any]  # a point at which runs are compared
Spread = Literal["std", "interval"]
"""Spread of a mean: a standard deviation, or an interval."""
Column = tuple[str, dict[str, Cell]]
"""Header, and the cell of each method by name."""


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """Methods on the same seeds, as `jaxafl.compare` returns them.

    `Comparison({name: afl.load(path), ...})` compares files, and `Comparison.gather(folder)` reads the folder of a
    comparison, also an unfinished one.

    Attributes:
        results: name -> result of a sweep over `seed`.
        at: the default point at which summaries, table, figure and report compare runs. `"last"` is the last
            evaluation of each run, `"last5"` the mean of the last five, `"best"` the best (which favours noisy
            methods). `{"time": 100.0}` or `{"bytes": 1e9}` is a point of an axis of `time_to` that all runs pass.

    Raises:
        ValueError: the results are not sweeps over the same seeds only, their data differ, or `at` is no point.
    """

    results: Mapping[str, xr.Dataset]
    at: At = "last"

    def __post_init__(self) -> None:
        check_at(self.at)
        if not isinstance(self.results, Mapping) or not self.results:
            raise UserError(f"a Comparison needs name -> result of a sweep over seeds, got {shown(self.results)}")
        object.__setattr__(self, "results", dict(self.results))
        first, seeds = next(iter(self.results)), self.seeds
        base = json.loads(self.results[first].attrs.get("data", "{}"))
        for name, result in self.results.items():
            if (chosen := _seeds(name, result)) != seeds:
                raise UserError(f"{name} ran on the seeds {chosen}, {first} on {seeds}: give all the same")
            one = json.loads(result.attrs.get("data", "{}"))
            shared = base.keys() & one.keys() - _FORM
            if why := differing({key: base[key] for key in shared}, {key: one[key] for key in shared}):
                refuse_data(first, name, why)

    @property
    def seeds(self) -> list[int]:
        """The seeds of every method."""
        return _seeds(*next(iter(self.results.items())))

    @classmethod
    def gather(cls, folder: str | os.PathLike[str]) -> Comparison:
        """Returns the finished or unfinished comparison of a folder. Unfinished runs have missing values.

        Args:
            folder: the folder of `compare(folder=...)`.

        Raises:
            ValueError: this is not the folder of a comparison, or a method has no finished run.
        """
        path = as_path(folder)
        if not is_comparison(path):
            raise UserError(f"{path} is not the folder of a comparison: there is no {_METHODS} in it")
        about = json.loads((path / _METHODS).read_text())
        found = {name: gather(path / own) for name, own in about["methods"].items()}
        return cls(found, compared_at(about["until"], found))

    @property
    def failed(self) -> dict[str, list[int]]:
        """Mapping of each method with failed runs to their seeds. A run fails if its parameters are not finite."""
        found = {name: [seed for seed, run in self._runs(name).items() if has_failed(run)] for name in self.results}
        return {name: seeds for name, seeds in found.items() if seeds}

    def summary(self, metric: str = "accuracy", at: At | None = None, confidence: float = 0.95) -> dict[str, Summary]:
        """Returns name -> values by seed, their mean, standard deviation and Student's t interval.

        A failed run has no value, and its method no mean, since the mean of its other runs would be biased.

        Args:
            metric: metric of the evaluations, e.g. `"accuracy"`, `"loss"`, `"validation_accuracy"`.
            at: the point of comparison; `None` takes `Comparison.at`.
            confidence: confidence level of the interval.

        Raises:
            ValueError: the metric or the point does not exist.
        """
        check_number("summary", "confidence", confidence, above=0, below=1)
        return {name: summary(one, confidence) for name, one in self._values(metric, at).items()}

    def differences(
        self,
        reference: str,
        metric: str = "accuracy",
        at: At | None = None,
        confidence: float = 0.95,
    ) -> dict[str, Difference]:
        """Returns name -> values minus those of the reference by seed, with an interval, a p value and a verdict.

        Args:
            reference: name of a method.
            metric, at, confidence: as in `summary`.

        Raises:
            ValueError: the method, the metric or the point does not exist, or the metric's better direction is unknown.
        """
        check_choice("differences", "reference", reference, tuple(self.results))
        check_number("differences", "confidence", confidence, above=0, below=1)
        values = self._values(metric, at)
        base = values.pop(reference)
        lower = falls(self.results.values(), metric, "differences")
        return {name: difference(one, base, lower, confidence) for name, one in values.items()}

    def time_to(self, target: float, metric: str = "accuracy", axis: str = "time") -> dict[str, TimeTo]:
        """Returns name -> points at which the runs first reach a target. Shorter runs are censored, not dropped.

        Args:
            target: the value that the metric has to reach; a loss has to fall to it.
            metric: metric of the evaluations.
            axis: `"time"` (simulated seconds), `"server_steps"`, `"client_updates"`, `"local_steps"` or `"bytes"`.

        Raises:
            ValueError: the metric or the axis does not exist, the metric's better direction is unknown, or the target
                of an accuracy is not in [0, 1].
        """
        self._check(metric)
        check_choice("time_to", "axis", axis, tuple(AXES))
        check_target("time_to", metric, target)
        falls(self.results.values(), metric, "time_to")
        found = {}
        for name in self.results:
            pairs = [reach(run, target, metric, axis) for run in self._runs(name).values()]
            found[name] = time_to_target(*map(np.asarray, zip(*pairs, strict=True)))
        return found

    def table(
        self,
        format: str = "markdown",
        *,
        metrics: str | Sequence[str] = "accuracy",
        at: At | None = None,
        reference: str | None = None,
        targets: float | Sequence[float] = (),
        axis: str = "time",
        spread: Spread = "std",
        confidence: float = 0.95,
    ) -> str:
        """Returns a table for a paper: one row per method, the best value of each column bold.

        Below it (in LaTeX as comments) are sentences about the point, ±, the test, and the number of comparisons.

        Args:
            format: `"markdown"` or `"latex"` (booktabs).
            metrics: columns of means over seeds with their spread; accuracies in percent. A method with failed runs
                shows their number instead, as does one with missing runs.
            at: the point of comparison, named below the table; `None` takes `Comparison.at`.
            reference: a method; adds a column of the paired differences to it in the first metric, with intervals.
            targets: targets of the first metric; adds columns of the median time to each and the number of runs that
                reach it. If fewer than half do, the time is `> t`, t being the end of the longest run that does not.
                It is `never` if those that do not have failed.
            axis: axis of these times, as in `time_to`.
            spread: `"std"`: mean ± one standard deviation. `"interval"`: mean and Student's t interval.
            confidence: confidence of all intervals. 1 - 0.05/k corrects k comparisons (Bonferroni).

        Raises:
            ValueError: the format, a metric, the point, the method, a target, the axis or the spread does not exist.
        """
        check_choice("table", "spread", spread, ("std", "interval"))
        metrics = [metrics] if isinstance(metrics, str) else list(metrics)
        targets = [float(targets)] if isinstance(targets, int | float) else list(targets)
        header, rows, said = self.cells(metrics, at, reference, targets, axis, spread, confidence)
        body = table(format, header, rows)
        mark = "% " if format == "latex" else ""
        below = textwrap.fill(said, 80, initial_indent=mark, subsequent_indent=mark)
        return f"{body}\n{below if mark else chr(10) + below}"

    def cells(
        self,
        metrics: Sequence[str],
        at: At | None,
        reference: str | None,
        targets: Sequence[float],
        axis: str,
        spread: Spread,
        confidence: float,
    ) -> tuple[list[str], list[list[Cell]], str]:
        """Returns what `table` shows, for its options: the names of the columns, the rows, and the sentences below."""
        columns = [_means(self, metric, at, spread, confidence) for metric in metrics]
        if reference is not None:
            columns.append(_against(self, reference, metrics[0], at, confidence))
        columns += [_times(self, target, metrics[0], axis) for target in targets]
        rows = [[Cell(name), *(column[name] for _, column in columns)] for name in self.results]
        said = _notes(self, at, spread, confidence, reference, metrics[0] if targets else "", axis)
        return ["method", *(header for header, _ in columns)], rows, said

    def plot(self, **options: Any) -> Any:
        """Plots the comparison with a mark at its point: `jaxafl.plot.comparison(self, **options)`."""
        from jaxafl.plot import comparison

        return comparison(self, **options)

    def _runs(self, name: str) -> dict[int, xr.Dataset]:
        return {seed: self.results[name].isel(seed=place) for place, seed in enumerate(self.seeds)}

    def __repr__(self) -> str:
        failed = ", ".join(f"{name} on seeds {seeds}" for name, seeds in self.failed.items())
        return f"Comparison({', '.join(self.results)}{f'; failed: {failed}' if failed else ''})"

    def _check(self, metric: str) -> None:
        first, *others = self.results.values()
        known = [str(name) for name, values in first.data_vars.items() if values.dims == ("seed", "evaluation")]
        check_choice("compare", "metric", metric, tuple(name for name in known if all(name in one for one in others)))

    def point(self, at: At | None = None) -> At:
        """Returns the checked point of comparison; `None` takes `Comparison.at`."""
        chosen = self.at if at is None else at
        check_at(chosen)
        return chosen

    def _values(self, metric: str, at: At | None) -> dict[str, np.ndarray]:
        self._check(metric)
        at = self.point(at)
        found = {}
        for name in self.results:
            with user_errors(f"method {name}"):
                found[name] = np.asarray([value(run, metric, at) for run in self._runs(name).values()])
        return found


@named
def compare(
    methods: Mapping[str, Simulation],
    seeds: int | Iterable[int],
    server_steps: int | Mapping[str, int] | None = None,
    *,
    until: Mapping[str, float] | None = None,
    eval_every: int | Mapping[str, int] | None = None,
    callbacks: Sequence[Callback] | Callback = (),
    folder: str | os.PathLike[str] | None = None,
    **options: Unpack[SweepOptions],
) -> Comparison:
    """Runs each method in a sweep over the same seeds.

    Every draw is keyed by the seed and its purpose. Under one seed, methods with the same model start from the same
    parameters. With the same durations and local training, the k-th run of a client takes the same time and trains on
    the same mini-batches. Methods with the same clock and local training have the same schedule, bit for bit. A clock
    with another buffer, concurrency or protocol, or a server that sets the local steps, starts other clients at other
    times, which is not paired. Seeds do not change the partition of the data, so intervals do not cover it.

    Args:
        methods: name -> simulation, all with the same data.
        seeds: the number of seeds (0, 1, ...), or the seeds.
        server_steps: T, of all methods or by name. Optional with an exact limit (time, updates, bytes or ε), unless the
            schedule depends on the training.
        until: limits of every run, as in `Simulation.run`, e.g. `{"accuracy": 0.9, "time": 3600}`. If time is the only
            limit, and no run ends before it, `Comparison.at` is that time; else it is the end of each run.
        eval_every: server steps between evaluations, of all methods or by name; it is the resolution of times to a
            target.
        callbacks: as in `jaxafl.sweep`.
        folder: the parent of one sweep folder per method. The same call resumes from it, also with added methods.
            `Comparison.gather(folder)` reads it.
        **options: options of `jaxafl.sweep`: `devices`, `executor`, `part`, `checkpoint_every`, `together`,
            `lanes`, `chunk`, `observe`, `diagnostics`, `metrics`, `progress`, `deterministic`. `progress=True` shows
            a bar per method; by default nothing is shown, as by `Simulation.run`. Methods run in order; devices and
            executors share the seeds of one method.

    Returns:
        The results of all methods, with their paired statistics.

    Raises:
        ValueError, TypeError: an option cannot work; raised before the first run.

    Examples:
        >>> import jaxafl as afl
        >>> problem = afl.theory.quadratic(clients=4)
        >>> client = afl.Client(learning_rate=0.1, steps=2, batch_size=None)
        >>> clock = afl.clock.free_running(concurrency=2, durations=afl.clock.constant(1.0))
        >>> methods = {
        ...     name: afl.Simulation(problem.data, problem.model, client, server, clock)
        ...     for name, server in {"FedAsync": afl.server.fedasync(), "FedBuff": afl.server.fedbuff()}.items()
        ... }
        >>> found = afl.compare(methods, seeds=2, server_steps=10)
        >>> found.seeds, list(found.results), list(found.differences("FedAsync", metric="loss"))
        ([0, 1], ['FedAsync', 'FedBuff'], ['FedBuff'])
    """
    if not isinstance(methods, Mapping) or not methods:
        raise TypeError(f"compare needs name -> Simulation, got {shown(methods)}")
    chosen = seeds_of("compare", seeds)
    limits = dict(until or {})
    steps, every = by_name("server_steps", server_steps, methods), by_name("eval_every", eval_every, methods)
    given: dict[str, Any] = {**options, "until": until, "callbacks": callbacks}
    works = {}
    for name, one in methods.items():
        labels = {"method": name}
        with user_errors(f"method {name}"):
            works[name] = Work(
                one, {"seed": chosen}, steps[name], eval_every=every[name], owner="compare", labels=labels, **given
            )
    (first, base), *others = methods.items()
    for name, other in others:
        if base.data is not other.data and content_of(base.data) != content_of(other.data):
            refuse_data(first, name, differing(base.data.description, other.data.description) or "other samples")
    folders = _begun(folder, methods, limits)
    found = {}
    for name in methods:  # a finished method releases its schedules
        found[name] = warned(completed(works.pop(name), folders[name], name=name, **options))
    return Comparison(found, compared_at(limits, found))


def _seeds(name: str, result: Any) -> list[int]:
    swept = getattr(getattr(result, "loss", None), "dims", ())
    if swept != ("seed", "evaluation"):
        raise UserError(
            f'{name}: a comparison takes results of sweeps over seeds, afl.sweep(sim, {{"seed": range(5)}}, ...), and '
            f"over nothing else; got {f'dimensions {swept}' if swept else shown(result)}"
        )
    return [int(seed) for seed in result.seed.values]


def refuse_data(first: str, name: str, why: str) -> None:
    """Raises `UserError` for two methods with different data."""
    raise UserError(
        f"compare: {first} and {name} have different data ({why}), so that their runs are no pairs: give all methods "
        'the same data. Data are compared by a sweep: afl.sweep(sim, {"data": [one, other], "seed": range(5)}, ...)'
    )


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Returns the entries in which two descriptions differ, as text."""
    keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
    return ", ".join(f"{key} {one.get(key)} and {other.get(key)}" for key in keys)


def _means(comparison: Any, metric: str, at: Any, spread: Spread, confidence: float) -> Column:
    """Returns the column of the means of a metric, with standard deviations or intervals."""
    found = comparison.summary(metric, at, confidence)
    scale = scale_of(metric)
    lower = falls(comparison.results.values(), metric, "table")
    places = decimals([scale * (one.std if spread == "std" else (one.high - one.low) / 2) for one in found.values()])
    best = (min if lower else max)((one.mean for one in found.values() if np.isfinite(one.mean)), default=None)
    cells = {}
    for name, one in found.items():
        finite = np.isfinite(one.values)
        text = f"{scale * one.mean:.{places}f}"
        if not finite.all():
            word = "infinite" if np.isinf(one.values).any() else "missing"
            text = f"{'failed' if name in comparison.failed else word} ({(~finite).sum()}/{len(finite)})"
        elif len(finite) > 1:
            low, high = (f"{scale * edge:.{places}f}" for edge in (one.low, one.high))
            text += f" ± {scale * one.std:.{places}f}" if spread == "std" else f" [{low}, {high}]"
        cells[name] = Cell(text.translate(_SIGNS), one.mean == best)
    return header_of(metric), cells


def _against(comparison: Any, reference: str, metric: str, at: Any, confidence: float) -> Column:
    """Returns the column of the differences from a reference, with intervals and verdicts."""
    found = comparison.differences(reference, metric, at, confidence)
    scale = scale_of(metric)
    places = decimals([scale * (one.high - one.low) / 2 for one in found.values()])
    cells = {reference: Cell("—")}
    for name, one in found.items():
        mean, low, high = (f"{scale * number:+.{places}f}" for number in (one.mean, one.low, one.high))
        text = f"{mean} [{low}, {high}], {one.verdict}" if np.isfinite(one.low) else one.verdict
        text = text if np.isfinite(one.mean) else "a run failed, or is missing"
        cells[name] = Cell(text.translate(_SIGNS))
    return f"minus {reference}, {100 * confidence:g} % interval", cells


def _times(comparison: Any, target: float, metric: str, axis: str) -> Column:
    """Returns the column of the times to a target."""
    found = comparison.time_to(target, metric, axis)
    unit = AXES[axis]
    best = min(one.median for one in found.values())
    cells = {}
    for name, one in found.items():
        ends = one.at[~one.reached & np.isfinite(one.at)]
        half = one.median < np.inf
        shown = one.median if half else ends.max(initial=0.0)
        text = f"{'' if half else '> '}{_short(shown / unit.scale)}" if half or shown > 0 else "never"
        cells[name] = Cell(f"{text} ({one.reached.sum()}/{len(one.reached)})", half and one.median == best)
    amount = f"{scale_of(metric) * target:g}{' %' * percent(metric)}"
    header = unit._replace(name=f"{unit.name.removeprefix('simulated ')} to {amount}").label
    return header, cells


def _notes(
    comparison: Any, at: Any, spread: Spread, confidence: float, reference: str | None, times_to: str, axis: str
) -> str:
    """Returns sentences about the point, spreads, tests and times of a table; `times_to`: their metric, "" without."""
    seeds, percent = len(comparison.seeds), f"{100 * confidence:g} %"
    found = [f"Values: {in_words(comparison.point(at))}."]
    if seeds > 1:
        deviation = f"± is one standard deviation over {seeds} seeds."
        interval = f"Brackets behind means are {percent} intervals of Student's t over {seeds} seeds."
        found.append(deviation if spread == "std" else interval)
    if reference is not None and seeds > 1:
        level = f"{100 * (1 - confidence):.3g} %"
        found.append(f"Differences are paired by seed, with intervals and verdicts of Student's t at {level}.")
        if len(comparison.results) > 2:
            found.append("Several comparisons are not corrected: each has this chance of a verdict by chance alone.")
    if times_to:
        found.append(
            f"{AXES[axis].name.capitalize()} to values of the {times_to.replace('_', ' ')}: medians over seeds (Kaplan "
            "and Meier), with the runs that reach them in brackets."
        )
    return " ".join(found)


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"


def _begun(folder: Any, names: Iterable[str], until: Mapping[str, float]) -> dict[str, pathlib.Path | None]:
    """Returns the folder of each method. Raises `ValueError` if the folder holds runs with other limits."""
    if folder is None:
        return dict.fromkeys(names)
    path = check_folder(folder)
    about = path / _METHODS
    known = json.loads(about.read_text()) if about.is_file() else {"until": dict(until), "methods": {}}
    if known["until"] != until:
        raise UserError(
            f"{path} holds runs until {known['until']}, not {dict(until)}; name another folder, or the same limits"
        )
    folders = {name: file_name(name) for name in names}
    about.write_text(json.dumps(known | {"methods": folders | known["methods"]}))
    return {name: path / own for name, own in folders.items()}


def is_comparison(folder: str | os.PathLike[str]) -> bool:
    """Returns True if this is the folder of a comparison."""
    return (as_path(folder) / _METHODS).is_file()


def compared_at(limits: Mapping[str, float], found: Mapping[str, Any]) -> str | dict[str, float]:
    """Returns the limit of simulated time if it is the only limit and all runs that did not fail have passed it."""
    seconds = limits.get("time", np.inf)
    passed = all(
        ((known_until(one, one.final_time) >= seconds) | (one.failed_step >= 0)).all() for one in found.values()
    )
    return {"time": seconds} if set(limits) == {"time"} and passed else "last"


def seeds_of(owner: str, seeds: Any, first: int = 0) -> list[int]:
    """Returns the seeds; a number n means n seeds from `first` on."""
    if isinstance(seeds, int | np.integer) or not isinstance(seeds, Iterable):
        return list(range(first, first + check_whole(owner, "seeds", seeds)))
    found = [check_whole(owner, "seeds", seed, least=0, most=2**64 - 1) for seed in seeds]
    if not found or len(set(found)) < len(found):
        raise UserError(f"{owner}: seeds must be at least one, each once; got {found}")
    return found


def by_name(option: str, given: T | Mapping[str, T], methods: Iterable[str]) -> dict[str, T]:
    """Returns name -> option for every method, from one value or a mapping."""
    if not isinstance(given, Mapping):
        return dict.fromkeys(methods, given)
    if set(given) != set(methods):
        close = did_you_mean(next(iter(set(given) - set(methods)), ""), methods)
        raise UserError(
            f"compare: {option} by name needs {', '.join(methods)}; got {', '.join(map(str, given))}{close}"
        )
    return {name: given[name] for name in methods}
