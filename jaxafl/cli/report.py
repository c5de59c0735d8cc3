"""The command `report`: results as one page."""

from __future__ import annotations

import pathlib
from typing import Annotated, Any

from tyro.conf import arg

from jaxafl.cli.commands import Files, named_results
from jaxafl.options import UserError, user_errors
from jaxafl.study.comparison import Comparison, gathered


def report(
    files: Files,
    output: Annotated[pathlib.Path, arg(metavar="PAGE.html")] = pathlib.Path("report.html"),
    title: str | None = None,
    reference: str | None = None,
    at: str | None = None,
) -> int:
    """Write results as one interactive page that needs no network: summary, curves, settings, citation.

    Args:
        files: result files (NetCDF), or folders of sweeps and comparisons; several are compared, sweeps over the same
            seeds seed by seed
        output: page to write
        title: title of the page; by default that of the result, or the names of the files
        reference: method that others are compared with, by the name of its file; by default the first
        at: point at which sweeps over the same seeds are compared, e.g. time=200 or bytes=1e9; by default the end, or
            the limit of time of the folder of a comparison
    """
    from jaxafl import plot

    named = named_results("report", files)
    results: Any = next(iter(named.values())) if len(named) == 1 else named
    if len(named) > 1:
        try:
            usual = gathered(files[0])[1] if len(files) == 1 else "last"
            results = Comparison(named, point(at) if at else usual)
        except UserError as why:  # the results are not sweeps over the same seeds
            if reference is not None or at is not None:
                raise UserError(f"--reference and --at are for sweeps over the same seeds: {why}") from why
    with user_errors():
        plot.report(results, output, title=title, reference=reference)
    print(f"wrote {output}")
    return 0


def point(at: str | None) -> str | dict[str, float]:
    """Returns a point of comparison from `time=200`, or `last`."""
    axis, equals, number = (at or "last").partition("=")
    try:
        return {axis: float(number)} if equals else axis
    except ValueError as error:
        raise UserError(f"--at takes axis=number, e.g. --at time=200; got {at!r}") from error
