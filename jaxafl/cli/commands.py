"""The commands. The first line of a docstring is the command's line in the help."""

from __future__ import annotations

import contextlib
import json
import pathlib
import sys
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import xarray as xr

    from jaxafl.cli.names import Chosen

T = TypeVar("T")


def run(arguments: list[str]) -> int:
    """Simulate one configuration and report accuracy, simulated time and staleness."""
    from jaxafl.cli.build import make_simulation
    from jaxafl.cli.names import chosen
    from jaxafl.plot.canvas import check_image_path

    names = chosen(arguments)
    options = _simulation_options(arguments, "run", names, run.__doc__)
    check_image_path(options.plot)
    with _building():
        simulation = make_simulation(names, options)
        simulation.check()
    result = simulation.run(
        options.server_steps,
        eval_every=options.eval_every,
        seed=options.seed,
        lanes=options.lanes,
        chunk=options.chunk,
        progress=options.progress,
        save=options.output,
    )
    return _report(result, options.output, options.plot)


def sweep(arguments: list[str]) -> int:
    """Simulate a grid of configurations: `--axis server.alpha=0.2,0.5 --axis seed=0:5`."""
    from jaxafl.cli.axes import as_paths, begin_with, read_axes
    from jaxafl.cli.build import make_simulation
    from jaxafl.cli.names import chosen
    from jaxafl.plot.canvas import check_image_path
    from jaxafl.sweep import sweep as run_sweep

    axes = read_axes(arguments)
    names = chosen(arguments, axes)
    options = _simulation_options(arguments, "sweep", names, sweep.__doc__, axes)
    if not axes:
        raise ValueError("a sweep needs at least one --axis, e.g. --axis server.lam=1,3,5 --axis seed=0:5")
    check_image_path(options.plot)
    with _building():
        simulation = make_simulation(names, begin_with(options, axes), axes)
        varied = as_paths(axes, names, simulation)
    varied.setdefault("seed", [options.seed])
    result = run_sweep(
        simulation,
        varied,
        server_steps=options.server_steps,
        eval_every=options.eval_every,
        lanes=options.lanes,
        progress=options.progress,
        save=options.output,
    )
    return _report(result, options.output, options.plot)


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


def _simulation_options(
    arguments: Sequence[str], command: str, names: Chosen, description: str | None, axes: Collection[str] = ()
) -> Any:
    import tyro

    from jaxafl.cli.names import program
    from jaxafl.cli.options import options_type
    from jaxafl.cli.unknown import refuse

    more = "\n\nOptions depend on the data, model, server and clock that the command line names (see `jaxafl list`)."
    options: Any
    options, unknown = tyro.cli(
        options_type(names, command == "sweep", axes),
        prog=program(command, arguments, names),
        description=(description or "") + more,
        args=arguments,
        return_unknown_args=True,
    )
    if unknown:
        refuse(unknown, names, options)
    return options


def _parse(options: type[T], arguments: Sequence[str], command: str, description: str | None) -> T:
    import tyro

    return tyro.cli(options, prog=f"jaxafl {command}", description=description, args=arguments)


@contextlib.contextmanager
def _building() -> Iterator[None]:
    """Whatever a value of an option makes a constructor or a check raise is the user's to correct."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise ValueError(str(error)) from error


def _report(result: xr.Dataset, output: pathlib.Path | None, image: pathlib.Path | None) -> int:
    """Prints and draws what came out; the exit code is 1 where every run failed."""
    from jaxafl import plot as figures
    from jaxafl.cli.summary import failures, show

    show(result)
    print(f"wrote {output}" if output else "the result is not saved; --output result.nc would")
    if image:
        figures.accuracy_vs_time(result, path=image)
        print(f"wrote {image}")
    failed, runs = failures(result)
    if failed:
        print(f"jaxafl: {failed}", file=sys.stderr)
    return 1 if runs == 0 else 0
