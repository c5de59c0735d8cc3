"""AsyncFedED, asynchronous federated learning with Euclidean distance based adaptive aggregation."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxafl.client import Client
from jaxafl.clock.contract import STARTS, Clock, Delivery
from jaxafl.options import Number, number, static
from jaxafl.server.contract import Array, Arrivals, Needs, Outcome, Server, Tree, first_of, norm, stepped
from jaxafl.server.scheduled import Rate


class asyncfeded(Server):
    """AsyncFedED: one server step per arrival, with a rate that depends on the distance the model has moved.

    γ_i = ‖x_t - x_s‖₂ / ‖Δ_i‖₂ over all trainable parameters as one vector; η_i = λ / (γ_i + ε); x_{t+1} = x_t + η_i
    Δ_i; K_i ← max(1, K_i + ⌊κ (γ̄ - γ_i)⌋), returned with x_{t+1}.

    K counts mini-batch steps (`Client(steps=K_0)`): the paper's "epoch" k is one step of its eq. (2). With
    `Client(epochs=K_0)` it counts true epochs: a run has K_i ⌈n_i / B⌉ steps. K_0 is one number or one per client.
    ⌊·⌋ floors negative numbers too, so with κγ̄ < 1 K can only fall (as in the paper's FEMNIST setting). If ‖Δ_i‖ = 0
    and the model has not moved since x_s, γ = 0. If it has moved, the update is dropped and counted: the version
    advances, K stays, and γ is reported as infinite.

    ‖Δ_i‖ is the distance of the client's model x_i = x_s + Δ_i from x_s, so γ_i = d(x_t, x_s) / d(x_i, x_s) with
    another distance d too, which is how `distance="cosine"` is read here: d(a, b) = 1 - cos(a, b), computed as
    ‖a/‖a‖ - b/‖b‖‖² / 2, with a/‖a‖ = 0 if a = 0. For small angles γ is then the ratio of their squares. Wilhelm and
    Kao (2026) compare distances, but their formulas were not at hand.

    Args:
        base_rate: numerator λ > 0 of the server rate, or an Optax schedule of server steps. The paper uses 1 on
            FEMNIST, 5 on Synthetic-1-1 and Shakespeare.
        eps: constant ε > 0 in the denominator of the server rate. The paper uses 1 on FEMNIST, 5 on Synthetic-1-1 and
            10 on Shakespeare.
        target_staleness: target γ̄ of the Euclidean staleness; at least 0.
        kappa: gain κ of the adaptation of K; at least 0, and 0 keeps K constant. The paper uses 0.05 on FEMNIST and 1
            on the other data sets.
        max_steps: upper bound of K. Clipped replies are counted.
        distance: distance d of models: `"euclidean"` as in the paper, or `"cosine"`.
        rounding: rounding of κ (γ̄ - γ). `"floor"` as in the paper, `"truncate"` towards zero as an ablation.

    References:
        Wang et al., "AsyncFedED: Asynchronous federated learning with Euclidean distance based adaptive weight
        aggregation", 2022, Algorithms 1 and 2, eqs. (5)-(8).
    """

    base_rate: Rate = number(default=1.0, above=0)
    eps: Number = number(default=1.0, above=0)
    target_staleness: Number = number(default=3.0, least=0)
    kappa: Number = number(default=1.0, least=0)
    max_steps: int = static(default=100)
    rounding: Literal["floor", "truncate"] = static(default="floor")
    distance: Literal["euclidean", "cosine"] = static(default="euclidean")

    requires = Delivery.REPLIES
    accepts = STARTS
    references = ("wang2022asyncfeded",)
    single = True
    drops = True
    needs = Needs(base=True, replies=True)
    counters = ("dropped", "clipped")
    meanings = {
        "gamma": "staleness γ of AsyncFedED, as a ratio of distances",
        "next_local_steps": "reply for the client's next run: local steps, or epochs with Client(epochs=...)",
    }

    def check(self, clock: Clock, client: Client, num_clients: int) -> None:
        unit = "steps" if client.epochs is None else "epochs"
        begins = int(np.max(getattr(client, unit)))
        if begins > self.max_steps:
            raise ValueError(f"asyncfeded: clients begin with {unit}={begins}, more than max_steps={self.max_steps}")

    def update(self, params: Tree, state: tuple[()], arrivals: Arrivals) -> Outcome:
        delta, start = first_of((arrivals.delta, arrivals.base))
        if self.distance == "cosine":
            length, distance = (_angular(one, start) for one in (jax.tree.map(jnp.add, start, delta), params))
        else:
            length, distance = norm(delta), norm(optax.tree.sub(params, start))
        dropped = (length == 0) & (distance > 0)  # Δ = 0 although the model has moved
        gamma = jnp.where(length == 0, 0, distance / jnp.where(length == 0, 1, length))
        rate = jnp.where(dropped, 0, self.base_rate / (gamma + self.eps))
        params = stepped(params, rate, delta)
        change = self.kappa * (self.target_staleness - gamma)
        rounded = jnp.floor(change) if self.rounding == "floor" else jnp.trunc(change)
        steps = arrivals.local_steps[0]
        wanted = jnp.maximum(1, steps + jnp.clip(rounded, -1e9, 1e9).astype(jnp.int32))
        wanted = jnp.where(dropped, steps, wanted)
        reply = jnp.minimum(wanted, self.max_steps)
        info = {
            "gamma": jnp.where(dropped, jnp.inf, gamma),
            "server_rate": rate,
            "next_local_steps": reply,
            "dropped": dropped,
            "clipped": wanted > self.max_steps,
        }
        return Outcome(params, state, info, next_steps=reply[None], weights=jnp.where(dropped, 0.0, 1.0)[None])


def _angular(one: Tree, other: Tree) -> Array:
    """Computes 1 - cos(one, other), precise for small angles too."""
    lengths = norm(one), norm(other)
    first, second = (jnp.where(length > 0, 1 / jnp.where(length > 0, length, 1), 0) for length in lengths)
    return norm(jax.tree.map(lambda a, b: a * first - b * second, one, other)) ** 2 / 2
