"""Accuracy against the bytes that clients send: five uploads under three servers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import jaxafl as afl
from experiments.suite import Cell, Claim, Experiment, last, main, sooner, time_to
from experiments.uploads import setting

TARGET = 0.75
UPDATES = {"smoke": 20, "cpu": 1200, "paper": 4000}
ACCURACY, SENT = "accuracy, last 5 evaluations", f"MB sent until {TARGET:.0%}"
FEEDBACK = afl.upload.error_feedback
UPLOADS = {
    "whole updates": None,
    "top_k(share=0.02)": afl.upload.top_k(share=0.02),
    "error_feedback(top_k(share=0.02))": FEEDBACK(afl.upload.top_k(share=0.02)),
    "qsgd(levels=4)": afl.upload.qsgd(levels=4),
    "error_feedback(sign())": FEEDBACK(afl.upload.sign()),
}


class Server(NamedTuple):
    """A server, and the arrivals of its steps."""

    server: afl.server.Server
    buffer: int


SERVERS = {
    "FedBuff": Server(afl.server.fedbuff(learning_rate=1.0), 5),
    "FADAS": Server(afl.server.fadas(learning_rate=0.001), 5),
    "FedAsync": Server(afl.server.fedasync(alpha=0.6), 1),
}


def cell(method: str, column: str, scale: str) -> Cell:
    one, updates = SERVERS[column], UPDATES[scale]
    steps = updates // one.buffer

    def make() -> afl.Simulation:
        clock = afl.clock.free_running(concurrency=10, buffer=one.buffer, durations=setting.TIMES)
        local = setting.client(UPLOADS[method])
        return afl.Simulation(setting.data(scale), setting.model(scale), local, one.server, clock)

    return Cell(make, steps, updates * setting.LOCAL_STEPS, eval_every=max(1, steps // 40))


def with_sent(runs: Any) -> Any:
    """The runs with the megabytes that all clients have sent until each evaluation."""
    sent = np.pad(runs.bytes_up.transpose("seed", "step").values.cumsum(1) / 1e6, ((0, 0), (1, 0)))
    steps = np.broadcast_to(runs.eval_step.values.astype(int), runs.accuracy.shape)
    return runs.assign(megabytes_sent=(runs.accuracy.dims, np.take_along_axis(sent, steps, 1)))


SPARSE = "error_feedback(top_k(share=0.02))"
EXPERIMENT = Experiment(
    title="Uploads, bytes: accuracy against what clients send, Fashion-MNIST",
    family="uploads_bytes",
    cell=cell,
    methods=list(UPLOADS),
    columns=list(SERVERS),
    measures={ACCURACY: last(), SENT: time_to(TARGET, along="megabytes_sent", unit=" MB", digits=1)},
    scales=setting.scales("1,200 client updates per run", "4,000 client updates per run"),
    claims=[
        Claim(text.format(name), lambda v, of=of, c=name: of(v, c), unit)
        for name in SERVERS
        for text, of, unit in (
            (
                "{}: two numbers in a hundred with error feedback need fewer bytes than whole updates",
                lambda v, c: sooner(v(SPARSE, c, SENT), v("whole updates", c, SENT)),
                "",
            ),
            (
                "{}: error feedback makes two numbers in a hundred more accurate",
                lambda v, c: v(SPARSE, c) - v("top_k(share=0.02)", c),
                " points",
            ),
            (
                "{}: signs with error feedback end less accurate than whole updates",
                lambda v, c: v("whole updates", c) - v("error_feedback(sign())", c),
                " points",
            ),
        )
    ],
    seeds=setting.SEEDS,
    few=3,
    curve=("accuracy", "megabytes_sent"),
    derived=with_sent,
    note=setting.DATA_NOTE
    + (
        "Ten clients are in flight. The rates are the best on a validation split of a tenth, with whole updates and a "
        "seed that is not used here: 0.3, 1, 3 (FedBuff), 0.0003 to 0.03 (FADAS), 0.1, 0.3, 0.6, 0.9 (FedAsync's α). "
        "They were not tuned again for each upload. Only bytes up are counted."
    ),
)

if __name__ == "__main__":
    main(EXPERIMENT)
