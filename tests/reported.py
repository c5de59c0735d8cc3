"""Small real results, and a large sweep made of them, that reports are made of."""

from __future__ import annotations

import functools

import numpy as np
import xarray as xr

import jaxafl as afl
from tests.problems import classifier, points


def _simulation() -> afl.Simulation:
    return classifier(
        data=points(8, 50).with_validation(0.3, seed=0),
        client=afl.Client(learning_rate=0.01, steps=2, batch_size=5),
        clock=afl.clock.free_running(concurrency=6, buffer=4, durations=afl.clock.lognormal(0.0, 1.0)),
    )


@functools.cache
def _run() -> xr.Dataset:
    made = _simulation().run(24, eval_every=6, seed=3, diagnostics="per_client")
    return made.drop_vars([name for name in made.data_vars if str(name).startswith("validation_")])


@functools.cache
def _sweep() -> xr.Dataset:
    axes = {"server.learning_rate": [0.5, 1.0], "seed": range(2)}
    return afl.sweep(_simulation(), axes, server_steps=24, eval_every=6)


def run() -> xr.Dataset:
    """One run of eight clients, with the accuracy of each."""
    return _run().copy(deep=True)


def sweep() -> xr.Dataset:
    """Two learning rates, two seeds."""
    return _sweep().copy(deep=True)


@functools.cache
def comparison() -> afl.Comparison:
    """Two methods on six seeds, the second as the first but for its accuracy, which saves a program."""
    first = afl.sweep(_simulation(), {"seed": range(6)}, server_steps=12, eval_every=6)
    noise = np.random.default_rng(0).normal(-0.02, 0.05, first["accuracy"].shape)
    return afl.Comparison({"a": first, "b": first.assign(accuracy=first["accuracy"] + noise)})


def many(count: int, evaluations: int = 250) -> xr.Dataset:
    """A sweep of so many members over two axes, ten values of the first, each evaluated so often; curves rise to other
    heights at other times."""
    rng, steps = np.random.default_rng(0), np.arange(evaluations)
    one = run().isel(evaluation=np.zeros(evaluations, int)).drop_vars(["evaluation", "client_accuracy"])
    members = []
    for _ in range(count):
        height, speed = rng.uniform(0.3, 0.9), rng.uniform(20, 200)
        curve = height * (1 - np.exp(-steps / speed)) + rng.normal(0, 0.01, evaluations)
        found = one.assign(accuracy=("evaluation", curve), loss=("evaluation", 3 * (1 - curve)))
        time = np.cumsum(rng.exponential(1, evaluations))
        members.append(found.assign_coords(eval_time=("evaluation", time), eval_step=("evaluation", steps)))
    rows = [xr.concat(members[at : at + count // 10], "client_rate") for at in range(0, count, count // 10)]
    rates = {"server.learning_rate": np.linspace(0.1, 1, 10), "client_rate": np.geomspace(1e-3, 1, count // 10)}
    return xr.concat(rows, "server.learning_rate").assign_coords(rates)
