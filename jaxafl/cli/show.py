"""Commands that list parts, and that show results: `list`, `gather`, `plot`, `report`."""

from __future__ import annotations

import contextlib
import pathlib
import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table
from tyro.conf import Positional, arg

from jaxafl.cli.catalogue import KINDS, QUESTIONS, REQUIRED, offered
from jaxafl.cli.line import numbers, written
from jaxafl.options import UserError, check_choice, user_errors
from jaxafl.results import load
from jaxafl.results.arrivals import discarded_runs, staleness_of
from jaxafl.results.curves import failed_steps, has_failed, percent, scale_of, stated, value
from jaxafl.study.comparison import Comparison, is_comparison
from jaxafl.sweep import gather as gather_sweep

if TYPE_CHECKING:  # importing xarray here would slow down every command
    import xarray as xr

_SHOWN = 5  # limits that ended most runs
_HEADER = ("best\n{}", "last\n{}", "simulated\ntime", "staleness\nmean / max")
_Several = arg(metavar="RESULT [RESULT ...]", help_behavior_hint="(one or more)")
_Files = Positional[Annotated[tuple[pathlib.Path, ...], _Several]]
_Limits = Annotated[Any, written(numbers, "LOW,HIGH")]
_Part: Any = Literal[tuple(KINDS)]


def list_names(kinds: Positional[tuple[_Part, ...]] = ()) -> None:
    """List the parts of a simulation: datasets, partitions, models, servers and their clocks, presets, and others.

    Every one is listed with its options, servers and presets by question.

    Args:
        kinds: kinds to list, such as servers; all by default
    """
    console = Console()
    for kind in kinds or KINDS:
        console.print(f"\n[bold underline]{kind}[/]")
        for key, title in QUESTIONS.items() if kind in ("servers", "presets") else [("", "")]:
            table = Table.grid(Column(style="bold", width=20, no_wrap=True), Column(), padding=(0, 2))
            for one in [one for one in offered(kind).values() if not key or one.question == key]:
                options = (o.name if o.default is REQUIRED else f"{o.name}={o.default!r}" for o in one.options)
                dim = filter(None, [", ".join(options), f"runs on {', '.join(one.clocks)}" if one.clocks else ""])
                lines = [escape(one.summary.replace("`", "")), *(f"[dim]{escape(line)}[/dim]" for line in dim)]
                table.add_row(one.name, "\n".join(lines))
            if table.row_count:
                console.print(f"\n[italic]{title}[/]\n" if title else "", table, sep="", highlight=False)


def gather(folder: Positional[pathlib.Path]) -> None:
    """Show how many members of a sweep or a comparison are finished, from its --folder, while it runs or afterwards.

    Args:
        folder: the folder of `jaxafl sweep --folder`, or of `jaxafl compare --folder`
    """
    with user_errors():
        found = Comparison.gather(folder).results if is_comparison(folder) else {"": gather_sweep(folder)}
    for name, one in found.items():
        done, finished = one["server_steps_made"], np.isfinite(one["final_time"].values)
        print(f"{name}: " * bool(name) + f"{int(finished.sum())} of {done.size} members are finished")
        for place in np.ndindex(done.shape):
            member = ", ".join(f"{axis}={done[axis].values[at]}" for axis, at in zip(done.dims, place, strict=True))
            if "member_error" in one and (error := str(one["member_error"].values[place])):
                print(f"{member}: {error.splitlines()[0]}")


def plot_results(
    files: _Files,
    output: Annotated[pathlib.Path, arg(metavar="IMAGE")],
    kind: str = "accuracy_vs_time",
    metric: str | None = None,
    xlim: _Limits = None,
    ylim: _Limits = None,
) -> None:
    """Draw results: accuracy against simulated time or server steps, staleness, or who trained when.

    Args:
        files: result files (NetCDF), or folders of sweeps and comparisons
        output: image to write; its ending sets the format
        kind: kind of figure: accuracy_vs_time, accuracy_vs_steps, accuracy_vs_bytes, accuracy_vs_participation,
            client_spread, comparison, confusion, heat_map, staleness_histogram or timeline
        metric: metric that a figure of accuracy draws in its place, e.g. rmse
        xlim: limits of the horizontal axis, e.g. 0,500; 0, sets the lower one only
        ylim: limits of the vertical axis, e.g. 60,90
    """
    from jaxafl import plot  # drawing takes a second to import

    of_parts = {"bound", "epsilon_vs_time", "plan", "report"}  # these draw no files
    check_choice("plot", "kind", kind, tuple(name for name in plot.__all__ if name not in of_parts))
    given = {name: one for name, one in {"metric": metric, "xlim": xlim, "ylim": ylim}.items() if one is not None}
    found = _loaded(files)
    with user_errors():
        getattr(plot, kind)(found, path=output, **given)
    print(f"wrote {output}")


def report(
    files: _Files,
    output: Annotated[pathlib.Path, arg(metavar="PAGE.html")] = pathlib.Path("report.html"),
    reference: str | None = None,
) -> None:
    """Write results as one interactive page that needs no network: summary, curves, settings, citation.

    Args:
        files: result files (NetCDF), or folders of sweeps and comparisons; several are compared, sweeps over the same
            seeds seed by seed
        output: page to write
        reference: method that others are compared with, by the name of its file; by default the first
    """
    from jaxafl import plot

    found = _loaded(files)
    with user_errors():
        plot.report(found, output, reference=reference)
    print(f"wrote {output}")


def _loaded(files: Sequence[pathlib.Path]) -> Any:
    """Loads a result, a comparison, or several results by the names of their files (by paths if names are equal)."""
    if not files:
        raise UserError("there is no result to show: name a file, e.g. result.nc, or the folder of a sweep")
    short = len({file.stem for file in files}) == len(files)
    with user_errors():
        if len(files) == 1 and is_comparison(files[0]):
            return Comparison.gather(files[0])
        found = {file.stem if short else str(file): (gather_sweep if file.is_dir() else load)(file) for file in files}
    if len(files) == 1:
        return found.popitem()[1]
    with contextlib.suppress(UserError):  # raised if they are not sweeps over the same seeds
        return Comparison(found)
    return found


def show_result(result: xr.Dataset | dict[str, xr.Dataset]) -> None:
    """Prints a row for each member of a result or of several, its numbers averaged over seeds."""
    from jaxafl.results.tables.members import heading, members

    found = members(result, "staleness", "time")
    metric = "accuracy" if "accuracy" in found[0].runs[0].variables else "loss"
    axes, seeds = list(found[0].place), len(found[0].runs)
    caption = f"mean ± std of {seeds} seeds" if seeds > 1 else None
    header = [*(re.sub(r"[._]", r"\g<0>\n", axis) for axis in axes or [""]), *_HEADER]
    columns = [Column(name.format(metric), justify="right", no_wrap=True) for name in header]
    table = Table(*columns, title=heading(result), box=SIMPLE_HEAD, caption=caption)
    for member in found:
        values = [member.place[axis].removeprefix(f"{axis}=") for axis in axes] or [member.name]
        table.add_row(*values, *_numbers(member.runs, metric))
    Console().print(table)
    for one in [*result.values()] if isinstance(result, dict) else [result]:
        known = np.broadcast_to(stated(one, "stopped", ""), np.shape(failed_steps(one))).ravel()
        limits = Counter(limit for limit in map(str, known) if limit not in ("None", "nan", ""))
        for limit, count in limits.most_common(_SHOWN):
            print(f"ended by a limit: {limit} ({count} of {len(known)} runs)")
        counts = {name: discarded_runs(one, name) for name in ("refused", "stopped", "lost")}
        if listed := ", ".join(f"{count:,.6g} {name}" for name, count in counts.items() if count):
            print(f"runs that no server step took, means over members: {listed}")


def _numbers(runs: list[xr.Dataset], metric: str) -> list[str]:
    """Returns the numbers of a row over the runs that have not failed (over all if all have)."""
    kept = [run for run in runs if not has_failed(run)] or runs
    scores = [_mean([value(run, metric, at) for run in kept], metric) for at in ("best", "last")]
    if failed := sum(map(has_failed, runs)):
        scores[1] += f" ({failed} of {len(runs)} failed)"
    time = np.mean([np.nanmax(run["time"].values, initial=0.0) for run in kept])
    ages = staleness_of(kept)
    return [*scores, f"{time:.1f} s", f"{ages.mean():.2f} / {ages.max():.0f}" if len(ages) else "no arrivals"]


def _mean(values: list[float], metric: str) -> str:
    """Returns the mean over seeds, with the standard deviation."""
    shown = scale_of(metric) * np.asarray(values)
    spread = f" ± {shown.std(ddof=1):.2g}" if len(values) > 1 else ""
    return f"{shown.mean():.4g}{spread}{' %' * percent(metric)}"
