"""Paired comparison of methods: summaries, differences, times to a target, table and figure."""

from __future__ import annotations

import dataclasses
import functools
import os
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxafl.callbacks.stopping import check_target
from jaxafl.options import UserError, check_choice, check_number, shown, user_errors
from jaxafl.results.curves import AXES, check_at, falls, has_failed, reach, value
from jaxafl.results.paired import Difference, First, Summary, TimeTo, common_horizon, difference, first, summary
from jaxafl.results.paired import time_to as time_to_target
from jaxafl.results.points import in_words
from jaxafl.results.tables import Cell, table
from jaxafl.sweep.assemble import concatenated
from jaxafl.sweep.comparison_folder import gathered
from jaxafl.sweep.comparison_table import Spread, against, means, notes, times
from jaxafl.sweep.same_data import check_results

if TYPE_CHECKING:  # xarray takes a third of a second to import, so it is when a result is made
    import xarray as xr


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """Methods on the same seeds, as `jaxafl.compare` returns them.

    `Comparison({name: afl.load(path), ...})` compares files, and `Comparison.gather(folder)` reads the folder of a
    comparison, also an unfinished one.

    Attributes:
        results: name -> result of a sweep over `seed`.
        at: the default point at which summaries, table, figure and report compare runs. `"last"` is the last
            evaluation of each run, `"last5"` the mean of the last five, `"best"` the best (which favours noisy
            methods). `{"time": 100.0}` or `{"bytes": 1e9}` is a point of an axis of `time_to` that all runs pass. With
            `"carry_on": True` added to it, shorter runs count with their last evaluation.

    Raises:
        ValueError: the results are not sweeps over the same seeds only, their data differ, or `at` is no point.
    """

    results: Mapping[str, xr.Dataset]
    at: str | Mapping[str, Any] = "last"

    def __post_init__(self) -> None:
        check_at(self.at)
        if not isinstance(self.results, Mapping) or not self.results:
            raise UserError(f"a Comparison needs name -> result of a sweep over seeds, got {shown(self.results)}")
        object.__setattr__(self, "results", dict(self.results))
        seeds = {name: _seeds(name, result) for name, result in self.results.items()}
        for name, chosen in seeds.items():
            if chosen != self.seeds:
                raise UserError(
                    f"{name} ran on the seeds {chosen}, {next(iter(seeds))} on {self.seeds}: give all the same"
                )
        check_results(self.results)

    @property
    def seeds(self) -> list[int]:
        """The seeds of every method."""
        return _seeds(*next(iter(self.results.items())))

    @functools.cached_property
    def dataset(self) -> xr.Dataset:
        """The evaluations of all runs, [method, seed, evaluation]. Shorter runs are padded with missing values."""
        evaluated = [
            result[
                [
                    name
                    for name, values in result.variables.items()
                    if set(values.dims) <= {"seed", "evaluation"} and values.dtype.kind in "iuf"
                ]
            ]
            for result in self.results.values()
        ]
        return concatenated(evaluated, "method").assign_coords(method=list(self.results)).load()

    @classmethod
    def gather(cls, folder: str | os.PathLike[str]) -> Comparison:
        """Returns the finished or unfinished comparison of a folder. Unfinished runs have missing values.

        Args:
            folder: the folder of `compare(folder=...)`.

        Raises:
            ValueError: this is not the folder of a comparison, or a method has no finished run.
        """
        return cls(*gathered(folder))

    @property
    def failed(self) -> dict[str, list[int]]:
        """Mapping of each method with failed runs to their seeds. A run fails if its parameters are not finite."""
        found = {name: [seed for seed, run in self._runs(name).items() if has_failed(run)] for name in self.results}
        return {name: seeds for name, seeds in found.items() if seeds}

    def summary(
        self, metric: str = "accuracy", at: str | Mapping[str, Any] | None = None, confidence: float = 0.95
    ) -> dict[str, Summary]:
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
        words = in_words(self.point(at))
        return {name: summary(one, confidence)._replace(at=words) for name, one in self._values(metric, at).items()}

    def differences(
        self,
        reference: str,
        metric: str = "accuracy",
        at: str | Mapping[str, Any] | None = None,
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
        words = in_words(self.point(at))
        base = values.pop(reference)
        lower = falls(self.results.values(), metric, "differences")
        found = {name: difference(one, base, lower, confidence) for name, one in values.items()}
        return {name: one._replace(at=words) for name, one in found.items()}

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
        found = self._reached(target, metric, axis)
        horizon = common_horizon(found.values())
        return {name: time_to_target(*pair, horizon) for name, pair in found.items()}

    def first_to(self, target: float, reference: str, metric: str = "accuracy", axis: str = "time") -> dict[str, First]:
        """Returns name -> number of seeds on which it reaches a target before or after the reference, and a sign test.

        Args:
            target, metric, axis: as in `time_to`.
            reference: name of a method.

        Raises:
            ValueError: as `time_to`, or the method does not exist.
        """
        check_choice("first_to", "reference", reference, tuple(self.results))
        found = self._reached(target, metric, axis)
        base = found.pop(reference)
        return {name: first(*pair, *base) for name, pair in found.items()}

    def table(
        self,
        format: str = "markdown",
        *,
        metrics: str | Sequence[str] = "accuracy",
        at: str | Mapping[str, Any] | None = None,
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
        check_number("table", "confidence", confidence, above=0, below=1)
        metrics = [metrics] if isinstance(metrics, str) else list(metrics)
        targets = [float(targets)] if isinstance(targets, int | float) else list(targets)
        columns = [means(self, metric, at, spread, confidence) for metric in metrics]
        if reference is not None:
            columns.append(against(self, reference, metrics[0], at, confidence))
        columns += [times(self, target, metrics[0], axis) for target in targets]
        rows = [[Cell(name), *(column[name] for _, column in columns)] for name in self.results]
        body = table(format, ["method", *(header for header, _ in columns)], rows)
        said = notes(self, at, spread, confidence, reference, metrics[0] if targets else "", axis)
        mark = "% " if format == "latex" else ""
        below = textwrap.fill(said, 80, initial_indent=mark, subsequent_indent=mark)
        return f"{body}\n{below if mark else chr(10) + below}"

    def plot(self, **options: Any) -> Any:
        """Plots the comparison with a mark at its point: `jaxafl.plot.comparison(self, **options)`."""
        from jaxafl.plot import comparison

        return comparison(self, **options)

    def _runs(self, name: str) -> dict[int, xr.Dataset]:
        runs = self.dataset.isel(method=list(self.results).index(name))
        return {seed: runs.isel(seed=place) for place, seed in enumerate(self.seeds)}

    def __repr__(self) -> str:
        failed = ", ".join(f"{name} on seeds {seeds}" for name, seeds in self.failed.items())
        return f"Comparison({', '.join(self.results)}{f'; failed: {failed}' if failed else ''})"

    def _check(self, metric: str) -> None:
        known = [str(name) for name, values in self.dataset.data_vars.items() if "evaluation" in values.dims]
        check_choice("compare", "metric", metric, tuple(known))

    def point(self, at: str | Mapping[str, Any] | None = None) -> str | Mapping[str, Any]:
        """Returns the checked point of comparison; `None` takes `Comparison.at`."""
        chosen = self.at if at is None else at
        check_at(chosen)
        return chosen

    def _values(self, metric: str, at: str | Mapping[str, Any] | None) -> dict[str, np.ndarray]:
        self._check(metric)
        at = self.point(at)
        found = {}
        for name in self.results:
            with user_errors(f"method {name}"):
                found[name] = np.asarray([value(run, metric, at) for run in self._runs(name).values()])
        return found

    def _reached(self, target: float, metric: str, axis: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        self._check(metric)
        check_choice("time_to", "axis", axis, tuple(AXES))
        check_target("time_to", metric, target)
        falls(self.results.values(), metric, "time_to")
        found = {}
        for name in self.results:
            pairs = [reach(run, target, metric, axis) for run in self._runs(name).values()]
            found[name] = np.asarray([at for at, _ in pairs]), np.asarray([reached for _, reached in pairs])
        return found


def _seeds(name: str, result: Any) -> list[int]:
    swept = getattr(getattr(result, "loss", None), "dims", ())
    if swept != ("seed", "evaluation"):
        raise UserError(
            f'{name}: a comparison takes results of sweeps over seeds, afl.sweep(sim, {{"seed": range(5)}}, ...), and '
            f"over nothing else; got {f'dimensions {swept}' if swept else shown(result)}"
        )
    return [int(seed) for seed in result.seed.values]
