"""AUDG and PSURDG on smooth, strongly convex problems, beside the bounds of Theorems 1-3, PDD (45) and Θ."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterable
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import xarray as xr

import jaxafl as afl
from experiments.audg_psurdg.setting import TICKS
from experiments.suite import Cell, Claim, Experiment, Measure, Values, main
from experiments.suite.experiment import Array
from jaxafl.theory import Quadratic, delayed_gradients, evaluate, quadratic, staleness

RATE, CLIENTS = 0.5, 4
SERVERS = {"SFL": afl.server.audg, "AUDG": afl.server.audg, "PSURDG": afl.server.psurdg}
THEOREMS = {"SFL": delayed_gradients.sfl, "AUDG": delayed_gradients.audg, "PSURDG": delayed_gradients.psurdg}
LOSS, SHARE, PDD, THETA = "loss of the mean model", "largest share of its bound", "PDD (45)", "Θ"
COLUMNS = {
    f"h = {spread:g}, d = {delay}": (spread, delay) for spread, delay in itertools.product((0.0, 1.0), (1, 5, 9))
}


@functools.lru_cache(2)
def problem(heterogeneity: float) -> Quadratic:
    """Four quadratics with μ = 0.1, L = 1 and the optima h from the common one."""
    return quadratic(CLIENTS, heterogeneity=heterogeneity)


def cell(method: str, name: str, scale: str) -> Cell:
    """50 ticks; the uploads of the synchronous method all succeed."""
    (spread, delay), found = COLUMNS[name], problem(COLUMNS[name][0])
    upload = (1.0,) * CLIENTS if method == "SFL" else (1 / (1 + delay), 0.5, 0.5, 0.5)

    def make() -> afl.Simulation:
        return afl.Simulation(
            data=found.data,
            model=found.model,
            client=afl.Client(optax.sgd, learning_rate=1.0, steps=1, batch_size=None),
            server=SERVERS[method](RATE),
            clock=afl.clock.bernoulli(np.asarray(upload)),
        )

    return Cell(
        make,
        5 if scale == "smoke" else TICKS,
        round(TICKS * sum(upload)),
        diagnostics=("average",),
        known={"method": method, "heterogeneity": spread},
        observe=lambda params: {"away": jnp.linalg.norm(params["w"] - found.solution)},
    )


def bound(runs: xr.Dataset, theorem: Any) -> xr.Dataset:
    """A bound at every T, with the R and G of the largest ball that a seed has been to."""
    found, reuses = problem(runs.attrs["heterogeneity"]), theorem is delayed_gradients.psurdg
    uploads = json.loads(runs.attrs["clock"])["upload"]
    moments = staleness.bernoulli(uploads, clients=CLIENTS, age="gradient" if reuses else "model")
    constants = found.constants(float(runs.observe_away.max()))
    return evaluate(theorem, constants, moments, server_steps=runs.eval_step.values[1:], learning_rate=RATE)


def gap(runs: xr.Dataset) -> Array:
    """f(ŵ(T)) - f(w*) at every T, [seeds, T]."""
    return runs.average_loss.values[:, 1:] - problem(runs.attrs["heterogeneity"]).optimum


def share(runs: xr.Dataset) -> Array:
    """Per cent, of the T at which it is largest."""
    return 100 * (gap(runs) / bound(runs, THEOREMS[runs.attrs["method"]])["total"].values).max(axis=1)


def of_audg(theorem: Any) -> Measure:
    """A number that belongs to the runs of AUDG: a bound after the last tick."""

    def of(runs: xr.Dataset) -> Array:
        known = runs.attrs["method"] == "AUDG"
        return np.full(runs.sizes["seed"], bound(runs, theorem)["total"].values[-1] if known else np.nan)

    return Measure(of, digits=4)


def least(of: Callable[[str], Array], among: Iterable[str]) -> Array:
    """The smallest over the columns that were run, a number per seed."""
    return np.fmin.reduce([of(name) for name in among])


def late(values: Values, name: str, more: str, other: str, limit: str | None = None) -> Array:
    """By how much a method's loss, less another's, is below a limit, or 0."""
    difference = values(more, name) - values(other, name)
    return (values("AUDG", name, limit) if limit else 0.0) - difference


EXPERIMENT = Experiment(
    title="AUDG and PSURDG, Theorems 1-3, PDD (45) and Θ: losses on quadratics and what bounds them",
    family="audg_psurdg_bounds",
    cell=cell,
    methods=list(SERVERS),
    columns=list(COLUMNS),
    measures={
        LOSS: Measure(lambda runs: gap(runs)[:, -1], digits=4),
        SHARE: Measure(share, " %"),
        PDD: of_audg(delayed_gradients.pdd),
        THETA: of_audg(delayed_gradients.psurdg_less_audg),
    },
    scales={"smoke": "5 ticks", "paper": f"{TICKS} ticks, {CLIENTS} clients in dimension 5"},
    claims=[
        *(
            Claim(
                f"{method} stays below its bound, in all columns",
                lambda v, m=method: least(lambda at: 100 - v(m, at, SHARE), COLUMNS),
            )
            for method in THEOREMS
        ),
        Claim(
            "where h = 0, delays cost AUDG less than PDD, in all columns",
            lambda v: least(lambda at: late(v, at, "AUDG", "SFL", PDD), [at for at in COLUMNS if not COLUMNS[at][0]]),
        ),
        Claim(
            "PSURDG's loss less AUDG's is below Θ, in all columns",
            lambda v: least(lambda at: late(v, at, "PSURDG", "AUDG", THETA), COLUMNS),
        ),
        *(
            Claim(
                f"{name}: PSURDG's loss is smaller than AUDG's, as Θ < 0 has it",
                lambda v, at=name: late(v, at, "PSURDG", "AUDG"),
            )
            for name in COLUMNS
        ),
    ],
    seeds=20,
    base=lambda column: "AUDG",
    note="f(ŵ(T)) - f(w*), ŵ(T) the mean of x_1 .. x_T, of quadratics with μ = 0.1, L = 1, ‖x_0 - w*‖ = 1 and optima "
    f"at most h from the common one, whose constants are all known; η = {RATE:g}. R and G are those of the largest "
    "ball around w* that a seed has been to. Bounds are of means over seeds; the mean of each seed's largest share "
    "is no smaller. PDD and Θ are differences of two bounds, which bound no difference of two losses: not "
    "guaranteed. Θ, as printed but for L - μ, has the age of the models for both methods; with that of the "
    "gradients, which PSURDG's bound above has, PSURDG's bound is the larger one in every column.",
)

if __name__ == "__main__":
    main(EXPERIMENT)
