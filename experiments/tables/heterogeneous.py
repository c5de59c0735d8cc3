"""Who forgets the slow clients: nine methods, if slow clients hold classes of their own, and if they do not."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import jaxafl as afl
from experiments.suite import Cell, Claim, Experiment, Measure, last, main, stand_in
from jaxafl.options import static

CLIENTS, SLOW, HELD = 20, 4, (8, 9)  # clients 0 ... 3 are slow; four clients hold these classes, and no others
SECONDS = np.repeat([10.0, 1.0], [SLOW, CLIENTS - SLOW])
LOCAL_STEPS, BUFFER, TICK, SEEDS = 10, 5, 0.3, 10  # with ticks of 0.3 s, 4.9 clients arrive at each in the mean
UPDATES = {"smoke": 60, "cpu": 1200, "paper": 10_000}
OWN, MIXED = "slow clients hold their own classes", "speed is independent of classes"
OF_SLOW, OF_FAST = "accuracy_of_slow_clients", "accuracy_of_fast_clients"
ON_SLOW, ON_FAST, ON_ALL, RATE = "accuracy on slow clients", "accuracy on fast clients", "accuracy", "chosen rate"


class two_groups(afl.data.Partition):
    """Equal parts: four clients share two classes, the others share the other eight.

    Args:
        together: the four are the first clients. Otherwise they are every fifth client.
    """

    together: bool = static(default=True)

    def split(self, labels: np.ndarray, users: np.ndarray | None, rng: np.random.Generator) -> Sequence[np.ndarray]:
        """Rows of each client, with a mix of its group's classes from Dir(0.1, ..., 0.1)."""
        held, parts = np.isin(labels, HELD), []
        for group, clients in ((held, SLOW), (~held, CLIENTS - SLOW)):
            rows = np.flatnonzero(group)
            mixed = afl.data.dirichlet_equal(0.1 * len(np.unique(labels[rows])), clients)
            parts += [rows[part] for part in mixed.split(labels[rows], None, rng)]
        of_five = np.argsort([0, 5, 10, 15, *(client for client in range(CLIENTS) if client % 5)])
        return parts if self.together else [parts[client] for client in of_five]


class Method(NamedTuple):
    """A server with its clock, the rates that are tried, and the client's correction."""

    server: afl.server.Server
    clock: afl.clock.Clock
    rates: Sequence[float] = (0.1, 0.3, 1.0)
    path: str = "server.learning_rate"
    correction: Any = None


TIMES = afl.clock.constant(SECONDS) * afl.clock.uniform(0.8, 1.2)
BUFFERED = afl.clock.free_running(concurrency=CLIENTS, buffer=BUFFER, durations=TIMES)
SINGLE = afl.clock.warm_up(afl.clock.free_running(concurrency=CLIENTS, durations=TIMES), first="all")
TICKS = afl.clock.bernoulli(upload=TICK / SECONDS)
SMALL = (0.02, 0.06, 0.2)  # a fifth, for steps with one arrival in the place of five
NO_DISCOUNT, SCAFFOLD = afl.server.fedbuff(staleness="none"), afl.correction.scaffold()
METHODS = {
    "FedBuff": Method(afl.server.fedbuff(), BUFFERED, (0.1, 0.3, 1.0, 3.0)),
    "FedBuff, no discount": Method(NO_DISCOUNT, BUFFERED),
    "SCAFFOLD": Method(NO_DISCOUNT, BUFFERED, correction=SCAFFOLD),
    "CA²FL": Method(afl.server.ca2fl(), BUFFERED),
    "MIFA": Method(afl.server.mifa(), BUFFERED),
    "FedStale": Method(
        afl.server.fedstale(participation=TICK / SECONDS, weights="uniform"), TICKS, (0.03, 0.1, 0.3, 1.0)
    ),
    "AREA": Method(afl.server.area(), BUFFERED, SMALL, "client.learning_rate"),
    "ACE": Method(afl.server.ace(), SINGLE, SMALL),
    "ACED": Method(afl.server.aced(), SINGLE, SMALL),
}


@functools.lru_cache(None)
def data(column: str, scale: str) -> afl.data.FederatedData:
    """The same division for all seeds, with test images by the clients' shares, and a tenth for validation."""
    images = stand_in((28, 28, 1), 10) if scale == "smoke" else afl.data.fashion_mnist()
    return images.partition(two_groups(together=column == OWN), test="per_client").with_validation(0.1)


@functools.lru_cache(None)
def model(scale: str) -> afl.models.Model:
    return afl.models.logistic(10) if scale == "smoke" else afl.models.mlp(10, hidden=(50,))


def cell(method: str, column: str, scale: str) -> Cell:
    """All rates of a method, with as many client updates as the other methods."""
    one, updates = METHODS[method], UPDATES[scale]
    steps = updates - CLIENTS + 1 if one.clock is SINGLE else updates // BUFFER
    rates = one.rates[:2] if scale == "smoke" else one.rates

    def make() -> afl.Simulation:
        client = afl.Client(learning_rate=0.05, steps=LOCAL_STEPS, batch_size=20, correction=one.correction)
        return afl.Simulation(data(column, scale), model(scale), client, one.server, one.clock)

    return Cell(
        make,
        steps,
        updates * LOCAL_STEPS * len(rates),
        eval_every=max(1, steps // 20),
        diagnostics=("per_client",),
        axes={one.path: rates},
    )


def at_chosen(runs: Any) -> Any:
    """The runs at the rate with the largest validation accuracy of the last 5 evaluations, in the mean over seeds."""
    (path,) = {one.path for one in METHODS.values()} & {*runs.dims}
    runs = runs.transpose("seed", path, ...)
    best = last("validation_accuracy").of(runs).mean(axis=0).argmax()
    runs = runs.isel({path: best}).rename({path: RATE})
    slow = runs.population < SLOW
    of = {OF_SLOW: runs.client_accuracy.where(slow), OF_FAST: runs.client_accuracy.where(~slow)}
    return runs.assign({name: each.mean("population") for name, each in of.items()})


def lead(text: str, one: tuple[str, ...], other: tuple[str, ...]) -> Claim:
    """Returns the claim that one (method, column, measure) is above another."""
    return Claim(text, lambda values: values(*one) - values(*other), " points")


def gap(values: Any, method: str, column: str) -> Any:
    """Points by which a method is less accurate on slow clients than on fast ones."""
    return values(method, column, ON_FAST) - values(method, column)


PLAIN, REMEMBERING = "FedBuff, no discount", ("CA²FL", "MIFA", "FedStale", "AREA", "ACE")
EXPERIMENT = Experiment(
    title="Tables, heterogeneous: who forgets the slow clients, Dir(0.1), Fashion-MNIST",
    family="tables_heterogeneous",
    cell=cell,
    methods=list(METHODS),
    columns=[OWN, MIXED],
    measures={
        ON_SLOW: last(OF_SLOW),
        ON_FAST: last(OF_FAST),
        ON_ALL: last(),
        RATE: Measure(lambda runs: np.full(runs.sizes["seed"], runs[RATE].item())),
    },
    scales={
        "smoke": "noise in the place of the images, logistic regression, 60 client updates, two rates",
        "cpu": "1,200 client updates per run, three or four rates, three seeds",
        "paper": "no paper, but larger: 10,000 client updates per run, three or four rates, ten seeds",
    },
    claims=[
        *(
            lead(
                f"{column}: FedBuff is more accurate on fast clients", ("FedBuff", column, ON_FAST), ("FedBuff", column)
            )
            for column in (OWN, MIXED)
        ),
        Claim(
            "FedBuff: fast clients are further ahead if slow clients hold their own classes",
            lambda v: gap(v, "FedBuff", OWN) - gap(v, "FedBuff", MIXED),
            " points",
        ),
        lead(f"{OWN}: the discount makes FedBuff less accurate on them", (PLAIN, OWN), ("FedBuff", OWN)),
        *(
            lead(
                f"{column}: {name} is more accurate on slow clients than FedBuff without discount",
                (name, column),
                (PLAIN, column),
            )
            for column in (OWN, MIXED)
            for name in ("SCAFFOLD", *REMEMBERING)
        ),
        lead(
            f"{OWN}: ACED, without old updates, is less accurate on slow clients than ACE", ("ACE", OWN), ("ACED", OWN)
        ),
        *(
            lead(
                f"{OWN}: {name} is less accurate on fast clients than FedBuff without discount",
                (PLAIN, OWN, ON_FAST),
                (name, OWN, ON_FAST),
            )
            for name in REMEMBERING
        ),
    ],
    seeds=SEEDS,
    few=3,
    curve=(OF_SLOW, "eval_updates"),
    derived=at_chosen,
    note=(
        "Nothing here was published, so there is nothing to compare with. Fashion-MNIST is divided over 20 clients in "
        "equal parts. Four clients share bags and ankle boots, and the other 16 share the other eight classes. Within "
        "both groups the mix of a client is drawn from Dir(0.1, ..., 0.1). Four clients are slow: they need ten times "
        "as long. In the first column these are the four with their own classes, in the second one of those and three "
        "others; the data are the same. Every client is tested on test images of its own mix. All methods have as many "
        "client updates (FedStale has 2 % fewer in the mean), since these are what clients pay for. All clients train "
        "all the time, so the simulated time is the same, too. The server steps after five arrivals, and that of ACE "
        "and ACED after each, once all clients have arrived. FedStale has ticks of 0.3 s, at which an update arrives "
        "with probability 0.3, or 0.03 for slow clients. Stale updates are our extension of MIFA, FedStale and "
        "SCAFFOLD, which here is FedBuff without a discount. ACED uses an update for 20 arrivals, and a slow client "
        "arrives after about 164. A tenth of the training images of every client is held out, and the rate with the "
        "best accuracy on them is chosen for each column. It is the server's rate. AREA has none, so there it is the "
        "local rate, which is 0.05 otherwise."
    ),
)

if __name__ == "__main__":
    main(EXPERIMENT)
