"""Accuracy against the share of attackers: the mean and six defences, under two attacks."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

import jaxafl as afl
from experiments.suite import Cell, Experiment, last, main
from experiments.uploads import setting
from experiments.uploads.setting import above

UPDATES = {"smoke": 60, "cpu": 800, "paper": 3000}
BUFFER, SHARES = 10, (0.0, 0.1, 0.2, 0.3, 0.4)
FLIP, ALIE = "sign_flip(3)", "alie(1.5)"
ATTACKS = {FLIP: afl.attack.sign_flip(3.0, clients=0.0), ALIE: afl.attack.alie(1.5, clients=0.0)}
COLUMNS = {f"{name}, {share:.0%}": (name, share) for name in ATTACKS for share in SHARES}
DEFENCES = {
    "mean": None,
    "median": afl.aggregate.median(),
    "trimmed mean": afl.aggregate.trimmed_mean(count=3),
    "multi-Krum": afl.aggregate.multi_krum(3, 4),
    "geometric median": afl.aggregate.geometric_median(),
    "centred clipping": afl.aggregate.centered_clip(1.0),
    "BASGD": None,
}


def parts(method: str) -> tuple[afl.server.Server, afl.clock.Clock]:
    """Returns server and clock: a buffer of ten updates, or BASGD's ten groups of two clients."""
    if method == "BASGD":
        clock = afl.clock.every_buffer(durations=setting.TIMES, buffers=BUFFER)
        return afl.server.basgd(buffers=BUFFER, aggregate=afl.aggregate.median()), clock
    clock = afl.clock.free_running(concurrency=setting.CLIENTS, buffer=BUFFER, durations=setting.TIMES)
    return afl.server.fedbuff(learning_rate=1.0, aggregate=DEFENCES[method]), clock


@functools.lru_cache(None)
def server_steps(method: str, updates: int) -> int:
    """As many as the updates allow with each of ten seeds."""
    if method != "BASGD":
        return updates // BUFFER
    clock, local = parts(method)[1], np.full((setting.CLIENTS, 1), setting.LOCAL_STEPS)
    found = []
    for seed in range(setting.SEEDS):
        schedule = afl.clock.schedule(clock, setting.CLIENTS, local, updates // BUFFER, seed)
        found.append(int(np.searchsorted(schedule.mask.sum(1).cumsum(), updates, side="right")))
    return max(1, min(found))


def cell(method: str, column: str, scale: str) -> Cell:
    (attack, share), updates = COLUMNS[column], UPDATES[scale]
    steps = server_steps(method, updates)

    def make() -> afl.Simulation:
        server, clock = parts(method)
        liars = dataclasses.replace(ATTACKS[attack], clients=share)
        return afl.Simulation(setting.data(scale), setting.model(scale), setting.client(), server, clock, attack=liars)

    return Cell(make, steps, updates * setting.LOCAL_STEPS, eval_every=max(1, steps // 20))


AT, NO, LIES = f"{FLIP}, 20%", f"{FLIP}, 0%", f"{ALIE}, 20%"
CENTRES = [name for name in DEFENCES if name != "mean"]
EXPERIMENT = Experiment(
    title="Uploads, attacks: accuracy against the share of attackers, six defences, Fashion-MNIST",
    family="uploads_attacks",
    cell=cell,
    methods=list(DEFENCES),
    columns=list(COLUMNS),
    measures={"accuracy, last 5 evaluations": last()},
    scales=setting.scales("800 client updates per run, 0, 20 and 40 % of attackers", "3,000 client updates per run"),
    left_out={"cpu": [name for name, (_, share) in COLUMNS.items() if share in (0.1, 0.3)]},
    against=("share of attackers", COLUMNS),
    claims=[
        *(above(f"{FLIP}, 20 %: {name} is more accurate than the mean", (name, AT), ("mean", AT)) for name in CENTRES),
        *(
            above(f"without attackers {name} is less accurate than the mean", ("mean", NO), (name, NO))
            for name in CENTRES
        ),
        above(f"{ALIE}, 20 %: the median is less accurate than the mean", ("mean", LIES), ("median", LIES)),
        above(f"{ALIE}, 20 %: the trimmed mean is less accurate than the mean", ("mean", LIES), ("trimmed mean", LIES)),
    ],
    seeds=setting.SEEDS,
    few=3,
    note=setting.DATA_NOTE
    + (
        "FedBuff with a buffer of ten and all clients in flight; BASGD with ten groups of two clients, whose steps "
        "take more updates, so that it makes fewer of them. All runs have as many updates. Attackers are drawn with "
        "the seed, and larger shares include smaller ones. multi-Krum and the trimmed mean expect three attackers "
        "among ten arrivals."
    ),
)

if __name__ == "__main__":
    main(EXPERIMENT)
