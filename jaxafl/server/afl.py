"""AFL."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxafl.checks import check_choice, check_flag, check_number
from jaxafl.client import Moment
from jaxafl.pytrees import pytree, static
from jaxafl.server.contract import Arrivals, Needs, Tree, Update, counts, norm, weighted_sum

Array = jax.Array


@pytree
class AFL:
    """See `afl`."""

    a: Any
    tolerance: Any
    broadcast: bool = static(default=True)

    name: ClassVar[str] = "afl"
    clocks: ClassVar[frozenset[str]] = frozenset({"stale_rounds"})
    references: ClassVar[tuple[str, ...]] = ("afl2025",)

    @property
    def needs(self) -> Needs:
        return Needs(start=True, client_models=not self.broadcast)

    def check(self, clock: Any, client: Any, num_clients: int) -> None:
        check_number("afl", "a", self.a, least=0)
        check_number("afl", "tolerance", self.tolerance, least=0)
        check_flag("afl", "broadcast", self.broadcast)
        if not self.broadcast and (clock.max_staleness or clock.replacement):
            raise ValueError(
                "afl(broadcast=False) lets every client go on from its own model: give stale_rounds(max_staleness=0) "
                "without replacement"
            )

    def init(self, params: Tree, samples: Array) -> Array:
        return jnp.bool_(False)  # whether the run has converged

    def update(self, params: Tree, state: Array, arrivals: Arrivals) -> Update:
        models = jax.tree.map(jnp.add, arrivals.start, arrivals.delta)
        weights = counts(arrivals) * arrivals.samples
        weights = weights * (1 + arrivals.staleness.astype(weights.dtype)) ** (-jnp.asarray(self.a, weights.dtype))
        average = weighted_sum(weights / jnp.sum(weights), models)
        new = jax.tree.map(lambda x, y: jnp.where(state, x, y), params, average)
        step = norm(jax.tree.map(jnp.subtract, new, params))
        stopped = state | ((step <= self.tolerance) & (self.tolerance > 0))
        info = {"step_norm": step, "stopped": stopped}
        return Update(new, stopped, info, client_params=None if self.broadcast else models)


def afl(a: Any = 0.0, tolerance: Any = 0.0, broadcast: bool = True) -> AFL:
    """AFL with non-convex objectives: x ← Σ w_i x_i^K over the J clients of a round, w_i ∝ n_i (1 + τ_i)^(-a).

    The J clients start from stale versions (`stale_rounds`). Local training is I epochs of Adam at the rate
    γ_e = γ_0 / (√(e + 1) (1 + α d_i)) with early stopping: `Client(optax.adam, learning_rate=γ_0, epochs=I,
    rate_schedule=jaxafl.server.afl_rate(α), patience=10)`.

    Args:
        a: exponent of the penalty on outdated updates; 0 (s = 1) as in the paper's experiments.
        tolerance: κ: the run has converged once ‖x_{t+1} - x_t‖ <= κ, and x stays; 0 never stops.
        broadcast: with `False` the server's model is never sent to the clients, each goes on from its own last model:
            what the authors' scripts do, whose curves (the mean LOCAL training loss) it reproduces. It is not the
            algorithm: the clients then train on their own data alone, and the server's average has no influence on
            anything. Their constant delay d = 2 is `durations=constant(2.0)` with `afl_rate(delay="seconds")`.

    References:
        "Asynchronous federated learning with non-convex client objective functions and heterogeneous dataset",
        Algorithm 1.
    """
    return AFL(a, tolerance, broadcast)


@dataclasses.dataclass(frozen=True)
class AFLRate:
    """See `afl_rate`."""

    alpha: float
    delay: str

    def __call__(self, moment: Moment) -> Array:
        delay = moment.staleness if self.delay == "staleness" else moment.duration
        return 1 / (jnp.sqrt(moment.epoch + 1.0) * (1 + self.alpha * delay))


def afl_rate(alpha: float = 0.01, delay: str = "staleness") -> AFLRate:
    """AFL's local rate: the factor 1 / (√(e + 1) (1 + α d_i)) of local epoch e, for `Client(rate_schedule=...)`.

    Args:
        alpha: α >= 0.
        delay: d_i is the `"staleness"` τ_i of the update, or the `"seconds"` that the run takes.
    """
    check_number("afl_rate", "alpha", alpha, least=0)
    check_choice("afl_rate", "delay", delay, ("staleness", "seconds"))
    return AFLRate(float(alpha), delay)
