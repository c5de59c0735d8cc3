"""What every experiment here leaves behind: a line per method, the curves as CSV, and a plot."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

import xarray as xr

import jaxafl as afl

COLUMNS = ("client_updates", "local_steps", "simulated_seconds", "test_accuracy", "test_loss")


def summary(name: str, result: xr.Dataset) -> str:
    """One line: accuracy at the start, over the last five evaluations, and at best; staleness; wall-clock time."""
    accuracy = 100 * result.accuracy.values
    last = accuracy[-5:]
    return (
        f"{name}: start {accuracy[0]:.2f} %, last 5 evaluations {last.mean():.2f} ± {last.std():.2f} %, "
        f"best {accuracy.max():.2f} %; loss {result.loss.values[0]:.3f} -> {result.loss.values[-1]:.3f}; "
        f"staleness mean {result.attrs['staleness_mean']:.2f}, mean of the largest per step "
        f"{result.attrs['staleness_max_per_step_mean']:.2f}; {int(result.eval_updates.values[-1])} client updates, "
        f"{int(result.eval_local_steps.values[-1])} local steps, {result.attrs['run_seconds']:.0f} s"
    )


def report(results: Mapping[str, xr.Dataset], stem: pathlib.Path) -> None:
    """Prints a line per method and writes `<stem>.csv` and `<stem>.png` (accuracy against simulated time)."""
    rows = [",".join(("method", *COLUMNS))]
    for name, result in results.items():
        print(summary(name, result))
        columns = (result.eval_updates, result.eval_local_steps, result.eval_time, result.accuracy, result.loss)
        for updates, steps, seconds, accuracy, loss in zip(*(column.values for column in columns), strict=True):
            rows.append(f"{name.replace(',', ';')},{updates},{steps},{seconds:.1f},{accuracy:.4f},{loss:.4f}")
    stem.with_suffix(".csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    afl.plot.accuracy_vs_time(dict(results), path=stem.with_suffix(".png"))
