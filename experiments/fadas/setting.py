"""The setting of FADAS's image tables (section 6): clients, delays, methods and their published rates."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import optax

import jaxafl as afl
from experiments.suite import Cell, first, stand_in

SCALES = {
    "smoke": "noise in the place of the images, 2 server steps, logistic regression",
    "cpu": "cnn_small for ResNet-18, the first 10,000 training and 2,000 test images, 150 server steps (75 of M = 10) "
    "for 500, evaluated at every 5th; rates as published, not tuned anew",
    "paper": "as published: ResNet-18, 500 server steps, evaluated at each",
}
REASONS = {
    "cpu": "a network of 26,000 parameters for one of 11 million, a fifth of the images, fewer server steps, at rates "
    "that were tuned for the large one: only the order of the methods can be compared"
}
METHODS = ("FedAsync", "FedBuff", "FADAS", "FADAS_da")
TRAIN = 10_000  # images at the scale of a CPU


class Column(NamedTuple):
    """A dataset, its heterogeneity, and the delays with their fleet: N clients, M_c in flight, M a buffer."""

    classes: int
    alpha: float
    delays: str
    clients: int
    in_flight: int
    buffer: int


def columns(*delays: str) -> dict[str, Column]:
    """CIFAR-10 and CIFAR-100 by Dirichlet(0.1) and Dirichlet(0.3) under these delays."""
    fleets = {"large": (50, 25, 5), "mild": (100, 20, 10)}
    return {
        f"CIFAR-{classes}, Dir({alpha}), {profile}": Column(classes, alpha, profile, *fleets[profile])
        for profile in delays
        for classes in (10, 100)
        for alpha in (0.1, 0.3)
    }


@functools.lru_cache(4)
def data_of(classes: int, alpha: float, clients: int, scale: str) -> afl.data.FederatedData:
    """Always the same division among the clients: seeds vary delays, initial models and mini-batches."""
    if scale == "smoke":
        images = stand_in((32, 32, 3), classes, 10 * clients)
    else:
        images = (afl.data.cifar10 if classes == 10 else afl.data.cifar100)(augment=True)
    if scale == "cpu":
        images = first(images, TRAIN, 2_000)
    return images.partition(afl.data.dirichlet(alpha, clients=clients, min_size=1), seed=0)


def rates(method: str, column: Column) -> tuple[float, Any]:
    """Local rate and server, as published for images."""
    if method == "FedAsync":
        local = 0.01 if column.classes == 100 or (column.delays, column.alpha) == ("mild", 0.3) else 0.003
        return local, afl.server.fedasync(alpha=1.0, mix="delta")
    if method == "FedBuff":
        return 0.03, afl.server.fedbuff(learning_rate=1.0)
    if method == "FADAS":
        return 0.1, afl.server.fadas(learning_rate=3e-4 if column.delays == "mild" else 1e-4)
    return 0.1, afl.server.fadas(learning_rate=1e-3, delay_scaling="eq77", tau_c=8.0)


def cell_of(columns: Mapping[str, Column], method: str, name: str, scale: str, **clock: Any) -> Cell:
    """What is run for a method in a column; `clock`: further options of it."""
    column, smoke = columns[name], scale == "smoke"
    steps = {"smoke": 2, "cpu": 750 // column.buffer, "paper": 500}[scale]
    buffer = 1 if method == "FedAsync" else column.buffer
    local = max(1, 2 * (TRAIN if scale == "cpu" else 50_000) // column.clients // 50)

    def make() -> afl.Simulation:
        local_rate, server = rates(method, column)
        model = {"smoke": afl.models.logistic, "cpu": afl.models.cnn_small, "paper": afl.models.resnet18}[scale]
        batch = {"batch_size": 5} if smoke else {"batch_size": 50}
        dispatch = {} if buffer == 1 else {"dispatch": "step", **clock}
        return afl.Simulation(
            data=data_of(column.classes, column.alpha, column.clients, scale),
            model=model(column.classes),
            client=afl.Client(optax.sgd, learning_rate=local_rate, weight_decay=1e-4, epochs=2, **batch),
            server=server,
            clock=afl.clock.free_running(
                concurrency=column.in_flight, buffer=buffer, durations=afl.clock.three_tier(column.delays), **dispatch
            ),
        )

    return Cell(make, steps, steps * buffer * local, eval_every=5 if scale == "cpu" else 1)
