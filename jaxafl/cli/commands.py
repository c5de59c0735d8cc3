"""Commands that show names, sweeps and results."""

from __future__ import annotations

import inspect
import json as json_format
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from jaxafl import results
from jaxafl.cli import tables
from jaxafl.options import UserError, user_errors
from jaxafl.study.comparison import gathered, is_comparison
from jaxafl.sweep import gather as gather_sweep
from jaxafl.sweep.folder import check_no_member, is_sweep

if TYPE_CHECKING:  # importing xarray here would slow down every command
    import xarray as xr

_Several = arg(metavar="RESULT [RESULT ...]", help_behavior_hint="(one or more)")
Files = Positional[Annotated[tuple[pathlib.Path, ...], _Several]]
_Image = Annotated[pathlib.Path, arg(metavar="IMAGE")]
_Kind = Literal[  # functions of `jaxafl.plot`
    "accuracy_vs_bytes",
    "accuracy_vs_participation",
    "accuracy_vs_steps",
    "accuracy_vs_time",
    "client_spread",
    "comparison",
    "confusion",
    "heat_map",
    "staleness_histogram",
    "timeline",
]


_Part = Literal[
    "datasets",
    "partitions",
    "models",
    "servers",
    "presets",
    "clocks",
    "durations",
    "uploads",
    "corrections",
    "aggregates",
    "attacks",
]


def list_names(kinds: Positional[tuple[_Part, ...]] = (), json: bool = False, markdown: bool = False) -> int:
    """List the parts of a simulation: datasets, partitions, models, servers and their clocks, presets, and others.

    Every one is listed with its options.

    Args:
        kinds: kinds to list, such as servers; all by default
        json: print JSON, with the type, default, allowed values and help of every option
        markdown: print a page of tables
    """
    if json:
        print(json_format.dumps(tables.as_json(), indent=2, ensure_ascii=False, default=repr))
    elif markdown:
        print(tables.as_markdown())
    else:
        tables.show_list(*kinds)
    return 0


def gather(folder: Positional[pathlib.Path], output: pathlib.Path | None = None) -> int:
    """Show how far the members of a sweep or a comparison are, from its --folder, while it runs or afterwards.

    Args:
        folder: the folder of `jaxafl sweep --folder`, or of `jaxafl compare --folder`
        output: NetCDF file to write with the finished members of a sweep
    """
    if is_comparison(folder):
        if output is not None:
            raise UserError(f"--output takes a sweep, and {folder} holds one per method: gather the folders in it")
        with user_errors():
            for name, one in gathered(folder)[0].items():
                print(f"{name}: ", end="", flush=True)
                tables.show_progress(one)
        return 0
    with user_errors():
        found = gather_sweep(folder)
        check_no_member(folder, results.check_result_path(output))
    tables.show_progress(found)
    if output is not None:
        print(f"wrote {results.keep(found.load(), output)}")
    return 0


def plot_results(
    files: Files,
    output: _Image,
    kind: _Kind = "accuracy_vs_time",
    metric: str | None = None,
    xlim: str | None = None,
    ylim: str | None = None,
) -> int:
    """Draw results: accuracy against simulated time or server steps, staleness, or who trained when.

    Args:
        files: result files (NetCDF), or folders of sweeps and comparisons
        output: image to write; its ending sets the format
        kind: kind of figure
        metric: metric that a figure of accuracy draws in its place, e.g. rmse
        xlim: limits of the horizontal axis, e.g. 0,500; 0, sets the lower one only
        ylim: limits of the vertical axis, e.g. 60,90
    """
    from jaxafl import plot as figures

    draw = getattr(figures, kind)
    given = {"metric": metric, "xlim": _limits("xlim", xlim), "ylim": _limits("ylim", ylim)}
    given = {name: value for name, value in given.items() if value is not None}
    if unknown := next((name for name in given if name not in inspect.signature(draw).parameters), None):
        problem = {"metric": "draws no other metric"}.get(unknown, "has no such limits")
        raise UserError(f"plot: {kind} {problem}; leave --{unknown} out")
    named = named_results("plot", files)
    drawn = next(iter(named.values())) if len(named) == 1 else named
    draw(drawn, path=output, **given)
    print(f"wrote {output}")
    return 0


def _limits(name: str, text: str | None) -> tuple[float | None, ...] | None:
    """Returns the limits of an axis from `0,500`; an empty place is `None`."""
    if text is None:
        return None
    try:
        low, high = (float(one) if one.strip() else None for one in text.split(","))
    except ValueError as error:
        raise UserError(
            f"--{name} {text!r} are not limits of an axis; expected low,high, e.g. --{name} 0,500"
        ) from error
    return low, high


def named_results(command: str, files: Sequence[pathlib.Path]) -> dict[str, xr.Dataset]:
    """Loads results by the names of their files, or by their paths if names are equal.

    Raises:
        ValueError: no file is given, or a file is not a result.
    """
    if not files:
        raise UserError(f"{command} needs at least one result file, e.g. jaxafl {command} result.nc --output ...")
    with user_errors():
        loaded = [_loaded(file) for file in files]
    short = len({file.stem for file in files}) == len(files)
    named: dict[str, xr.Dataset] = {}
    for file, found in zip(files, loaded, strict=True):
        named |= found if isinstance(found, dict) else {file.stem if short else str(file): found}
    return named


def _loaded(file: pathlib.Path) -> xr.Dataset | dict[str, xr.Dataset]:
    """Returns the result of a file or of the folder of a sweep, or results by name of the folder of a comparison."""
    if is_comparison(file):
        return gathered(file)[0]
    return gather_sweep(file) if is_sweep(file) else results.load(file)


def compare(output_dir: pathlib.Path = pathlib.Path(), budget: int = 4000, seed: int = 0, progress: bool = True) -> int:
    """Compare FedAvg, FedAsync, FedBuff, FADAS and AsyncFedED on ten FEMNIST writers with stragglers.

    Args:
        output_dir: folder for quickstart.nc and quickstart.png
        budget: local steps of every method, all clients together
        seed: seed of the initial model, the schedules and the mini-batches
        progress: show progress bars
    """
    from jaxafl.cli.quickstart import report

    report(output_dir, budget, seed, progress)
    return 0
