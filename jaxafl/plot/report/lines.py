"""Lines of a report, each one configuration with a run per seed, and numbers read off their runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import xarray as xr

from jaxafl.options import UserError
from jaxafl.plot.canvas import label_of
from jaxafl.results.clients import NAMES, names_of, worst_tenth
from jaxafl.results.curves import falls, has_failed, note, scale_of, stated, value
from jaxafl.results.failures import place_of
from jaxafl.results.tables.members import OF_A_RUN, At, Member, by_name, members

MANY = 7  # distinguishable colours; of more lines only the best are coloured
PARTS = ("data", "model", "client", "server", "clock", "attack")
Lines: TypeAlias = Sequence[Member]


def named(results: Any) -> dict[str, xr.Dataset]:
    """Returns results by name; a single result has its title.

    Raises:
        TypeError, ValueError: these are not results.
    """
    title = results.attrs.get("title", "the result") if isinstance(results, xr.Dataset) else ""
    return {str(name): one for name, one in by_name(results, title, "a report").items()}


def lines_of(results: Mapping[str, xr.Dataset], at: At = "last") -> list[Member]:
    """Returns the lines of results, in the order of the results. Their place has `result`, too, if there are several.

    Args:
        results: name -> result.
        at: the point at which runs are compared.

    Raises:
        ValueError: a result has no evaluations.
    """
    found = []
    for name, dataset in results.items():
        for member in members({name: dataset}, "eval_time", *_evaluated(dataset)):
            label = ", ".join(member.place.values()) if len(results) == 1 and member.place else member.name
            place = ({"result": name} if len(results) > 1 else {}) | member.place
            found.append(Member(label, [_with_clients(run) for run in member.runs], place, at))
    return found


def metrics_of(lines: Lines) -> dict[str, str]:
    """Returns the metrics of all lines' evaluations, and their labels; accuracies are in percent."""
    found = dict.fromkeys(metric for line in lines for metric in _evaluated(line.runs[0]))
    order = sorted(found, key=lambda name: ("accuracy", "loss", name).index(name))
    return {name: label_of(name) for name in order}


def last(line: Member, metric: str, at: At | None = None) -> np.ndarray:
    """Returns the shown value of a metric at a point (by default `line.at`), float [seeds].

    Runs that failed or have not run have NaN.
    """
    found = [value(run, metric, at or line.at) if metric in run.variables else np.nan for run in line.runs]
    return scale_of(metric) * np.asarray(found)


def score(line: Member, metric: str) -> float | None:
    """Returns a score by which larger is better; `None` if a run failed, or its metric is infinite."""
    mean = float(last(line, metric).mean())
    return None if not np.isfinite(mean) else -mean if lower(line.runs, metric) else mean


def lower(runs: Sequence[xr.Dataset], metric: str) -> bool | None:
    """Returns True if lower values of a metric are better; `None` if the direction is not known."""
    try:
        return falls(runs, metric)
    except UserError:
        return None


def steps_made(run: xr.Dataset) -> int:
    """Returns the number of server steps that a run made."""
    return int(np.isfinite(run["time"].values).sum())


def ending(run: xr.Dataset) -> str:
    """Returns the reason why a run ended early; "" if it did not."""
    if has_failed(run):
        step, client = (int(stated(run, name, -1)) for name in ("failed_step", "failed_client"))
        label = names_of(run)[client] if client >= 0 and NAMES in run.coords else str(client)
        named = f" ({label})" if label != str(client) else ""
        return f"failed: its parameters were not finite {place_of(step, client)}{named}"
    if not steps_made(run):
        return "has not run"
    reason = note(run, "stopped")
    return f"stopped after {steps_made(run):,} server steps: {reason}" if reason else ""


def _evaluated(dataset: xr.Dataset) -> list[str]:
    """Returns the names of variables with a number per evaluation."""
    return [
        str(name)
        for name, values in dataset.data_vars.items()
        if OF_A_RUN & set(values.dims) == {"evaluation"}
        and values.dtype.kind == "f"
        and not str(name).startswith("eval_")
    ]


def _with_clients(run: xr.Dataset) -> xr.Dataset:
    """Returns a run with the median accuracy of clients, and the mean of the worst clients, as metrics."""
    if "client_accuracy" not in run.variables:
        return run
    accuracy = run["client_accuracy"].dropna("population", how="all").values
    return run.assign(
        clients_median_accuracy=("evaluation", np.median(accuracy, axis=1)),
        clients_worst_accuracy=("evaluation", worst_tenth(accuracy)),
    )
