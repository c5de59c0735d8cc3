"""What a paired comparison of methods says: summaries, differences, times to a target, its table and its figure."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxafl.callbacks.stopping import check_target
from jaxafl.options import UserError, check_choice, check_number, shown, user_errors
from jaxafl.results.curves import AXES, check_at, falls, has_failed, reach, value
from jaxafl.results.paired import Difference, First, Summary, TimeTo, common_horizon, difference, first, summary
from jaxafl.results.paired import time_to as time_to_target
from jaxafl.results.points import in_words
from jaxafl.results.tables import Cell, decimals, table
from jaxafl.sweep.assemble import concatenated
from jaxafl.sweep.same_data import check_results

if TYPE_CHECKING:  # xarray takes a third of a second to import, so it is when a result is made
    import xarray as xr

_SIGNS = str.maketrans("-", "−")


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """Methods on the same seeds. `jaxafl.compare` makes one; so do files, `Comparison({name: afl.load(path), ...})`,
    and the folder of a comparison under way, `Comparison({name: afl.gather(f"{folder}/{name}"), ...})`.

    Attributes:
        results: name -> result of a sweep over `seed`.
        at: the point at which its summaries, table, figure and report compare runs, unless they are given another one:
            the `"last"` evaluation of each run, the mean of the last five, `"last5"`, the `"best"` (which flatters
            a noisy method), or a point of an axis of `time_to` that all runs pass: `{"time": 100.0}`, `{"bytes": 1e9}`.
            With `"carry_on": True` beside it, runs that end before count with their last evaluation.

    Raises:
        ValueError: these are not sweeps over the same seeds and nothing else, on the same data.
    """

    results: Mapping[str, xr.Dataset]
    at: str | Mapping[str, Any] = "last"

    def __post_init__(self) -> None:
        check_at(self.at)
        if not isinstance(self.results, Mapping) or not self.results:
            raise UserError(f"a Comparison needs name -> result of a sweep over seeds, got {shown(self.results)}")
        object.__setattr__(self, "results", dict(self.results))
        seeds = {name: _seeds(name, result) for name, result in self.results.items()}
        for name, own in seeds.items():
            if own != self.seeds:
                raise UserError(
                    f"{name} ran on the seeds {own}, {next(iter(seeds))} on {self.seeds}: give all the same"
                )
        check_results(self.results)

    @property
    def seeds(self) -> list[int]:
        """On which every method ran."""
        return _seeds(*next(iter(self.results.items())))

    @functools.cached_property
    def dataset(self) -> xr.Dataset:
        """The evaluations of all runs, with dimensions `method`, `seed` and `evaluation`; those that a shorter run does
        not have are missing."""
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

    @property
    def failed(self) -> dict[str, list[int]]:
        """name -> seeds on which its parameters stopped being finite, of methods where there are any."""
        found = {name: [seed for seed, run in self._runs(name).items() if has_failed(run)] for name in self.results}
        return {name: seeds for name, seeds in found.items() if seeds}

    def summary(
        self, metric: str = "accuracy", at: str | Mapping[str, Any] | None = None, confidence: float = 0.95
    ) -> dict[str, Summary]:
        """name -> values by seed, their mean, standard deviation and Student's t interval.

        A run that failed has no value, and its method no mean: that of the others would flatter it.

        Args:
            metric: of the evaluations, e.g. `"accuracy"`, `"loss"`, `"validation_accuracy"`.
            at: another point than that of the comparison.
            confidence: of the interval.

        Raises:
            ValueError: there is no such metric or point.
        """
        check_number("summary", "confidence", confidence, above=0, below=1)
        words = in_words(self._at(at))
        return {name: summary(own, confidence)._replace(at=words) for name, own in self._values(metric, at).items()}

    def differences(
        self,
        reference: str,
        metric: str = "accuracy",
        at: str | Mapping[str, Any] | None = None,
        confidence: float = 0.95,
    ) -> dict[str, Difference]:
        """name -> values minus those of the reference, seed by seed, with an interval, a p value and a verdict.

        Args:
            reference: the name of a method.
            metric, at, confidence: as in `summary`.
        """
        check_choice("differences", "reference", reference, tuple(self.results))
        check_number("differences", "confidence", confidence, above=0, below=1)
        values, words = self._values(metric, at), in_words(self._at(at))
        base = values.pop(reference)
        lower = falls(self.results.values(), metric, "differences")
        found = {name: difference(own, base, lower, confidence) for name, own in values.items()}
        return {name: own._replace(at=words) for name, own in found.items()}

    def time_to(self, target: float, metric: str = "accuracy", axis: str = "time") -> dict[str, TimeTo]:
        """name -> when its runs first reach a target; runs that end before are censored, not left out.

        Args:
            target: that the metric has to reach, or fall to where it is a loss.
            metric: of the evaluations.
            axis: `"time"` (simulated seconds), `"server_steps"`, `"client_updates"`, `"local_steps"` or `"bytes"`.
        """
        found = self._reached(target, metric, axis)
        horizon = common_horizon(found.values())
        return {name: time_to_target(*pair, horizon) for name, pair in found.items()}

    def first_to(self, target: float, reference: str, metric: str = "accuracy", axis: str = "time") -> dict[str, First]:
        """name -> on how many seeds it reaches a target before the reference does, or after it, with a sign test.

        Args:
            target, metric, axis: as in `time_to`.
            reference: the name of a method.
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
    ) -> str:
        """A table for a paper: a row per method, the best of each column bold.

        Args:
            format: `"markdown"` or `"latex"` (booktabs).
            metrics: columns of mean ± standard deviation over seeds; accuracies in percent. Where runs failed there is
                the number of those that did not instead.
            at: another point than that of the comparison; the headers say which.
            reference: adds, for the first metric, the difference to this method with its 95 % interval.
            targets: columns of the median time to a target of the first metric and how many runs reached it; `> t`
                where fewer than half did, t being the end of the last that did not.
            axis: of these times, as in `time_to`.
        """
        metrics = [metrics] if isinstance(metrics, str) else list(metrics)
        targets = [float(targets)] if isinstance(targets, int | float) else list(targets)
        columns = [self._means(metric, at) for metric in metrics]
        if reference is not None:
            columns.append(self._against(reference, metrics[0], at))
        columns += [self._times(target, metrics[0], axis) for target in targets]
        rows = [[Cell(name), *(column[name] for _, column in columns)] for name in self.results]
        return table(format, ["method", *(header for header, _ in columns)], rows)

    def plot(self, **options: Any) -> Any:
        """The figure, with a mark at the point of comparison: `jaxafl.plot.comparison(self, **options)`, see there."""
        from jaxafl.plot import comparison

        return comparison(self, **options)

    def _runs(self, name: str) -> dict[int, xr.Dataset]:
        own = self.dataset.isel(method=list(self.results).index(name))
        return {seed: own.isel(seed=place) for place, seed in enumerate(self.seeds)}

    def __repr__(self) -> str:
        failed = ", ".join(f"{name} on seeds {seeds}" for name, seeds in self.failed.items())
        return f"Comparison({', '.join(self.results)}{f'; failed: {failed}' if failed else ''})"

    def _check(self, metric: str) -> None:
        known = [str(name) for name, values in self.dataset.data_vars.items() if "evaluation" in values.dims]
        check_choice("compare", "metric", metric, tuple(known))

    def _at(self, at: str | Mapping[str, Any] | None) -> str | Mapping[str, Any]:
        chosen = self.at if at is None else at
        check_at(chosen)
        return chosen

    def _values(self, metric: str, at: str | Mapping[str, Any] | None) -> dict[str, np.ndarray]:
        self._check(metric)
        at = self._at(at)
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
            found[name] = np.asarray([at for at, _ in pairs]), np.asarray([there for _, there in pairs])
        return found

    def _means(self, metric: str, at: str | Mapping[str, Any] | None) -> tuple[str, dict[str, Cell]]:
        found, scale = self.summary(metric, at), _scale(metric)
        lower = falls(self.results.values(), metric, "table")
        places, best = decimals([scale * own.std for own in found.values()]), _best(found, lower)
        cells = {}
        for name, own in found.items():
            whole = np.isfinite(own.values)
            text = f"{scale * own.mean:.{places}f}"
            if not whole.all():
                text = f"{'failed' if name in self.failed else 'missing'} ({(~whole).sum()}/{len(whole)})"
            elif len(whole) > 1:
                text += f" ± {scale * own.std:.{places}f}"
            cells[name] = Cell(text.translate(_SIGNS), own.mean == best)
        return f"{_named(metric)} {in_words(self._at(at))}", cells

    def _against(self, reference: str, metric: str, at: str | Mapping[str, Any] | None) -> tuple[str, dict[str, Cell]]:
        found, scale = self.differences(reference, metric, at), _scale(metric)
        places = decimals([scale * (own.high - own.low) / 2 for own in found.values()])
        cells = {reference: Cell("—")}
        for name, own in found.items():
            mean, low, high = (f"{scale * number:+.{places}f}" for number in (own.mean, own.low, own.high))
            text = f"{mean} [{low}, {high}], {own.verdict}" if np.isfinite(own.low) else own.verdict
            text = text if np.isfinite(own.mean) else "a run failed, or is missing"
            cells[name] = Cell(text.translate(_SIGNS))
        return f"minus {reference} {in_words(self._at(at))}, 95 % interval", cells

    def _times(self, target: float, metric: str, axis: str) -> tuple[str, dict[str, Cell]]:
        found, unit = self.time_to(target, metric, axis), AXES[axis]
        best = min((own.median for own in found.values() if np.isfinite(own.median)), default=None)
        cells = {}
        for name, own in found.items():
            ends = own.at[~own.reached & np.isfinite(own.at)]
            shown = own.median if np.isfinite(own.median) else ends.max(initial=0.0)
            count = f"({own.reached.sum()}/{len(own.reached)})"
            text = f"{'' if np.isfinite(own.median) else '> '}{_short(shown / unit.scale)} {count}"
            known = np.isfinite(own.median) or shown > 0
            cells[name] = Cell(text if known else f"never {count}", own.median == best)
        amount = f"{_scale(metric) * target:g} %" if _scale(metric) != 1 else f"{target:g}"
        header = unit._replace(name=f"{unit.name} to {metric.replace('_', ' ')} {amount}").label
        return header, cells


def _seeds(name: str, result: Any) -> list[int]:
    swept = getattr(getattr(result, "loss", None), "dims", ())
    if swept != ("seed", "evaluation"):
        raise UserError(
            f'{name}: a comparison takes results of sweeps over seeds, afl.sweep(sim, {{"seed": range(5)}}, ...), and '
            f"over nothing else; got {f'dimensions {swept}' if swept else shown(result)}"
        )
    return [int(seed) for seed in result.seed.values]


def _best(found: Mapping[str, Summary], lower: bool) -> float | None:
    means = [own.mean for own in found.values() if np.isfinite(own.mean)]
    return (min(means) if lower else max(means)) if means else None


def _scale(metric: str) -> float:
    return 100.0 if metric.endswith("accuracy") else 1.0


def _named(metric: str) -> str:
    name = metric.replace("_", " ")
    return f"{name} (%)" if _scale(metric) != 1 else name


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"
