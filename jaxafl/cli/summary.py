"""The table that `jaxafl run` and `jaxafl sweep` end with."""

from __future__ import annotations

import numpy as np
import xarray as xr
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from jaxafl.plot.members import Member, heading, members

_NAMED = 5  # failed runs that are named one by one
_COLUMNS = ("best\naccuracy", "last\naccuracy", "simulated\ntime", "staleness\nmean / max")


def show(result: xr.Dataset) -> None:
    """Prints a row for each member of a result, its numbers averaged over seeds."""
    found = members(result, "accuracy", "staleness", "time")
    seeds = len(found[0].runs)
    any_failed = any(_failed_step(run) >= 0 for member in found for run in member.runs)
    table = Table(title=heading(result), box=SIMPLE_HEAD)
    table.add_column(f"mean ± std of {seeds} seeds" if seeds > 1 else "", overflow="fold")
    for column in _COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    if any_failed:
        table.add_column("failed", justify="right", no_wrap=True)
    for member in found:
        table.add_row(*_row(member), *([_failed(member)] if any_failed else []))
    Console().print(table)


def failures(result: xr.Dataset) -> tuple[str, int]:
    """What to say of the runs whose parameters stopped being finite ("" where there are none), and how many did not."""
    runs = [(member.name, run) for member in members(result, "accuracy") for run in member.runs]
    failed = [(name, run) for name, run in runs if _failed_step(run) >= 0]
    if not failed:
        return "", len(runs)
    advice = "Smaller learning rates may help."
    if "failed_step" not in result.variables:  # one run
        step, client = result.attrs["failed_step"], result.attrs["failed_client"]
        where = f"at server step {step}, after an update of client {client}"
        return f"the parameters stopped being finite {where}; the result ends there. {advice}", 0
    places = [
        ", ".join(filter(None, (name, f"seed={int(run['seed'])}"))) + f" at step {_failed_step(run)}"
        for name, run in failed[:_NAMED]
    ]
    more = [f"{len(failed) - _NAMED} more"] if len(failed) > _NAMED else []
    counted = f"the parameters of {len(failed)} of {len(runs)} runs stopped being finite; their results end there"
    return f"{counted}: {'; '.join(places + more)}. {advice}", len(runs) - len(failed)


def _failed_step(run: xr.Dataset) -> int:
    """-1 for a run that has not failed."""
    return int(run["failed_step"]) if "failed_step" in run.variables else int(run.attrs.get("failed_step", -1))


def _failed(member: Member) -> str:
    steps = [step for step in map(_failed_step, member.runs) if step >= 0]
    if len(member.runs) > 1:
        return f"{len(steps)} of {len(member.runs)}" if steps else "-"
    return f"at step {steps[0]}" if steps else "-"


def _row(member: Member) -> list[str]:
    """Numbers over the runs that have not failed, or where all have, up to that."""
    runs = [run for run in member.runs if _failed_step(run) < 0] or member.runs
    accuracy = [run["accuracy"].values[np.isfinite(run["accuracy"].values)] for run in runs]
    time = [run["time"].values[np.isfinite(run["time"].values)] for run in runs]
    staleness = np.concatenate([run["staleness"].values[run["staleness"].values >= 0] for run in runs])
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
