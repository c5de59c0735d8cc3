"""Tidy tables of results: a row per evaluation, server step, arrival, client or run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from jaxafl.options import UserError, check_choice
from jaxafl.results.clients import NAMES

if TYPE_CHECKING:  # importing them here would slow down `import jaxafl`
    import pandas as pd
    import xarray as xr

TABLES: dict[str, tuple[tuple[str, ...], str, tuple[str, ...]]] = {
    "evaluations": (("evaluation",), "eval_step", ()),
    "steps": (("step",), "time", ()),
    "arrivals": (("step", "arrival"), "client_id", ("time",)),
    "clients": (("population",), "participation", ()),
    "client_evaluations": (("evaluation", "population"), "client_loss", ("eval_step", "eval_time", NAMES)),
    "test_evaluations": (("evaluation", "test_set"), "test_loss", ("eval_step", "eval_time")),
    "runs": ((), "", ()),
}
"""Table -> dimensions of a row, a variable that is missing in padding rows, and columns with fewer dimensions."""
_RUN = "run of the table"  # dimension of a result that has no other


def tidy(results: Any, table: str = "evaluations") -> pd.DataFrame:
    """Returns a table of results with a row per observation, for pandas, seaborn or a file of comma-separated values.

    A table has one kind of row. (`xarray.Dataset.to_dataframe()` has one for every combination of step, arrival,
    evaluation, version and client.)

    | table | a row is | columns |
    |---|---|---|
    | `"evaluations"` | an evaluated model | metrics, `eval_step`, `eval_time`, `eval_updates`, `eval_bytes`, ... |
    | `"steps"` | a server step | `time`, `bytes_up`, `bytes_down`, the server's diagnostics |
    | `"arrivals"` | an update that arrived | `client_id`, `client_name`, `staleness`, `started_at`, `local_loss`, ... |
    | `"clients"` | a client | `participation`, `mean_staleness`, `client_name`, `client_samples` |
    | `"client_evaluations"` | a client and an evaluated model (`diagnostics="per_client"`) | `client_accuracy`, ... |
    | `"test_evaluations"` | a further test set and an evaluated model | `test_accuracy`, ... |
    | `"runs"` | a run | `final_accuracy`, `final_time`, ..., and the attributes that differ between runs of a sweep |

    Every table has a column for the seed (not of runs joined by `xr.concat`) and for each swept axis. Tables of several
    results have a column `method` too.
    The padding of shorter runs of a sweep has no rows.

    Args:
        results: a result of `run` or `sweep`, results by name, or a `Comparison`.
        table: the name of a table above.

    Raises:
        ValueError: the table is unknown, or a result lacks its variables.
        TypeError: these are not results.

    Examples:
        >>> import jaxafl as afl
        >>> data = afl.data.synthetic(clients=4, max_size=50)
        >>> client = afl.Client(learning_rate=0.01, steps=1, batch_size=10)
        >>> clock = afl.clock.free_running(concurrency=3, durations=afl.clock.uniform(1, 2))
        >>> sim = afl.Simulation(data, afl.models.logistic(10), client, afl.server.fedbuff(), clock)
        >>> grid = afl.sweep(sim, {"seed": [0, 1], "client.learning_rate": [0.01, 0.1]}, server_steps=4, eval_every=2)
        >>> frame = afl.tidy(grid, "evaluations")
        >>> len(frame), frame.groupby("client.learning_rate").accuracy.mean().size
        (12, 2)
    """
    check_choice("tidy", "table", table, tuple(TABLES))
    import pandas as pd

    from jaxafl.results.tables.members import by_name

    frames = {name: _frame(one, table) for name, one in by_name(results, "", "tidy").items()}
    if [*frames] == [""]:
        return frames[""]
    return pd.concat(frames, names=["method"]).reset_index(level="method").reset_index(drop=True)


def _frame(result: xr.Dataset, table: str) -> pd.DataFrame:
    """Returns a table of one result."""
    dims, key, shorter = TABLES[table]
    if key and key not in result.variables:
        advice = '; run(diagnostics="per_client") evaluates single clients' if table == "client_evaluations" else ""
        raise UserError(f"tidy: this result has no {key}, of which the table {table!r} is made{advice}")
    swept = [str(dim) for dim in result["time"].dims if dim != "step"]
    order = [*swept, *dims] or [_RUN]
    shown = []
    for name, variable in result.variables.items():
        of_row = set(dims) <= set(variable.dims) <= {*swept, *dims}
        if of_row or name in shorter or (name in result.coords and set(variable.dims) <= set(swept)):
            shown.append(name)
    chosen = result.reset_coords()[shown]
    frame = chosen.expand_dims({_RUN: 1} if order == [_RUN] else {}).to_dataframe(order).reset_index()
    if key:  # the padding of shorter runs has no rows
        frame = frame[frame[key] >= 0 if table == "arrivals" else frame[key].notna()].reset_index(drop=True)
    joined = set(swept) - set(json.loads(result.attrs.get("sweep", "{}")))  # `xr.concat` keeps the first's seed
    if "seed" not in frame and "seed" in result.attrs and not joined:
        frame["seed"] = result.attrs["seed"]
    if table == "arrivals" and NAMES in result.coords and result[NAMES].dims == ("population",):
        frame[NAMES] = result[NAMES].values[frame["client_id"].astype(int)]
    first = [name for name in dict.fromkeys([*swept, "seed", *dims, NAMES]) if name in frame]
    return frame[[*first, *frame.columns.difference([*first, _RUN], sort=False)]]
