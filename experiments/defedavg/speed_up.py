"""DeFedAvg, Theorem 1: the speed-up in n that it predicts, linear, and that of simulated runs on quadratics."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray as xr

import jaxafl as afl
from experiments.suite import Cell, Claim, Experiment, Measure, Values, main
from experiments.suite.experiment import Array
from jaxafl.theory import Quadratic, defedavg, evaluate, quadratic

CLIENTS, UPDATES, LOCAL_STEPS = 16, 4096, 2
SIZES = {f"n = {size}": size for size in (1, 2, 4, 8)}
REACHED = "mean ‖∇F‖² over all server steps"


@functools.lru_cache(1)
def problem() -> tuple[Quadratic, dict[str, float]]:
    """Quadratics whose noise outweighs the rest, and their constants."""
    found = quadratic(CLIENTS, noise=1.0, heterogeneity=0.3, samples=16)
    return found, found.constants(batch_size=1)


def cell(method: str, name: str, scale: str) -> Cell:
    """All clients always train, n of them arrive per server step; the theorem's rates for this n and T."""
    size = SIZES[name]
    steps = (64 if scale == "smoke" else UPDATES) // size
    found, constants = problem()
    given: dict[str, Any] = {"server_steps": steps, "arrivals": size, "local_steps": LOCAL_STEPS}
    taken = inspect.signature(defedavg.step_sizes).parameters
    rates = defedavg.step_sizes(**{key: one for key, one in (constants | given).items() if key in taken})

    def make() -> afl.Simulation:
        return afl.Simulation(
            data=found.data,
            model=found.model,
            client=afl.Client(learning_rate=float(rates["local_rate"]), steps=LOCAL_STEPS, batch_size=1),
            server=afl.server.defedavg_iid(learning_rate=float(rates["server_rate"])),
            clock=afl.clock.free_running(concurrency=CLIENTS, buffer=size, durations=afl.clock.exponential(1.0)),
        )

    return Cell(
        make,
        steps,
        steps * size * LOCAL_STEPS,
        eval_every=steps,
        diagnostics=("gradient_norm",),
        known={"given": given},
        observe=lambda params: {"away": jnp.linalg.norm(params["w"] - found.solution)},
    )


def bounded(runs: xr.Dataset) -> xr.Dataset:
    """Theorem 1 with the largest staleness that was seen, and G of the largest ball that a seed has been to."""
    constants = problem()[0].constants(float(runs.observe_away.max()), batch_size=1)
    return evaluate(defedavg.theorem_1, constants, runs.attrs["given"], staleness_max=int(runs.staleness.max()))


def of_runs(number: Callable[[xr.Dataset], float], digits: int) -> Measure:
    """A number of all seeds together."""
    return Measure(lambda runs: np.full(runs.sizes["seed"], number(runs)), digits=digits)


def reached(values: Values, name: str, share: float) -> Array:
    """By how much a share of what one update per server step reaches is above what n reach in an n-th of the steps."""
    return share * values("DeFedAvg-IID", "n = 1") - values("DeFedAvg-IID", name)


EXPERIMENT = Experiment(
    title="DeFedAvg, Theorem 1: the predicted speed-up in n and the simulated one",
    family="defedavg_speed_up",
    cell=cell,
    methods=["DeFedAvg-IID"],
    columns=list(SIZES),
    measures={
        REACHED: Measure(lambda runs: runs.gradient_norm_squared.values.astype(float).mean(axis=-1), digits=4),
        "bound of Theorem 1": of_runs(lambda runs: bounded(runs)["total"].item(), 3),
        "of its three conditions hold": of_runs(lambda runs: bounded(runs).attrs["conditions"].count(" holds"), 0),
        "largest staleness": of_runs(lambda runs: float(runs.staleness.max()), 0),
    },
    scales={"smoke": "64 updates", "paper": f"{UPDATES} updates of {LOCAL_STEPS} local steps each, {CLIENTS} clients"},
    claims=[
        Claim(f"{name}: reached in {word} of the server steps, within 5 %", lambda v, at=name: reached(v, at, 1.05))
        for name, word in zip(list(SIZES)[1:], ("half", "a quarter", "an eighth"), strict=True)
    ],
    seeds=10,
    note="Quadratics with μ = 0.1, L = 1, σ = 1, optima at most 0.3 from the common one; η and η̄ are those of the "
    "theorem for each n and T = 4096 / n. A speed-up that is linear in n, as the bound predicts, reaches the same "
    "with n updates a server step in an n-th of the steps. All clients are always in flight, for exponential times, "
    "so that who arrives is drawn uniformly, as the theorem has it. With such delays its conditions do not hold: the "
    "bound is not guaranteed here.",
)

if __name__ == "__main__":
    main(EXPERIMENT)
