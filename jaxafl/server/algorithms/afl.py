"""AFL, asynchronous federated learning with non-convex objectives."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from jaxafl.client import Client, Moment
from jaxafl.clock.contract import Delivery
from jaxafl.device import weighted_sum
from jaxafl.options import Number, Part, check_options, number, static
from jaxafl.server.contract import Array, Arrivals, Needs, Outcome, Server, Tree, counts, norm


class afl(Server):
    """AFL with non-convex objectives: x ← Σ w_i x_i^K over the J clients of a round, w_i ∝ n_i (1 + τ_i)^(-a).

    The J clients start from stale versions (`stale_rounds`). Local training is I epochs of Adam at the rate
    γ_e = γ_0 / (√(e + 1) (1 + α d_i)) with early stopping: `Client(optax.adam, learning_rate=γ_0, epochs=I,
    rate_schedule=jaxafl.server.afl_rate(α), patience=10)`.

    Args:
        staleness_exponent: exponent a of the staleness weight (1 + τ)^(-a); at least 0. The paper's experiments use 0
            (no penalty).
        tolerance: convergence threshold κ. Once ‖x_{t+1} - x_t‖ <= κ the model stays as it is; 0 never stops.
        broadcast: send the server's model to the clients. With `False` each client continues from its last local model,
            as in the authors' scripts, and the curves (mean LOCAL training loss) match theirs. This is not the
            algorithm: each client then trains on its local data only, and the server's average influences nothing. The
            scripts' constant delay d = 2 is `durations=constant(2.0)` with `afl_rate(delay="seconds")`.

    References:
        "Asynchronous federated learning with non-convex client objective functions and heterogeneous dataset",
        Algorithm 1.
    """

    staleness_exponent: Number = number(default=0.0, least=0)
    tolerance: Number = number(default=0.0, least=0)
    broadcast: bool = static(default=True)

    requires = Delivery.AGED
    accepts = Delivery.STALE
    references = ("afl2025",)
    meanings: ClassVar[dict[str, str]] = {
        "step_norm": "Euclidean norm of the server's step",
        "converged": "True once the run has converged",
    }

    @property
    def needs(self) -> Needs:
        return Needs(base=True, client_models=not self.broadcast)

    def check(self, clock: Any, client: Client, num_clients: int) -> None:
        if not self.broadcast and (clock.max_staleness or clock.replacement):
            way = "stale_rounds(max_staleness=0) without replacement"
            raise ValueError(f"afl(broadcast=False): give {way}, not {clock}")

    def init(self, params: Tree, samples: Array) -> Array:
        return jnp.bool_(False)  # True once the run has converged

    def update(self, params: Tree, state: Array, arrivals: Arrivals) -> Outcome:
        models = jax.tree.map(jnp.add, arrivals.base, arrivals.delta)
        weights = counts(arrivals) * arrivals.samples
        power = -jnp.asarray(self.staleness_exponent, weights.dtype)
        weights = weights * (1 + arrivals.staleness.astype(weights.dtype)) ** power
        average = weighted_sum(weights / jnp.sum(weights), models)
        new = jax.tree.map(lambda x, y: jnp.where(state, x, y), params, average)
        step = norm(jax.tree.map(jnp.subtract, new, params))
        stopped = state | ((step <= self.tolerance) & (self.tolerance > 0))
        info = {"step_norm": step, "converged": stopped}
        return Outcome(new, stopped, info, client_params=None if self.broadcast else models, weights=weights)


class afl_rate(Part):
    """AFL's local rate: the factor 1 / (√(e + 1) (1 + α d_i)) of local epoch e, for `Client(rate_schedule=...)`.

    Args:
        alpha: strength α of the reduction by the delay; at least 0.
        delay: meaning of the delay d_i. `"staleness"`: τ_i of the update. `"seconds"`: the duration of the run.
    """

    alpha: Number = number(default=0.01, least=0)
    delay: Literal["staleness", "seconds"] = static(default="staleness")

    def __post_init__(self) -> None:
        check_options(self)

    def __call__(self, moment: Moment) -> Array:
        delay = moment.staleness if self.delay == "staleness" else moment.duration
        return 1 / (jnp.sqrt(moment.epoch + 1.0) * (1 + self.alpha * delay))
