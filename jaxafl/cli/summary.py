"""The table that `jaxafl run` and `jaxafl sweep` end with."""

from __future__ import annotations

import numpy as np
import xarray as xr
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from jaxafl.plot.members import Member, heading, members

_COLUMNS = ("best\naccuracy", "last\naccuracy", "simulated\ntime", "staleness\nmean / max")


def show(result: xr.Dataset) -> None:
    """Prints a row for each member of a result, its numbers averaged over seeds."""
    found = members(result, "accuracy", "staleness", "time")
    seeds = len(found[0].runs)
    table = Table(title=heading(result), box=SIMPLE_HEAD)
    table.add_column(f"mean ± std of {seeds} seeds" if seeds > 1 else "", overflow="fold")
    for column in _COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for member in found:
        table.add_row(*_row(member))
    Console().print(table)


def _row(member: Member) -> list[str]:
    accuracy = [run["accuracy"].values[np.isfinite(run["accuracy"].values)] for run in member.runs]
    time = [run["time"].values[np.isfinite(run["time"].values)] for run in member.runs]
    staleness = np.concatenate([run["staleness"].values[run["staleness"].values >= 0] for run in member.runs])
    return [
        member.name,
        _percent([values.max() for values in accuracy]),
        _percent([values[-1] for values in accuracy]),
        f"{np.mean([values[-1] for values in time]):.1f} s",
        f"{staleness.mean():.2f} / {staleness.max():.0f}" if len(staleness) else "no arrivals",
    ]


def _percent(shares: list[float]) -> str:
    spread = f" ± {100 * np.std(shares):.1f}" if len(shares) > 1 else ""
    return f"{100 * np.mean(shares):.1f}{spread} %"
