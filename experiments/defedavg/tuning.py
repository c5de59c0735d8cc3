"""The grid of DeFedAvg's Table 2, and how rates are chosen from it."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from typing import Any

import numpy as np

from experiments.defedavg.setting import LOCAL_STEPS, RATES, Column, cell, rates_of, rounds_of, simulation
from experiments.suite import Cell, Measure, time_to

SERVER_RATES, LOCAL_RATES = (0.1, 1.0), (0.001, 0.005, 0.01, 0.05, 0.1)
ETA, LOCAL = "server.learning_rate", "client.learning_rate"
SCALES = {
    "smoke": "noise in the place of the images, 3 server steps of 2 local steps, logistic regression, two rates",
    "cpu": "an MLP 784-50-10 (CIFAR-10: 768-50-10, images of half the resolution) for the CNN, the first 14 "
    "(CIFAR-10: 6) simulated seconds, lower targets",
    "paper": "as published: the CNN, up to the target or 10,000 server steps (FAVANO on CIFAR-10, non-IID: 40,000)",
}
NOTE = (
    "The grid is η in {0.1, 1} for the server and η̄ in {0.001, 0.005, 0.01, 0.05, 0.1} for local steps; FAVANO has no "
    "η, AsySG no η̄. Chosen are the rates that reach the target of Table 1 first or, where none does, those of the "
    "highest accuracy, on the last sixth of the training images, which are in no client's data: test images are never "
    "looked at. What the paper chose on, and by how many seeds, is not known."
)


def cell_of(made: dict[str, Column], method: str, name: str, scale: str) -> Cell | None:
    """All rates of a method; nothing where the paper has no such method (n = 5: DeFedAvg alone)."""
    column = made[name]
    if method not in RATES[column.dataset, column.iid] or (column.n == 5 and not method.startswith("DeFedAvg")):
        return None
    has = [rate is not None for rate in rates_of(method, column)]
    paths = tuple(itertools.compress((ETA, LOCAL), has))
    rows = list(itertools.product(*itertools.compress((SERVER_RATES, LOCAL_RATES), has)))
    rows = rows[:2] if scale == "smoke" else rows
    steps = math.ceil(rounds_of(method, column, scale) * (0.32 if scale == "cpu" else 1))
    make = functools.partial(
        simulation, method, column, scale, rates_of(method, column), 2 if scale == "smoke" else LOCAL_STEPS, tuning=True
    )
    one = cell(method, column, scale, rates_of(method, column), server_steps=steps, make=make, axes={paths: rows})
    return dataclasses.replace(one, client_steps=one.client_steps * len(rows))


def score(runs: Any) -> np.ndarray:
    """Of every row of rates, the mean over seeds of what is larger the earlier the target is reached: above 1; else
    the accuracy of the last evaluations, -1 where parameters stopped being finite."""
    seconds, ended = time_to().of(runs), runs.accuracy.values[..., -3:].mean(axis=-1)
    return np.where(np.isfinite(seconds), 1 + 1 / (1 + seconds), np.nan_to_num(ended, nan=-1.0)).mean(axis=0)


def chosen(path: str, digits: int) -> Measure:
    """The rate that was chosen, the same for all seeds."""

    def of(runs: Any) -> np.ndarray:
        rate = runs[path].values[score(runs).argmax()] if path in runs.coords else np.nan
        return np.full(runs.sizes["seed"], rate)

    return Measure(of, digits=digits)


def at_best(measure: Measure) -> Measure:
    """What is measured at the chosen rates."""
    return measure._replace(of=lambda runs: measure.of(runs.isel(together=score(runs).argmax())))


def published(made: dict[str, Column]) -> dict[str, dict[str, dict[str, float]]]:
    """Table 2 by measure, column and method."""
    return {
        measure: {
            name: {
                method: found
                for method in RATES[column.dataset, column.iid]
                if (column.n > 5 or method.startswith("DeFedAvg"))
                and (found := rates_of(method, column)[place]) is not None
            }
            for name, column in made.items()
        }
        for place, measure in enumerate(MEASURES)
        if place < 2
    }


MEASURES = {
    "server rate η": chosen(ETA, 1),
    "local rate η̄": chosen(LOCAL, 3),
    "seconds to the target on held-out training images": at_best(time_to()),
    "best accuracy on held-out training images": at_best(
        Measure(lambda runs: 100 * np.nanmax(runs.accuracy.values, axis=-1), " %")
    ),
}
