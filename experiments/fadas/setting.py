"""The setting of FADAS (section 6): methods, delays and fleets of all tables, and the data and rates of the images."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import optax

import jaxafl as afl
from experiments.suite import Cell, first, stand_in

FAMILY = "fadas"
TUNED = {"FADAS": (0.03, 3e-4), "FADAS_da": (0.03, 3e-4), "FedBuff": (0.03, 1.0), "FedAsync": (0.001, 1.0)}
"""(η_l, η) at the scale of a CPU: the best of `experiments.fadas.rates` on a validation split, one column, one seed."""


def scales(steps: str) -> dict[str, str]:
    """What a scale changes, with so many server steps on a CPU."""
    return {
        "smoke": "noise in the place of the images, 2 server steps, logistic regression",
        "cpu": f"cnn_small for ResNet-18, the first 10,000 training and 2,000 test images, {steps} for 500, evaluated "
        "at every 5th; rates found on a validation split",
        "paper": "as published: ResNet-18, 500 server steps, evaluated at each",
    }


SCALES = scales("100 server steps (50 of M = 10)")
REASONS = {
    "cpu": "a network of 26,000 parameters for one of 11 million, a fifth of the images, fewer server steps: only "
    "the order of the methods can be compared. FedAsync takes as many server steps as the others, of a single "
    "arrival each, and these are too few for it. The rates are the best of one column (Dir(0.3), large) and one "
    "seed, for FedAsync at the edge of the grid. Those of FADAS and FADAS_da are the same, so that under mild "
    "delays, where no staleness is above τ_c = 8, so are the two methods"
}
TRAIN = 10_000  # images at the scale of a CPU
SYNCHRONOUS = ("FedAvg", "FedAMS")


class Method(NamedTuple):
    """A row: an algorithm, and what else it changes.

    Attributes:
        algorithm: one of those of `server_of`.
        rates: (η_l, η), where they are not those of the column.
        tau_c: of FADAS_da. Unpublished for the tables; 8 is the best of Figure 1a.
        fleet: changes of the column's fleet.
        clock: further options of `free_running`.
    """

    algorithm: str
    rates: tuple[float, float] | None = None
    tau_c: float = 8.0
    fleet: Mapping[str, Any] = {}
    clock: Mapping[str, Any] = {}


class Fleet(NamedTuple):
    """N clients, M_c in flight, a buffer of M; and their delays."""

    clients: int
    in_flight: int
    buffer: int
    delays: str


class Column(NamedTuple):
    """Images of 10 or 100 classes, divided by Dirichlet(alpha)."""

    classes: int
    alpha: float
    fleet: Fleet


METHODS = {name: Method(name) for name in ("FADAS", "FADAS_da", "FedBuff", "FedAsync")}
LARGE, MILD = Fleet(50, 25, 5, "large"), Fleet(100, 20, 10, "mild")
COLUMNS = {
    f"CIFAR-{classes}, Dir({alpha}), {fleet.delays}": Column(classes, alpha, fleet)
    for fleet in (LARGE, MILD)
    for classes in (10, 100)
    for alpha in (0.1, 0.3)
}


def server_of(method: Method, rate: float) -> afl.server.Server:
    """The server with its rate η; what is not said here is the package's default: β = (0.9, 0.99), ε = 1e-8."""
    if method.algorithm == "FedAsync":
        return afl.server.fedasync(alpha=rate, staleness="constant", mix="delta")
    if method.algorithm == "FADAS_da":
        return afl.server.fadas(rate, delay_scaling="eq77", tau_c=method.tau_c)
    if method.algorithm == "FedBuff":  # without the discount of its own paper
        return afl.server.fedbuff(rate, staleness="none")
    return getattr(afl.server, method.algorithm.lower())(rate)


def clock_of(method: Method, fleet: Fleet) -> afl.clock.Clock:
    """Rounds of as many clients as a buffer holds, single arrivals, or buffers whose replacements start together."""
    durations = afl.clock.three_tier(fleet.delays)
    if method.algorithm in SYNCHRONOUS:
        return afl.clock.synchronous(cohort=fleet.buffer, durations=durations)
    own = {"buffer": arrivals(method, fleet), "dispatch": "step", **method.clock}
    return afl.clock.free_running(concurrency=fleet.in_flight, durations=durations, **own)


def arrivals(method: Method, fleet: Fleet) -> int:
    """Of a server step."""
    return 1 if method.algorithm == "FedAsync" else fleet.buffer


def rates_of(method: Method, column: Column, scale: str) -> tuple[float, float]:
    """(η_l, η) as published, on a CPU as found; those of FedAvg and FedAMS are unpublished: they take FedBuff's and
    FADAS's."""
    algorithm = {"FedAvg": "FedBuff", "FedAMS": "FADAS"}.get(method.algorithm, method.algorithm)
    if method.rates or (scale == "cpu" and algorithm in TUNED):
        return method.rates or TUNED[algorithm]
    mild = column.fleet.delays == "mild"
    return {
        "FedAsync": (0.01 if column.classes == 100 or (mild and column.alpha == 0.3) else 0.003, 1.0),
        "FedBuff": (0.03, 1.0),
        "FADAS": (0.1, 3e-4 if mild else 1e-4),
        "FADAS_da": (0.1, 1e-3),
    }[algorithm]


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


def no_data(columns: Iterable[str]) -> list[str]:
    """Those of CIFAR-100, and of BERT base, whose weights are pretrained."""
    return [name for name in columns if not name.startswith("CIFAR-10,")]


def cell_of(methods: Mapping[str, Method], row: str, name: str, scale: str) -> Cell:
    """What is run for a method in a column of images."""
    method, column = methods[row], COLUMNS[name]
    fleet, rates = column.fleet._replace(**method.fleet), rates_of(method, column, scale)
    steps = {"smoke": 2, "cpu": 500 // column.fleet.buffer, "paper": 500}[scale]
    local = 2 * (TRAIN if scale == "cpu" else 50_000) // (50 * fleet.clients) + 1  # + 1: partial batches

    def make() -> afl.Simulation:
        model = {"smoke": afl.models.logistic, "cpu": afl.models.cnn_small, "paper": afl.models.resnet18}[scale]
        return afl.Simulation(
            data=data_of(column.classes, column.alpha, fleet.clients, scale),
            model=model(column.classes),
            client=afl.Client(
                optax.sgd, learning_rate=rates[0], weight_decay=1e-4, epochs=2, batch_size=5 if scale == "smoke" else 50
            ),
            server=server_of(method, rates[1]),
            clock=clock_of(method, fleet),
        )

    return Cell(make, steps, steps * arrivals(method, fleet) * local, eval_every=5 if scale == "cpu" else 1)
