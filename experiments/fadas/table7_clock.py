"""The clock behind FADAS's Table 7: what a round takes, and so how many rounds its times are."""

from __future__ import annotations

import dataclasses

from experiments.fadas.table7 import METHODS, PUBLISHED, cell_of
from experiments.suite import Cell, Claim, Experiment, main, schedules

STEPS = {column: 300 if column in ("RTE", "MRPC", "SST-2") else 500 for column in PUBLISHED}


def cell(method: str, column: str, scale: str) -> Cell:
    return dataclasses.replace(
        cell_of(method, column, "smoke"), server_steps=20 if scale == "smoke" else STEPS[column], client_steps=0
    )


EXPERIMENT = Experiment(
    title="FADAS's clock under mild delays, without training: Table 7 in rounds",
    family="fadas_clock",
    cell=cell,
    methods=list(METHODS),
    columns=list(PUBLISHED),
    measures={"time of a round": schedules(lambda made: made.time[-1] / 10 / made.server_steps, " · 10 s", 3)},
    scales={"smoke": "20 server steps", "paper": "as published: 500 server steps; GLUE: 300"},
    claims=[
        Claim(
            f"{column}: the {time} · 10 s of {method} are fewer than {STEPS[column]} rounds, here by",
            lambda v, c=column, m=method, t=time: STEPS[c] - t / v(m, c),
            " rounds",
        )
        for column, times in PUBLISHED.items()
        for method, time in times.items()
        if time > 0
    ],
    seeds=20,
    note="A synchronous round lasts as long as the slowest of its participants: 10 on images, as published; 3 on GLUE, "
    "which is not published.",
)

if __name__ == "__main__":
    main(EXPERIMENT)
