"""A whole run of SAFA, whose server tells picked, undrafted and deprecated clients apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .client import LocalTraining, Quadratic
from .clock import ServerStep
from .server_rounds import SAFA
from .simulate import Batches, Simulation, StepRecord, step_record, train_arrival
from .update import Array


def simulate_safa(
    steps: Sequence[ServerStep],
    training: LocalTraining,
    server: SAFA,
    x0: Array,
    clients: Sequence[Quadratic],
    *,
    batches: Batches | None = None,
) -> Simulation:
    """Trains every finished run from the version it started from and takes SAFA's rounds.

    Args:
        steps: Rounds, from `clock_semi_async.semi_async`.
        training: How every client trains.
        server: A fresh server.
        x0: Initial parameters, [dim].
        clients: Each client's samples.
        batches: Mini-batches of each run; None takes full-batch steps.

    Returns:
        All versions, a record per round and their times. The records leave out the abandoned runs of deprecated
        clients, whose updates never exist.
    """
    versions = [np.array(x0, dtype=np.float64)]
    records: list[StepRecord] = []
    for step in steps:
        deprecated = [arrival.client for arrival in step.arrivals if arrival.kind == "deprecated"]
        arrivals = [arrival for arrival in step.arrivals if arrival.kind != "deprecated"]
        trained = [train_arrival(arrival, versions, training, clients, batches) for arrival in arrivals]
        by_kind = {
            kind: [update for arrival, (update, _) in zip(arrivals, trained, strict=True) if arrival.kind == kind]
            for kind in ("picked", "undrafted")
        }
        x = versions[step.step]
        versions.append(server.step(x, by_kind["picked"], undrafted=by_kind["undrafted"], deprecated=deprecated))
        records.append(step_record(x, arrivals, trained, server.info))
    return Simulation(versions, records, [step.time for step in steps])
