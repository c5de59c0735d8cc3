"""Runs the cells of a table, each over all seeds, and keeps what was measured."""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import platform
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import xarray as xr

import jaxafl as afl
from experiments.suite.experiment import Cell, Experiment, Measure, changed, with_own
from jaxafl.options import UserError
from jaxafl.readers.replacing import replacing
from jaxafl.sweep import outlook

NO_DATA = "not run: no data"


def run(
    experiment: Experiment,
    name: str,
    scale: str,
    *,
    methods: Sequence[str],
    columns: Sequence[str],
    seeds: int,
    folder: pathlib.Path,
    own: Mapping[str, Any],
    devices: Any = None,
) -> xr.Dataset:
    """The results of all cells, those of an earlier call at this scale and with these seeds included.

    Args:
        experiment: what is run.
        name: of its files, see `path_of`.
        scale: one of `SCALES`.
        methods, columns: which of them.
        seeds: 0 ... seeds - 1.
        folder: gets the file when all cells have been run, with what it held before; runs are kept below `runs`, where
            a second call goes on.
        own: name -> a user's method, see `with_own`; they are made, and run, before all others.
        devices: of `jaxafl.sweep`.

    Raises:
        UserError: a user's method cannot be made, or cannot work.
    """
    results = empty(experiment, scale, [*experiment.methods, *own], seeds)
    cells = {
        (column, method): cell
        for method in [*own, *methods]
        for column in columns
        if (cell := experiment.cell(experiment.base_of(column) if method in own else method, column, scale))
    }
    ran: dict[str, dict[str, list[str]]] = {}
    for (column, method), cell in cells.items():
        if method in own and (made := _try(method, cell, own[method])):
            ran.setdefault(method, {}).setdefault(f"{made.server}, {made.client}", []).append(column)
    results.attrs["own"] = json.dumps(ran)
    folder.mkdir(parents=True, exist_ok=True)
    for (column, method), cell in cells.items():
        print(f"{name}: {column}, {method}", flush=True)
        cell = with_own(cell, own[method]) if method in own else cell
        kept = folder / "runs" / experiment.family / scale / _plain(column) / f"{_plain(method)}_{seeds}"
        try:
            made, cost = _timed(cell, range(seeds), kept, devices)
            made = experiment.derived(made)
        except FileNotFoundError:
            results.state.loc[method, column] = NO_DATA
            continue
        results.seconds.loc[method, column] = cost
        results.state.loc[method, column] = "run"
        if "failed_step" in made:
            steps = made["failed_step"].transpose("seed", ...).values
            results.diverged.loc[method, column] = (steps >= 0).reshape(seeds, -1).all(1).sum()
        for measure, one in experiment.measures.items():
            results.value.loc[measure, method, column] = one.of(made)
        if experiment.curve:
            results = with_curve(results, experiment.curve, made, method, column)
    path = path_of(folder, name, scale, seeds, own)
    for before in (path, path_of(folder, name, scale, seeds)):  # a user's methods stand beside the table's
        if before.exists():
            results = _with(results, xr.load_dataset(before))
    for row, (one, other) in experiment.contrasts.items():
        results.value.loc[{"row": row}] = (results.value.sel(row=one) - results.value.sel(row=other)).values
    with replacing(path) as half:
        results.to_netcdf(half, engine="h5netcdf", encoding={"state": {"dtype": str}})
    return results


def path_of(folder: pathlib.Path, name: str, scale: str, seeds: int, own: Iterable[str] = ()) -> pathlib.Path:
    """The file of a table's results: no scale, number of seeds or user's method replaces the results of others."""
    ending = "".join(f"_with_{_plain(method)}" for method in own)
    return folder / f"{name}_{scale}_{seeds}_seed{'s' * (seeds != 1)}{ending}.nc"


def _try(name: str, cell: Cell, own: Any) -> afl.Simulation | None:
    """Makes and checks the simulation of a user's method before anything runs; `None` without its data."""
    try:
        base = cell.make()
    except FileNotFoundError:
        return None
    try:
        made = changed(base, own)
        made.check()
        return made
    except (TypeError, ValueError, FileNotFoundError) as error:
        raise UserError(f"--method {name}: {error}") from error


def _with(results: xr.Dataset, before: xr.Dataset) -> xr.Dataset:
    """The results, and where they have none those of an earlier call."""
    before = before.drop_vars(["published", "published_error"]).reindex_like(results)
    stay = before.state.notnull() & (results.state != "run") & ((before.state == "run") | (results.state == "not run"))
    for name in before.data_vars.keys() - results.data_vars.keys():  # curves
        results[name] = before[name]
    kept = {name: results[name].where(~stay, before[name]) for name in before.data_vars}
    return results.assign({name: one.transpose(*results[name].dims) for name, one in kept.items()})


def _timed(cell: Cell, seeds: Iterable[int], kept: pathlib.Path, devices: Any) -> tuple[Any, float]:
    """What a cell makes, and the seconds that its runs took, of all calls, for whichever table; NaN where they
    are not known."""
    done, under_way = kept / "seconds", kept / "seconds.part"
    before = next(
        (float(file.read_text()) for file in (done, under_way) if file.exists()), np.nan if kept.exists() else 0.0
    )
    begun = time.perf_counter()
    try:
        made = _made(cell, seeds, kept, devices)
    finally:
        cost = before if done.exists() else before + time.perf_counter() - begun
        if kept.exists() and not done.exists():
            under_way.write_text(f"{cost:.1f}\n")
    if under_way.exists():
        under_way.replace(done)
    return made, cost


def _made(cell: Cell, seeds: Iterable[int], kept: pathlib.Path, devices: Any) -> Any:
    sim, (server_steps, every) = cell.make(), cell.lengths()
    if not cell.client_steps:
        return [sim.schedule(server_steps, seed) for seed in seeds]
    options = {"diagnostics": cell.diagnostics, "callbacks": cell.callbacks, "observe": cell.observe}
    options |= {"devices": devices, "progress": True}
    axes = {"seed": list(seeds), **cell.axes}
    made = afl.sweep(sim, axes, server_steps, eval_every=every, folder=kept, **options)
    return made.assign_attrs(cell.known)


def empty(experiment: Experiment, scale: str, methods: Sequence[str], seeds: int) -> xr.Dataset:
    """A dataset of nothing measured, with what was published."""
    rows, columns, measures = [*methods, *experiment.contrasts], list(experiment.columns), list(experiment.measures)
    published = np.asarray(
        [
            [[experiment.published_of(measure, row, column) for column in columns] for row in rows]
            for measure in measures
        ],
        float,
    )
    dims = ("measure", "row", "column")
    return xr.Dataset(
        {
            "value": ((*dims, "seed"), np.full((*published.shape[:3], seeds), np.nan)),
            "published": (dims, published[..., 0]),
            "published_error": (dims, published[..., 1]),
            "seconds": (dims[1:], np.full((len(rows), len(columns)), np.nan)),
            "diverged": (dims[1:], np.zeros((len(rows), len(columns)))),
            "state": (dims[1:], np.full((len(rows), len(columns)), "not run", object)),
        },
        {"measure": measures, "row": rows, "column": columns, "seed": np.arange(seeds)},
        {
            "title": experiment.title,
            "scale": scale,
            "jaxafl": afl.__version__,
            "jax": jax.__version__,
            "machine": f"{os.cpu_count()} cores, {platform.machine()}, {jax.default_backend()}",
            "date": datetime.date.today().isoformat(),
        },
    )


def with_curve(
    results: xr.Dataset, curve: tuple[str, str], made: xr.Dataset, method: str, column: str, most: int = 60
) -> xr.Dataset:
    """The results with a curve of each seed of a cell: as it is where all seeds have few and the same points, else
    straight between evaluations, at `most` shared places."""
    if "curve" not in results:
        shape = (results.sizes["row"], results.sizes["column"], results.sizes["seed"], most)
        for name in ("curve", "curve_along"):
            results[name] = (("row", "column", "seed", "point"), np.full(shape, np.nan, np.float32))
    values, along = made[curve[0]].values, np.broadcast_to(made[curve[1]].values, made[curve[0]].shape)
    if along.shape[1] <= most and (along == along[0]).all():
        values, shared = (
            np.pad(one, ((0, 0), (0, most - one.shape[1])), constant_values=np.nan)
            for one in (values.astype(float), along.astype(float))
        )
        results.curve.loc[method, column], results.curve_along.loc[method, column] = values, shared
        return results
    known = np.isfinite(values) & np.isfinite(along)
    shared = np.linspace(along[:, 0].max(), along[known].max(), most)  # seeds may be evaluated at times of their own
    for seed, (one, at, there) in enumerate(zip(values, along, known, strict=True)):
        results.curve.loc[method, column][seed] = np.interp(shared, at[there], one[there], right=np.nan)
    results.curve_along.loc[method, column] = shared
    return results


def estimate(
    experiment: Experiment, scale: str, methods: Sequence[str], columns: Sequence[str], seeds: int
) -> tuple[str, float]:
    """What these cells take on this device, in words and in seconds, by the first server steps of one cell for every
    model and batch size."""
    timed: dict[tuple[str, int], tuple[float, str]] = {}
    steps, seconds, missing = 0, 0.0, 0
    for column in columns:
        for method in methods:
            cell = experiment.cell(method, column, scale)
            if cell is None:
                continue
            try:
                sim = cell.make()
            except FileNotFoundError:
                missing += 1
                continue
            if not cell.client_steps:
                return "the clock alone: seconds", 0.0
            work = repr(sim.model), sim.client.batch_size or int(sim.data.counts.max())
            if work not in timed:
                server_steps, every = cell.lengths()
                axes = {"seed": range(seeds), **cell.axes}
                found = outlook(sim, axes, cell.expected_steps or server_steps, eval_every=every)
                timed[work] = found.seconds / seeds / cell.client_steps, f"{method}, {column}"
            steps += seeds * cell.client_steps
            seconds += seeds * cell.client_steps * timed[work][0]
    lines = [f"{each * 1e3:.3g} ms a local step ({where})" for each, where in timed.values()]
    if timed:
        lines.append(f"{steps:,} local steps, {seeds} seed(s): {minutes(seconds)} without evaluation and compilation")
    return "\n".join(lines + [f"{missing} cells: {NO_DATA}"] * bool(missing)), seconds


def minutes(seconds: float) -> str:
    """A time in minutes, of more than ten hours also in hours."""
    if 0 < seconds < 60:
        return "under a minute"
    hours = f" ({seconds / 3600:,.3g} hours)" if seconds > 36_000 else ""
    return f"{seconds / 60:,.{1 if seconds < 600 else 0}f} minutes{hours}"


def _plain(name: str) -> str:
    return re.sub(r"[^\w.]+", "_", name).strip("_")


def figures(measure: Measure, values: np.ndarray, diverged: int = 0) -> str:
    """Mean and standard deviation over seeds, as a table shows them, and how many seeds are missing or diverged."""
    seeds, values = len(values), values[~np.isnan(values)]
    if not len(values):
        return ""
    lost = f"{diverged} of {seeds} seed{'s' * (seeds != 1)} diverged" if diverged else ""
    if lost and np.isinf(values).any():
        return lost
    if np.isinf(values).any():
        return f"reached by {np.isfinite(values).sum()} of {len(values)} seeds"
    form = f".{measure.digits}f" if abs(values.mean()) < 1e5 else ".1e"  # of what has diverged
    spread = f" ± {values.std(ddof=1):{form}}" if np.ptp(values) > 0 else ""
    some = f" ({len(values)} of {seeds} seeds)" if len(values) < seeds else ""
    return f"{values.mean():{form}}{spread}{measure.unit}{some}" + f" ({lost})" * bool(lost and not values.all())
