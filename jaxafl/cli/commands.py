"""The commands. The first line of a docstring is the command's line in the help."""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import xarray as xr

T = TypeVar("T")


def run(arguments: list[str]) -> int:
    """Simulate one configuration and report accuracy, simulated time and staleness."""
    names, options = _simulation_options(arguments, "run")
    from jaxafl.cli.build import make_simulation
    from jaxafl.plot.canvas import check_image_path

    check_image_path(options.plot)
    result = make_simulation(names, options).run(
        options.server_steps,
        eval_every=options.eval_every,
        seed=options.seed,
        lanes=options.lanes,
        chunk=options.chunk,
        progress=options.progress,
        save=options.output,
    )
    _report(result, options.output, options.plot)
    if result.attrs["failed_step"] < 0:
        return 0
    print(
        f"jaxafl: the parameters stopped being finite at server step {result.attrs['failed_step']}, after an update of "
        f"client {result.attrs['failed_client']}; the result ends there. Smaller learning rates may help.",
        file=sys.stderr,
    )
    return 1


def sweep(arguments: list[str]) -> int:
    """Simulate a grid of configurations: `--axis server.alpha=0.2,0.5 --axis seed=0:5`."""
    names, options = _simulation_options(arguments, "sweep")
    from jaxafl.cli.build import make_simulation, parse_axis
    from jaxafl.plot.canvas import check_image_path
    from jaxafl.sweep import sweep as run_sweep

    if not options.axis:
        raise ValueError("a sweep needs at least one --axis, e.g. --axis server.lam=1,3,5 --axis seed=0:5")
    axes: dict[str, list[Any]] = {}
    for name, values in map(parse_axis, options.axis):
        if name in axes:
            raise ValueError(f"--axis {name} is given twice; write all of its values in one")
        axes[name] = values
    axes.setdefault("seed", [options.seed])
    check_image_path(options.plot)
    result = run_sweep(
        make_simulation(names, options),
        axes,
        server_steps=options.server_steps,
        eval_every=options.eval_every,
        lanes=options.lanes,
        progress=options.progress,
        save=options.output,
    )
    _report(result, options.output, options.plot)
    return 0


def list_names(arguments: list[str]) -> int:
    """List datasets, partitions, models, servers (and their clocks), clocks and durations, with their options."""
    from jaxafl.cli import listing
    from jaxafl.cli.arguments import List

    options = _parse(List, arguments, "list", list_names.__doc__)
    if options.json:
        print(json.dumps(listing.as_json(), indent=2, ensure_ascii=False))
    else:
        listing.show()
    return 0


def plot(arguments: list[str]) -> int:
    """Draw results: accuracy against simulated time or server steps, staleness, or who trained when."""
    from jaxafl import plot as figures
    from jaxafl import results
    from jaxafl.cli.arguments import Plot

    options = _parse(Plot, arguments, "plot", plot.__doc__)
    if not options.files:
        raise ValueError("plot needs at least one result file, e.g. jaxafl plot result.nc --output result.png")
    loaded = [results.load(file) for file in options.files]
    short = len({file.stem for file in options.files}) == len(options.files)
    named = {file.stem if short else str(file): result for file, result in zip(options.files, loaded, strict=True)}
    getattr(figures, options.kind)(loaded[0] if len(loaded) == 1 else named, path=options.output)
    print(f"wrote {options.output}")
    return 0


def quickstart(arguments: list[str]) -> int:
    """Compare FedAvg, FedAsync, FedBuff, FADAS and AsyncFedED on ten FEMNIST writers with stragglers."""
    from jaxafl.cli.arguments import Quickstart
    from jaxafl.quickstart import report

    options = _parse(Quickstart, arguments, "quickstart", quickstart.__doc__)
    report(options.output_dir, budget=options.budget, seed=options.seed, progress=options.progress)
    return 0


def _simulation_options(arguments: Sequence[str], command: str) -> tuple[Any, Any]:
    from jaxafl.cli.options import chosen, options_type

    names = chosen(arguments)
    description = {"run": run, "sweep": sweep}[command].__doc__ or ""
    more = "\n\nOptions depend on the data, model, server and clock that the command line names (see `jaxafl list`)."
    return names, _parse(options_type(names, command == "sweep"), arguments, command, description + more)


def _parse(options: type[T], arguments: Sequence[str], command: str, description: str | None) -> T:
    import tyro

    return tyro.cli(options, prog=f"jaxafl {command}", description=description, args=arguments, use_underscores=True)


def _report(result: xr.Dataset, output: pathlib.Path | None, image: pathlib.Path | None) -> None:
    from jaxafl import plot as figures
    from jaxafl.cli.summary import show

    show(result)
    print(f"wrote {output}" if output else "the result is not saved; --output result.nc would")
    if image:
        figures.accuracy_vs_time(result, path=image)
        print(f"wrote {image}")
