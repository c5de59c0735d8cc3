"""AFL."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from jaxafl.client import Client, Moment
from jaxafl.clock.contract import Delivery
from jaxafl.device import weighted_sum
from jaxafl.options import Number, Part, check_options, number, static
from jaxafl.server.contract import Arrivals, Needs, Outcome, Server, Tree, counts, norm

Array = jax.Array


class afl(Server):
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

    a: Number = number(default=0.0, least=0)
    tolerance: Number = number(default=0.0, least=0)
    broadcast: bool = static(default=True)

    requires = Delivery.AGED
    accepts = Delivery.STALE
    references = ("afl2025",)
    meanings: ClassVar[dict[str, str]] = {
        "step_norm": "Euclidean norm of the server's step",
        "converged": "whether the run has converged",
    }

    @property
    def needs(self) -> Needs:
        return Needs(base=True, client_models=not self.broadcast)

    def check(self, clock: Any, client: Client, num_clients: int) -> None:
        if not self.broadcast and (clock.max_staleness or clock.replacement):
            raise ValueError(
                "afl(broadcast=False) lets every client go on from its own model: give stale_rounds(max_staleness=0) "
                f"without replacement; got max_staleness={clock.max_staleness}, replacement={clock.replacement}"
            )

    def init(self, params: Tree, samples: Array) -> Array:
        return jnp.bool_(False)  # whether the run has converged

    def update(self, params: Tree, state: Array, arrivals: Arrivals) -> Outcome:
        models = jax.tree.map(jnp.add, arrivals.base, arrivals.delta)
        weights = counts(arrivals) * arrivals.samples
        weights = weights * (1 + arrivals.staleness.astype(weights.dtype)) ** (-jnp.asarray(self.a, weights.dtype))
        average = weighted_sum(weights / jnp.sum(weights), models)
        new = jax.tree.map(lambda x, y: jnp.where(state, x, y), params, average)
        step = norm(jax.tree.map(jnp.subtract, new, params))
        stopped = state | ((step <= self.tolerance) & (self.tolerance > 0))
        info = {"step_norm": step, "converged": stopped}
        return Outcome(new, stopped, info, client_params=None if self.broadcast else models, weights=weights)


class afl_rate(Part):
    """AFL's local rate: the factor 1 / (√(e + 1) (1 + α d_i)) of local epoch e, for `Client(rate_schedule=...)`.

    Args:
        alpha: α >= 0.
        delay: d_i is the `"staleness"` τ_i of the update, or the `"seconds"` that the run takes.
    """

    alpha: Number = number(default=0.01, least=0)
    delay: Literal["staleness", "seconds"] = static(default="staleness")

    def __post_init__(self) -> None:
        check_options(self)

    def __call__(self, moment: Moment) -> Array:
        delay = moment.staleness if self.delay == "staleness" else moment.duration
        return 1 / (jnp.sqrt(moment.epoch + 1.0) * (1 + self.alpha * delay))
