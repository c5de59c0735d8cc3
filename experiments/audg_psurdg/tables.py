"""What the tables and figures of AUDG and PSURDG share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from experiments.audg_psurdg.setting import (
    NOTE,
    NOTE_NON_IID,
    RATE,
    REASONS,
    SCALES,
    Column,
    cell_of,
    columns,
    normalised,
    synchronous,
)
from experiments.suite import Claim, Experiment, Values, last

ACCURACY = last(of=1)
LOSS = last("normalised_loss", of=1, unit="", factor=1.0, digits=4)
DIFFERENCE = "PSURDG - AUDG"
Published = Mapping[str, Sequence[float]]
SYNCHRONOUS = {  # Table II: IID, non-IID
    "Over-CNN": {"accuracy": (94.01, 93.90), "normalised loss": (0.0103, 0.0106)},
    "CNN": {"accuracy": (87.15, 85.01), "normalised loss": (0.0966, 0.1222)},
}


def compared(title: str, among: Mapping[str, Column], **more: Any) -> Experiment:
    """AUDG and PSURDG in these columns; `more`: of the `Experiment`."""
    return Experiment(
        title=f"AUDG and PSURDG, {title}",
        family="audg_psurdg",
        cell=partial(cell_of, among),
        methods=("AUDG", "PSURDG"),
        columns=list(among),
        scales=SCALES,
        reasons=REASONS,
        left_out={"cpu": [name for name, one in among.items() if one.network == "Over-CNN" and one.delay in (3, 5, 7)]},
        seeds=10,
        few=2,
        derived=normalised,
        note=NOTE if all(one.split == "IID" for one in among.values()) else NOTE_NON_IID,
        **more,
    )


def accuracies(network: str, published: Sequence[float]) -> Experiment:
    """Table III of a network; published: accuracy of PSURDG minus that of AUDG, in points, by mean delay."""
    names = list(columns([network], ["IID"]))
    return compared(
        f"Table III, the {network}: accuracy on IID data",
        columns([network], ["IID"]),
        measures={"accuracy": ACCURACY},
        published={"accuracy": by_column(names, {DIFFERENCE: published})},
        contrasts={DIFFERENCE: ("PSURDG", "AUDG")},
        claims=[
            falls("AUDG's accuracy falls until a mean delay of 5", "AUDG", names[:3]),
            falls("from there on it rises", "AUDG", names[2:], sign=1),
            falls("PSURDG's accuracy falls", "PSURDG", names),
            *(ahead("AUDG is more accurate", "AUDG", "PSURDG", name) for name in (names[0], names[-1])),
        ],
    )


def synchronous_alone(title: str, network: str, **more: Any) -> Experiment:
    """A network where all uploads succeed; `more`: of the `Experiment`."""
    splits = {f"{network} IID": "IID", f"{network} Non-IID": "small"}
    rates = {f"SFL, η = {rate}": rate for rate in (0.05, 0.1) if rate != RATE[network]}
    rates = {"SFL": RATE[network]} | rates
    return Experiment(
        title=f"AUDG and PSURDG, {title}, the {network}: synchronous federated learning",
        family="audg_psurdg",
        cell=lambda method, column, scale: synchronous(network, splits[column], rates[method], scale),
        methods=list(rates),
        columns=list(splits),
        measures={"accuracy": ACCURACY, "normalised loss": LOSS},
        published={
            measure: {column: {"SFL": number} for column, number in zip(splits, numbers, strict=True)}
            for measure, numbers in SYNCHRONOUS[network].items()
        },
        scales=SCALES,
        reasons=REASONS,
        seeds=10,
        few=2,
        derived=normalised,
        note=NOTE,
        **more,
    )


def losses(title: str, network: str, split: str, published: Published) -> Experiment:
    """A table of normalised losses.

    Args:
        title: of the table.
        network, split: see `Column`.
        published: method -> normalised loss by mean delay.
    """
    names = list(columns([network], [split]))
    claims = [falls("PSURDG's loss rises with the delay", "PSURDG", names, sign=1, unit="")]
    if split != "IID":
        claims.append(falls("AUDG's loss rises with the delay", "AUDG", names, sign=1, unit=""))
    for place in (0, -1):
        better, worse = sorted(published, key=lambda method, place=place: published[method][place])
        claims.append(ahead(f"{better}'s loss is the smaller one", worse, better, names[place], unit=""))
    return compared(
        title,
        columns([network], [split]),
        measures={"normalised loss": LOSS},
        published={"normalised loss": by_column(names, published)},
        claims=claims,
    )


def curves(title: str, network: str, split: str) -> Experiment:
    """A figure of normalised losses over the ticks, and of final accuracies against client 1's mean delay."""
    among = columns([network], [split])
    return compared(
        title,
        among,
        measures={"accuracy": ACCURACY},
        curve=("normalised_loss", "eval_step"),
        against=("mean delay of client 1", {name: (f"{network} {split}", one.delay) for name, one in among.items()}),
    )


def by_column(names: Sequence[str], published: Published) -> dict[str, dict[str, float]]:
    """Column -> method -> number, of numbers by mean delay."""
    return {name: {row: published[row][place] for row in published} for place, name in enumerate(names)}


def ahead(text: str, more: str, less: str, name: str, unit: str = " points") -> Claim:
    """In one column a method has the larger value."""
    return Claim(f"{name}: {text}", lambda v: v(more, name) - v(less, name), unit)


def falls(text: str, method: str, names: Sequence[str], sign: int = -1, unit: str = " points") -> Claim:
    """The first measure of a method falls, or with `sign=1` rises: the slope of a line over the mean delays run."""
    delays = 2.0 * np.arange(len(names))  # they are 2 apart

    def of(values: Values) -> np.ndarray:
        found = np.stack([values(method, name) for name in names])
        run = np.isfinite(found).any(axis=1)
        return sign * np.polyfit(delays[run], found[run], 1)[0] if run.sum() > 1 else np.full(found.shape[1], np.nan)

    return Claim(f"{text} (slope over the mean delays)", of, f"{unit} per tick of delay")
