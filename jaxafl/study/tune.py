"""Choice of options by successive halving on the validation split."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from jaxafl.callbacks.base import Callback, check_callbacks, check_metric
from jaxafl.callbacks.limits import divided, limits_of
from jaxafl.callbacks.store import check_folder
from jaxafl.options import UserError, check_whole, named, shown, warn
from jaxafl.results.curves import check_at, value
from jaxafl.results.failures import warned
from jaxafl.results.points import in_words
from jaxafl.results.tables.text import Cell, table
from jaxafl.simulation import Simulation
from jaxafl.study.comparison import seeds_of
from jaxafl.sweep.axes import Axis, NamedPaths, axes_of
from jaxafl.sweep.members import Member, Work, members_of
from jaxafl.sweep.run import SweepOptions, completed

if TYPE_CHECKING:  # xarray takes a third of a second to import, so it is when a result is made
    import xarray as xr

_CONFIGURATION = "configuration"  # dimension of the configurations
_SPLIT, _PERSONAL = "validation_", "personal_"
_FIRST_SEED = 1000
_CHECKS = 5  # evaluations of the shortest runs, by default


@dataclasses.dataclass(frozen=True, eq=False)
class Tuned:
    """The result of a search.

    Attributes:
        best: path -> value of the best configuration.
        simulation: the simulation with these values. Its data still holds out the validation split;
            `dataclasses.replace(tuned.simulation, data=full)` trains on all of it.
        dataset: `score` (rung, configuration), the mean over seeds: NaN for a dropped configuration, ±∞ (the worst) if
            a run failed; `values` (rung, configuration, seed); `local_steps` (rung, configuration), the sum over seeds.
            Coordinates are `server_steps` of the longest run of each rung, and the options of each configuration.
        results: the sweep of each rung.
        failed: descriptions of the runs without a finite score.
        edges: descriptions of the options with the best value at an edge of the grid, where a wider grid may be better.
        tied: a sentence about equal scores of which only those first in the grid could go on or be the best; empty if
            there are none.
    """

    best: dict[str, Any]
    simulation: Simulation
    dataset: xr.Dataset
    results: tuple[xr.Dataset, ...]
    failed: tuple[str, ...]
    edges: tuple[str, ...] = ()
    tied: str = ""

    def __repr__(self) -> str:
        best = ", ".join(f"{path}={value}" for path, value in self.best.items())
        edges = f"{'; '.join(self.edges)}: widen the grid" if self.edges else ""
        return "\n".join([self.table(), "", f"best: {best}", *filter(None, (edges, self.tied))])

    def table(self, format: str = "markdown") -> str:
        """Returns a table with a row per configuration: its score at each rung and its local steps; the best is bold.

        Args:
            format: `"markdown"` or `"latex"`.

        Raises:
            ValueError: the format is unknown.
        """
        data = self.dataset
        ends = [f"within {steps:,} server steps" for steps in data.server_steps.values]
        metric = f"{data.attrs['metric'].replace('_', ' ')} {data.attrs['at']}".strip()
        header = [_CONFIGURATION, *(f"{metric} {end}" for end in ends), "local steps"]
        rows = []
        for place in range(data.sizes[_CONFIGURATION]):
            scores = [_shown(number) for number in data.score.values[:, place]]
            texts = [data.configuration.values[place], *scores, f"{data.local_steps.values[:, place].sum():,.0f}"]
            rows.append([Cell(text, place == data.attrs["best"]) for text in texts])
        return table(format, header, rows)


@named
def tune(
    simulation: Simulation,
    grid: Mapping[Any, Iterable[Any]],
    metric: str = "accuracy",
    *,
    server_steps: int | None = None,
    until: Mapping[str, float] | None = None,
    seeds: int | Iterable[int] = 1,
    factor: int = 3,
    rungs: int | None = None,
    at: str | Mapping[str, float] = "last",
    eval_every: int | None = None,
    callbacks: Sequence[Callback] | Callback = (),
    folder: str | os.PathLike[str] | None = None,
    **options: Unpack[SweepOptions],
) -> Tuned:
    """Chooses options by successive halving.

    All n configurations run for some server steps, the best ⌈n / factor⌉ for `factor` times as many, and so on. The
    best configuration of the last rung, which runs for `server_steps`, wins (Jamieson and Talwalkar, "Non-stochastic
    best arm identification and hyperparameter optimization", AISTATS 2016).

    The score of a configuration is the mean over seeds of a metric on the validation split, never on the test set. All
    configurations use the same seeds, hence the same initial models, and the same schedules unless the clock varies.

    Each rung is a sweep that repeats the first server steps of its configurations, bit for bit but for the rounding
    of batched products. The total work is at most factor / (factor - 1) times the work without repetition.

    Args:
        simulation: the simulation to tune; its data has a validation split.
        grid: path -> values, as the axes of `jaxafl.sweep` or of `jaxafl.sample`, without `"seed"`.
        metric: metric on the validation split. The model declares its better direction, or its name implies it.
            `"personal_accuracy"` judges the clients' models, with `Client(personal=...)`.
        server_steps: T of the last rung. Optional with an exact limit (time, updates, bytes, ε), as in `jaxafl.sweep`.
        until: limits of every run of the last rung, as in `Simulation.run`. Earlier rungs divide time, updates, bytes
            and seconds as they divide T, not ε. Targets are metrics on the validation split, equal in all rungs.
        seeds: the seeds, or their number: 1000, 1001, ..., which a comparison with 0, 1, ... does not use.
        factor: a rung keeps 1 / factor of its configurations; >= 2.
        rungs: number of rungs; the default leaves at most `factor` configurations for the last. 1 is a grid search.
        at: the evaluation that counts, as in `Comparison.summary`. The first rung has to pass a point of an axis.
        eval_every: server steps between evaluations; by default a fifth of the first rung, or with exact limits 20.
        callbacks: as in `jaxafl.sweep`. `StopAt` takes validation metrics only: `StopAt(validation_accuracy=0.9)`.
        folder: the parent of one sweep folder per rung. The same call resumes from it.
        **options: options of `jaxafl.sweep`: `devices`, `executor`, `checkpoint_every`, `together`,
            `lanes`, `chunk`, `observe`, `diagnostics`, `metrics`, `progress`, `deterministic`. `progress=True` shows
            a bar per rung; by default nothing is shown, as by `Simulation.run`.

    Returns:
        The best options, the tuned simulation, and scores and costs of all rungs, which `print` shows. A warning names
        the options with the best value at an edge of the grid, and equal scores.

    Raises:
        ValueError, TypeError: an option cannot work, the data have no validation split, or all scores are infinite.

    Examples:
        >>> import jaxafl as afl
        >>> sim = afl.Simulation(
        ...     data=afl.data.synthetic(1.0, 1.0, clients=4, max_size=100).with_validation(0.2, seed=0),
        ...     model=afl.models.logistic(num_classes=10),
        ...     client=afl.Client(learning_rate=0.01, steps=5, batch_size=10),
        ...     server=afl.server.fedbuff(),
        ...     clock=afl.clock.free_running(concurrency=3, durations=afl.clock.constant(1.0)),
        ... )
        >>> tuned = afl.tune(sim, {"client.learning_rate": [0.0, 0.01]}, metric="loss", server_steps=20)
        >>> tuned.best
        {'client.learning_rate': 0.01}
    """
    chosen = seeds_of("tune", seeds, first=_FIRST_SEED)
    exact = limits_of("tune", until).exact
    if server_steps is not None:
        check_whole("tune", "server_steps", server_steps)
    elif not exact:
        raise UserError('tune needs server_steps, or a limit of simulated time such as until={"time": 3600}')
    if options.get("part") is not None:
        raise UserError("tune: part is given; expected all of each rung, whose scores are compared. Leave part out")
    check_whole("tune", "factor", factor, least=2)
    check_at(at)
    metric = _on_split(metric)
    watchers = check_callbacks(callbacks)
    varied = _axes(simulation, grid)
    members = members_of(simulation, varied, 0)
    paths = NamedPaths(members[0].values, _CONFIGURATION)
    _check_split(members, [metric, *map(_on_split, until or ())], watchers)
    lower = _lower(members, metric, options.get("metrics"))
    fewest = next(rung for rung in itertools.count(1) if factor**rung >= len(members))
    count = fewest if rungs is None else check_whole("tune", "rungs", rungs)
    shares = [factor ** (count - 1 - rung) for rung in range(count)]
    lengths = _lengths(server_steps, shares, factor)
    every = max(1, lengths[0] // _CHECKS) if eval_every is None and not exact else eval_every
    given: dict[str, Any] = {**options, "eval_every": every, "callbacks": watchers}
    path = None if folder is None else check_folder(folder)
    values = np.full((count, len(members), len(chosen)), np.nan)
    spent = np.zeros((count, len(members)))
    results = []
    ties: list[str] = []
    left = list(range(len(members)))
    for rung, steps in enumerate(lengths):
        axes = {paths: [tuple(members[place].values.values()) for place in left], "seed": chosen}
        given["until"] = divided(until, shares[rung], _on_split) or None
        work = Work(simulation, axes, server_steps and steps, labels={"rung": rung}, **given)
        place = path and path / f"rung-{rung}"
        found = warned(completed(work, place, name=f"rung {rung + 1} of {count}", **options))
        results.append(found)
        lengths[rung] = int(found.final_step.max()) if exact else steps
        values[rung, left], spent[rung, left] = _judged(found, metric, at, np.inf if lower else -np.inf)
        scores = values[rung].mean(axis=1)
        order = np.argsort(scores if lower else -scores, kind="stable")  # NaN, of dropped ones, is last
        if not np.isfinite(values[rung, order[0]]).all():
            raise UserError(f"tune: no configuration has a finite {metric} within {lengths[rung]} server steps")
        going_on = 1 if rung == count - 1 else -(-len(left) // factor)
        ties += _tied(scores[order[: len(left)]], going_on, rung)
        left = order[:going_on].tolist()
    best = left[0]
    dataset = _dataset(values, spent, lengths, chosen, members)
    dataset.attrs |= {"metric": metric, "at": "" if at == "last" else in_words(at), "best": best, "factor": factor}
    words = dataset[_CONFIGURATION].values
    bad = np.argwhere(np.isinf(values).any(axis=0))
    failed = tuple(f"{words[place]}, seed={chosen[column]}" for place, column in bad)
    edges = _edges(varied, members[best].values)
    told = f"{'; '.join(ties)}, and the first in the grid is taken: more seeds or steps may tell them apart"
    tied = told if ties else ""
    tuned = Tuned(members[best].values, members[best].simulation, dataset, tuple(results), failed, edges, tied)
    lost = f"without a finite {metric}: {'; '.join(failed)}" if failed else ""
    for said in filter(None, (lost, f"{'; '.join(edges)}: widen the grid" if edges else "", tied)):
        warn(f"tune: {said}")
    return tuned


def _lengths(server_steps: int | None, shares: list[int], factor: int) -> list[int]:
    """Returns the server steps of the rungs, which get one of so many shares of `server_steps` each."""
    lengths = [max(1, (server_steps or 0) // share) for share in shares]
    if server_steps is not None and len(set(lengths)) < len(shares):
        raise UserError(
            f"tune: {server_steps} server steps are too few for {len(shares)} rungs, each {factor} times as long as "
            f"the one before; give more, or rungs={max(1, len(shares) - 1)}"
        )
    return lengths


def _tied(scores: np.ndarray, going_on: int, rung: int) -> list[str]:
    """Returns a description of equal scores of which only some go on; `scores`: best first."""
    last = scores[going_on - 1]
    if going_on == len(scores) or last != scores[going_on] or not np.isfinite(last):
        return []
    return [f"{(scores == last).sum()} configurations have the score {last:.4g} in rung {rung + 1}"]


def _edges(axes: Sequence[Axis], best: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns a description of each option with the best value at an edge of its grid of numbers."""
    found = []
    for axis in axes:
        path, column = axis.paths[0], axis.column(axis.paths[0]) if len(axis.paths) == 1 else []
        values = {one for one in column if isinstance(one, int | float | np.number) and not isinstance(one, bool)}
        for place, edge in (("smallest", min), ("largest", max)) if len(values) > 1 else ():
            if np.array_equal(best[path], edge(values)):
                found.append(f"the best {path}, {best[path]:g}, is the {place} of its grid")
    return tuple(found)


def _on_split(metric: str) -> str:
    """Returns the name of a metric on the validation split, which is where `personal_...` is without owned tests."""
    return metric if metric.startswith(_PERSONAL) else f"{_SPLIT}{metric.removeprefix(_SPLIT)}"


def _lower(members: Sequence[Member], metric: str, of_sets: Any) -> bool:
    """Returns True if a lower value of the metric is better. Raises `ValueError` if the models differ in it."""
    found = set()
    for one in {id(member.simulation.model): member.simulation for member in members}.values():
        run = one.as_run(0, 1, one.recording(metrics=of_sets))
        found.add(check_metric("tune", run, metric))
    if len(found) > 1:
        raise UserError(
            f"tune: the metric {metric!r} is better when it is higher with some of the models, lower with others"
        )
    return found.pop()


def _judged(found: xr.Dataset, metric: str, at: str | Mapping[str, float], bad: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns values [configurations, seeds] (`bad` for a failed run) and local steps [configurations] of a rung."""
    values = np.full((found.sizes[_CONFIGURATION], found.sizes["seed"]), np.nan)
    for row, column in np.ndindex(values.shape) if metric in found else ():  # not if it has no number in any run
        values[row, column] = value(found.isel({_CONFIGURATION: row, "seed": column}), metric, at)
    return np.where(np.isnan(values), bad, values), found.final_local_steps.sum("seed").values


def _check_split(members: Sequence[Member], judging: list[str], watchers: Sequence[Any]) -> None:
    """Raises `ValueError` if a metric that chooses or stops runs is not of the validation split.

    Args:
        members: the configurations.
        judging: the metrics that choose configurations and that limits name.
        watchers: callbacks, which may have `targets`.
    """
    for name in (name for one in watchers for name in getattr(one, "targets", ())):
        if not name.startswith((_SPLIT, _PERSONAL)):
            raise UserError(
                f"tune never stops by the test set: write StopAt({_SPLIT}{name}=...), got StopAt({name}=...)"
            )
        judging = [*judging, name]
    for data in (member.simulation.data for member in members):
        if data.validation is None:
            raise UserError(
                "tune chooses by samples that are neither trained on nor tested on, and there are none: give the "
                "simulation data.with_validation(0.1, seed=0)"
            )
        if data.test_clients is not None and any(name.startswith(_PERSONAL) for name in judging):
            raise UserError(
                "tune: personal metrics judge the clients on their own test samples, which choose nothing. Give "
                "dataclasses.replace(data, test_clients=None), so that they judge on the validation split"
            )


def _axes(simulation: Any, grid: Any) -> list[Axis]:
    """Returns the checked axes of the configurations."""
    if not isinstance(simulation, Simulation):
        raise TypeError(
            f"tune takes one Simulation; to compare several, tune each, then jaxafl.compare; got {shown(simulation)}"
        )
    _, axes = axes_of(simulation, grid)
    if any("seed" in axis.paths for axis in axes):
        raise UserError("tune: seeds are no option to choose; give seeds=...")
    return axes


def _dataset(
    values: np.ndarray,
    spent: np.ndarray,
    lengths: Sequence[int],
    seeds: Sequence[int],
    members: Sequence[Member],
) -> xr.Dataset:
    import xarray as xr

    axes = ("rung", _CONFIGURATION)
    variables = {
        "score": (axes, values.mean(axis=2)),
        "values": ((*axes, "seed"), values),
        "local_steps": (axes, spent.astype(np.int64)),
    }
    words = [", ".join(f"{name}={label}" for name, label in member.labels.items()) for member in members]
    coords: dict[str, Any] = {_CONFIGURATION: words, "seed": list(seeds), "server_steps": ("rung", list(lengths))}
    coords |= {name: (_CONFIGURATION, [member.labels[name] for member in members]) for name in members[0].labels}
    return xr.Dataset(variables, coords)


def _shown(score: float) -> str:
    return "" if math.isnan(score) else f"{score:.4g}" if math.isfinite(score) else "failed"
