"""The setting of all tables: four clients, 50 ticks, full-batch gradients of MNIST, uploads that fail.

An upload of clients 2, 3 and 4 succeeds with probability 0.5, one of client 1 with 1/(1 + d), d its mean delay.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import optax
import xarray as xr

import jaxafl as afl
from experiments.suite import Cell, first, stand_in
from jaxafl.options import static

RATE = {"CNN": 0.07, "Over-CNN": 0.05}
"""The server's learning rate, which is unpublished: the one at which the synchronous run of `table2` comes to the
published accuracy. The CNN, whose published accuracy is 87.15 %, comes to 87.5 % with 0.07 on the full pool, and to
84.7 % with 0.05 (two seeds each, 10 and 3.5 points apart); the Over-CNN's is provisional, as its full pool takes a day.
Not the rate that does best, on which the sign of Table III depends: PSURDG steps with all four gradients at every tick.
On a pool of 2,500 (the CNN, d = 9, 10 seeds) its accuracy was above AUDG's by 1.6 ± 3.2 points (standard error) at
0.05, where both learn slowly, and below it by 10.6 ± 7.0 at 0.1 and by 24.7 ± 4.7 at 0.2, where the synchronous run
does best."""
DELAYS = (1, 3, 5, 7, 9)
SIZES = {"small": (6250,) * 4, "medium": (10_000, *(5000,) * 3), "large": (17_500, *(2500,) * 3)}
POOL, TICKS = 25_000, 50
SMALL = {"CNN": 1000, "Over-CNN": 240}  # pools at the scale of a CPU
SCALES = {
    "smoke": "noise in the place of the images, a pool of 200, 3 ticks, logistic regression",
    "cpu": f"a pool of {SMALL['CNN']:,} training images for the CNN and of {SMALL['Over-CNN']} for the Over-CNN, for "
    "25,000; the first 1,000 test images, evaluated at every 5th tick; the Over-CNN with mean delays of 1 and 9 only",
    "paper": "as published, evaluated at every tick",
}
REASONS = {
    "cpu": "a pool of a hundredth (Over-CNN) or a twenty-fifth (CNN) of the images, from which less can be learned; "
    "the largest loss is that of every 5th tick",
    "paper": "the learning rate, the initial models and what is drawn are not the authors'",
}
NOTE = (
    f"Unpublished and fixed here: the learning rate, for the CNN {RATE['CNN']:g}, at which the synchronous run comes "
    f"to the published accuracy (Table II), for the Over-CNN provisionally {RATE['Over-CNN']:g}; the loss, that of the "
    "test images; its maximum, over the evaluations of a run, the initial one included; Figures 3, 4 and 5 as "
    "synchronous, Over-CNN and CNN on IID data."
)
NOTE_NON_IID = (
    f"{NOTE} Only the sizes of the clients of non-IID data are published: as 25,000 images with 2,500 of each class, "
    "sorted by label and cut at 6250 × 4, 10000 + 5000 × 3 and 17500 + 2500 × 3, they are whole classes, and so it is "
    "done here."
)


class Column(NamedTuple):
    """A network, how the pool is divided (`"IID"`: all clients hold all of it), and the mean delay of client 1."""

    network: str
    split: str
    delay: int


def columns(networks: Sequence[str], splits: Sequence[str]) -> dict[str, Column]:
    """By name: every mean delay with these networks and splits."""
    return {
        f"{network} {split}, d = {delay}": Column(network, split, delay)
        for split in splits
        for network in networks
        for delay in DELAYS
    }


class sorted_by_label(afl.data.Partition):
    """As many samples of every class, sorted by label and cut into parts of these sizes."""

    sizes: tuple[int, ...] = static()

    def split(self, labels: np.ndarray, users: np.ndarray | None, rng: np.random.Generator) -> list[np.ndarray]:
        classes = np.unique(labels)
        each = sum(self.sizes) // len(classes)
        rows = np.concatenate([rng.permutation(np.flatnonzero(labels == label))[:each] for label in classes])
        return np.split(rows.astype(np.int32), np.cumsum(self.sizes)[:-1])


@functools.lru_cache(4)
def data_of(split: str, clients: int, pool: int, scale: str) -> afl.data.FederatedData:
    """Always the same pool: seeds vary who gets through, and initial models."""
    mnist = stand_in((28, 28, 1), 10, pool) if scale == "smoke" else afl.data.mnist()
    mnist = first(mnist, len(mnist.y), 1000) if scale == "cpu" else mnist
    if split == "IID":
        return mnist.partition(afl.data.iid_shared(clients, samples=pool), seed=0)
    return mnist.partition(sorted_by_label(tuple(size * pool // POOL for size in SIZES[split])), seed=0)


def cell_of(columns: Mapping[str, Column], method: str, name: str, scale: str) -> Cell:
    """What is run for AUDG or PSURDG in a column."""
    column = columns[name]
    server = {"AUDG": afl.server.audg, "PSURDG": afl.server.psurdg}[method]
    upload = (1 / (1 + column.delay), 0.5, 0.5, 0.5)
    return cell(column.network, column.split, server(RATE[column.network]), upload, scale)


def synchronous(network: str, split: str, rate: float, scale: str) -> Cell:
    """All uploads succeed. Clients that hold the same samples are one."""
    return cell(network, split, afl.server.audg(rate), (1.0,) * (1 if split == "IID" else 4), scale)


def cell(network: str, split: str, server: Any, upload: tuple[float, ...], scale: str) -> Cell:
    """What is run for a server, with these probabilities that clients' uploads succeed."""
    smoke = scale == "smoke"
    pool, ticks = {"smoke": (200, 3), "cpu": (SMALL[network], TICKS), "paper": (POOL, TICKS)}[scale]

    def make() -> afl.Simulation:
        published = {"CNN": afl.models.cnn_small, "Over-CNN": afl.models.cnn_over}[network]
        return afl.Simulation(
            data=data_of(split, len(upload), pool, scale),
            model=(afl.models.logistic if smoke else published)(10),
            client=afl.Client(optax.sgd, learning_rate=1.0, steps=1, batch_size=None),
            server=server,
            clock=afl.clock.bernoulli(np.asarray(upload)),
        )

    return Cell(make, ticks, round(ticks * sum(upload)), eval_every=5 if scale == "cpu" else 1)


def normalised(runs: xr.Dataset) -> xr.Dataset:
    """With the loss divided by its maximum."""
    return runs.assign(normalised_loss=runs.loss / runs.loss.max("evaluation"))
