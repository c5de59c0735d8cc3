"""The table that `jaxafl run` and `jaxafl sweep` end with."""

from __future__ import annotations

import numpy as np
import xarray as xr
from rich.console import Console
from rich.table import Table

from jaxafl.plot.members import Member, heading, members

_COLUMNS = ("", "best accuracy", "last accuracy", "simulated time", "server steps", "updates", "staleness mean / max")


def show(result: xr.Dataset) -> None:
    """Prints a row for each member of a result, its numbers averaged over seeds."""
    table = Table(title=heading(result))
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column == "" else "right", no_wrap=column == "")
    for member in members(result, "accuracy", "staleness", "time"):
        table.add_row(*_row(member))
    Console().print(table)


def _row(member: Member) -> list[str]:
    accuracy = [run["accuracy"].values[np.isfinite(run["accuracy"].values)] for run in member.runs]
    time = [run["time"].values[np.isfinite(run["time"].values)] for run in member.runs]
    staleness = [run["staleness"].values[run["staleness"].values >= 0] for run in member.runs]
    arrived = np.concatenate(staleness)
    seeds = f"{len(member.runs)} seeds" if len(member.runs) > 1 else ""
    return [
        ", ".join(filter(None, [member.name, seeds])),
        _percent([values.max() for values in accuracy]),
        _percent([values[-1] for values in accuracy]),
        f"{np.mean([values[-1] for values in time]):.1f} s",
        f"{np.mean([len(values) for values in time]):.0f}",
        f"{np.mean([len(values) for values in staleness]):.0f}",
        f"{arrived.mean():.2f} / {arrived.max():.0f}" if len(arrived) else "no arrivals",
    ]


def _percent(shares: list[float]) -> str:
    spread = f" ± {100 * np.std(shares):.1f}" if len(shares) > 1 else ""
    return f"{100 * np.mean(shares):.1f}{spread} %"
