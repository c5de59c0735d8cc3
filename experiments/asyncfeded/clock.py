"""AsyncFedED's clock alone: what it costs that clients hang, with the chance P, before they upload."""

from __future__ import annotations

import dataclasses

from experiments.asyncfeded.setting import CHANCES, FIRST_STEPS, LIMIT, cell_of
from experiments.suite import Cell, Claim, Experiment, Values, main, schedules
from experiments.suite.experiment import Array
from jaxafl.clock import Schedule

METHODS = {"asynchronous": "FedAsync constant", "synchronous": "FedAvg"}
COLUMNS = {f"P = {chance}": chance for chance in CHANCES}


def cell(method: str, name: str, scale: str) -> Cell:
    """The fleet of Figures 5-14, all of whose runs make K_0 local steps."""
    made = cell_of(METHODS[method], "Synthetic-1-1", COLUMNS[name], "paper")
    return dataclasses.replace(made, server_steps=20 if scale == "smoke" else made.server_steps, client_steps=0)


def ended(made: Schedule) -> Array:
    """bool [T, A]: the runs that ended in time."""
    return made.mask & (made.time[:, None] <= LIMIT)


def kept(values: Values, method: str, name: str) -> Array:
    """The share of the runs that are left of those without hanging."""
    return values(method, name) / values(method, "P = 0.0")


EXPERIMENT = Experiment(
    title="AsyncFedED's clock: what it costs that clients hang, without training",
    family="asyncfeded_clock",
    cell=cell,
    methods=list(METHODS),
    columns=list(COLUMNS),
    measures={
        "runs that end within 300 s": schedules(lambda made: ended(made).sum(), "", 0),
        "mean seconds of a run": schedules(lambda made: (made.arrived - made.started)[ended(made)].mean(), " s"),
        "largest staleness": schedules(lambda made: made.staleness[ended(made)].max(), "", 1),
    },
    scales={"smoke": "20 server steps", "paper": f"10 clients, 300 simulated seconds, K = {FIRST_STEPS}"},
    claims=[
        Claim(
            f"{name}: hanging costs synchronous learning a larger share of its runs",
            lambda v, name=name: kept(v, "asynchronous", name) - kept(v, "synchronous", name),
        )
        for name in ("P = 0.1", "P = 0.5", "P = 0.9")
    ],
    seeds=50,
    note="A run hangs with probability P for U(0, L), L the longest of the runs begun before it, hangs not counted; a "
    "synchronous round waits for all ten clients. Nothing is published of it but P; the other durations are those that "
    "Figures 5-14 fix.",
)

if __name__ == "__main__":
    main(EXPERIMENT)
