"""What the studies of times share: a quadratic with noise, and the time at which it is solved."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxafl as afl
from experiments.suite import Cell, Measure
from experiments.suite.experiment import Array

DIMENSION = {"smoke": 10, "cpu": 100, "paper": 1729}
EFFORT, RATIO = 8, 16  # LΔ/ε and σ²/ε
NOTE = (
    "f(x) = ½xᵀAx - bᵀx with A = ¼ tridiag(-1, 2, -1), b = ¼(-1, 0, ..., 0) and x_0 = (√d, 0, ..., 0), so that L < 1. "
    f"b, x_0, LΔ/ε = {EFFORT} and σ²/ε = {RATIO} are our choice. All clients have this f and gradients with normal "
    "noise. ε is reached when the mean of ‖∇f‖² over all versions is ε, which is what theorems bound. "
)


class Problem(NamedTuple):
    """A model of f(x), with ∇f and Δ = f(x_0) - f*."""

    model: afl.models.Model
    gradient: Callable[[Any], Any]
    gap: float


@functools.lru_cache(None)
def problem(dimension: int) -> Problem:
    """f(x) = ½xᵀAx - bᵀx with A = ¼ tridiag(-1, 2, -1), so that L < 1, b = ¼(-1, 0, ..., 0), x_0 = (√d, 0, ..., 0)."""
    right, start = np.zeros(dimension), np.zeros(dimension)
    right[0], start[0] = -0.25, math.sqrt(dimension)
    matrix = 0.5 * np.eye(dimension) - 0.25 * (np.eye(dimension, k=1) + np.eye(dimension, k=-1))
    solution = np.linalg.solve(matrix, right)
    gap = 0.5 * (start - solution) @ matrix @ (start - solution)
    deviation = math.sqrt(RATIO * gap / EFFORT / dimension)

    def gradient(x: Any) -> Any:
        inner = jnp.pad(x, 1)
        return 0.5 * x - 0.25 * (inner[:-2] + inner[2:]) - jnp.asarray(right, x.dtype)

    def loss(params: Any, batch: Any, key: Any, train: bool) -> Any:
        x = params["x"]
        noise = deviation * jax.random.normal(key, x.shape, x.dtype) if train else 0.0
        value = 0.5 * jnp.sum(x * (gradient(x) - jnp.asarray(right, x.dtype)) + 2 * x * noise)
        return jnp.broadcast_to(value, len(batch.y))

    def init(key: Any, batch: Any) -> Any:
        return {"x": jnp.asarray(start, jnp.result_type(float))}

    return Problem(afl.models.from_functions(init, loss, "tridiagonal quadratic"), gradient, gap)


def cell_of(
    scale: str,
    clients: int,
    server: afl.server.Server,
    clock: afl.clock.Clock,
    server_steps: int,
    gradients: float,
    known: Mapping[str, Any],
) -> Cell:
    """Clients that send a gradient per run; `gradients` is how many a server step takes, `known` see `Cell`."""
    solved = problem(DIMENSION[scale])

    def make() -> afl.Simulation:
        nothing = np.zeros((1, 1), np.float32)
        data = afl.data.Dataset("quadratic", nothing, nothing[0], nothing, nothing[0], None, afl.data.cast())
        client = afl.Client(optax.sgd, learning_rate=1.0, steps=1, batch_size=1)
        return afl.Simulation(data.partition(afl.data.iid_shared(clients)), solved.model, client, server, clock)

    return Cell(
        make,
        server_steps,
        int(gradients * server_steps),
        eval_every=server_steps,
        observe=lambda params: {"squared": jnp.sum(solved.gradient(params["x"]) ** 2)},
        known={"target": solved.gap / EFFORT, **known},
    )


def seconds(runs: Any) -> Array:
    """Time at which the mean of ‖∇f‖² over all versions so far is ε, straight between server steps."""
    squared = runs.observe_squared.transpose("seed", ...).values.astype(float)
    below = np.cumsum(squared, axis=1) / np.arange(1, squared.shape[1] + 1) / runs.attrs["target"] - 1
    times = np.pad(np.broadcast_to(runs.time.values, squared[:, 1:].shape), ((0, 0), (1, 0)))
    return np.array([_crossing(*one) for one in zip(below, times, strict=True)])


def _crossing(values: Array, times: Array) -> float:
    """Time at which values first fall to 0; infinity if they never do."""
    at = int(np.argmax(values <= 0))
    if values[at] > 0:
        return np.inf
    return float(np.interp(0.0, values[[at, at - 1]], times[[at, at - 1]])) if at else 0.0


def of_cell(name: str) -> Measure:
    """A number that the cell knows."""
    return Measure(lambda runs: np.full(runs.sizes["seed"], runs.attrs[name]), digits=1)
