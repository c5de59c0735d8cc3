"""The figures, each for one dataset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from experiments.nonconvex.setting import (
    LOSS_AT,
    METHODS,
    NOTE,
    REASONS,
    SCALES,
    Column,
    cell_of,
    columns,
    selections,
    with_local_loss,
)  # fmt: skip
from experiments.suite import Claim, Experiment, Measure, last

ARRAYS = {
    "MNIST": {
        3: (1.377, 0.642, 0.311, 0.117, 0.0581, 0.0031, 0.0017),
        5: (1.324, 0.682, 0.159, 0.077, 0.0221, 0.0031, 0.0033),
        8: (1.391, 0.413, 0.0686, 0.0264, 0.0026, 0.0024, 0.0021),
    },
    "CIFAR-10": {5: (0.706, 0.055, 0.0113, 0.0065, 0.0020)},
}
"""Dataset -> J -> the authors' stored arrays at the rounds of `LOSS_AT`."""


def loss(number: int, dataset: str) -> Experiment:
    """Loss over the rounds for J = 5."""
    name = f"{dataset}, J = 5"
    return _figure(
        f"Figure {number}: loss over the rounds, {name}",
        columns(dataset, [5]),
        published=_published(dataset, [5]),
        claims=[
            Claim(
                f"{method}: the local loss falls from round 10 to round 100",
                lambda v, m=method: v(m, name, "local loss, round 10") - v(m, name, "local loss, round 100"),
            )
            for method in METHODS
        ],
    )


def selected(number: int, dataset: str) -> Experiment:
    """How often each client is selected."""
    among = columns(dataset, [5])
    return _figure(
        f"Figure {number}: how often each client is selected, {dataset}, J = 5",
        among,
        cell=partial(cell_of, among, clock_alone=True),
        methods=("AFL",),
        measures={
            f"selections of the client with {which}": Measure(
                lambda found, of=of: of(found.selections.values, 1), digits=0
            )
            for which, of in (("most", np.max), ("fewest", np.min))
        },
        derived=selections,
        curve=("selections", "client"),
        note="The J clients of a round are drawn uniformly without replacement; the clock alone is run.",
    )


def loss_of_each(number: int, dataset: str) -> Experiment:
    """Loss over the rounds for J = 3 ... 8."""
    few, many = f"{dataset}, J = 3", f"{dataset}, J = 8"
    return _figure(
        f"Figure {number}: loss over the rounds, {dataset}, J = 3 ... 8",
        columns(dataset, range(3, 9)),
        published=_published(dataset, ARRAYS[dataset]),
        claims=[
            Claim(
                f"{method}: at round {place} the local loss of J = 8 is below that of J = 3",
                lambda v, m=method, at=f"local loss, round {place}": v(m, few, at) - v(m, many, at),
            )
            for method in METHODS
            for place in (50, 100)
        ],
    )


def against_synchronous(number: int, dataset: str) -> Experiment:
    """AFL against synchronous federated learning."""
    name = f"{dataset}, J = 5"
    return _figure(
        f"Figure {number}: AFL against synchronous FL, {name}",
        columns(dataset, [5]),
        methods=(*METHODS, "synchronous FL"),
        claims=[
            Claim(
                f"AFL's {what} is below that of synchronous FL",
                lambda v, what=what: v("synchronous FL", name, what) - v("AFL", name, what),
            )
            for what in ("test loss", "local loss, round 100")
        ],
        note=f"{NOTE} Synchronous FL is FedAvg of all ten clients a round, with the same local training (unpublished).",
    )


def _losses_at(dataset: str) -> dict[str, Measure]:
    """The mean local training loss at the rounds of which the paper's arrays are known; NaN for those not made."""

    def at(number: int) -> Measure:
        def of(runs: xr.Dataset) -> np.ndarray:
            made = runs.sizes["step"] >= number
            return runs.mean_local_loss.values[:, number - 1] if made else np.full(runs.sizes["seed"], np.nan)

        return Measure(of, digits=4)

    return {f"local loss, round {number}": at(number) for number in LOSS_AT[dataset]}


def _figure(title: str, among: Mapping[str, Column], **more: Any) -> Experiment:
    """A figure of local losses over the rounds in these columns; `more`: of the `Experiment`, in the place of this."""
    dataset = next(iter(among.values())).dataset
    shared: dict[str, Any] = {
        "family": "nonconvex",
        "cell": partial(cell_of, among),
        "methods": METHODS,
        "measures": _losses_at(dataset)
        | {"test accuracy": last(of=1), "test loss": last("loss", of=1, unit="", factor=1.0, digits=4)},
        "left_out": {"cpu": [name for name, one in among.items() if one.participants in (4, 6, 7)]},
        "few": 2,
        "derived": with_local_loss,
        "curve": ("mean_local_loss", "round"),
        "note": NOTE,
    }
    return Experiment(
        title=f"AFL on non-convex objectives, {title}",
        columns=list(among),
        scales=SCALES,
        reasons=REASONS,
        **(shared | more),
    )


def _published(dataset: str, participants: Iterable[int]) -> dict[str, dict[str, dict[str, float]]]:
    """Measure -> column -> method -> number."""
    return {
        measure: {
            f"{dataset}, J = {number}": {"AFL, as released": ARRAYS[dataset][number][place]} for number in participants
        }
        for place, measure in enumerate(_losses_at(dataset))
    }
