"""Robust μ²-SGD, a weighted centre of the clients' last momenta."""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from jaxafl.client import Client
from jaxafl.client.correction import storm
from jaxafl.clock.contract import STARTS, Clock
from jaxafl.device import buffers
from jaxafl.options import Number, UserError, number, static
from jaxafl.server.aggregate.contract import mean_of_ranks
from jaxafl.server.algorithms.checks import check_gradients
from jaxafl.server.contract import Array, Arrivals, Needs, Outcome, Server, Tree
from jaxafl.server.scheduled import Rate

_ROUNDS = 3  # of Weiszfeld's iteration, as in the authors' code


class Mu2State(NamedTuple):
    """Server state."""

    iterate: Tree  # w
    momenta: Tree  # d_i, each leaf [N, ...]
    arrived: Array  # s_i, float [N]


class mu2(Server):
    """Robust asynchronous μ²-SGD: w ← w - η v at every arrival, x ← γ w + (1 - γ) x, with a centre v of all momenta.

    An arrival replaces the momentum d_i = -Δ_i of its client, which `Client(correction=storm(β))` computes, and adds 1
    to s_i. v is a centre of d_1, ..., d_N with the weights s_i / Σ s. w begins at x_0. Keeps a row per client.

    Args:
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps.
        mix: γ in [0, 1], weight of w in the model; 1 for x = w.
        center: v. `"median"`: in each coordinate the smallest d_i at which the weights of all that are not larger
            exceed 1/2. `"geometric_median"`: three steps of Weiszfeld's iteration v ← Σ a_i d_i / Σ a_i from v = 0,
            with a_i = s_i / ‖v - d_i‖.

    Raises:
        ValueError: a run is more than one gradient, or the client has no `storm`.

    References:
        Dahan, Levy, "Weight for robustness: A comprehensive approach towards optimal fault-tolerant asynchronous ML",
        NeurIPS 2024. Follows the authors' code.
    """

    learning_rate: Rate = number(default=0.1, least=0)
    mix: Number = number(default=0.1, least=0, most=1)
    center: Literal["median", "geometric_median"] = static(default="median", kw_only=True)

    accepts = STARTS
    references = ("dahan2024",)
    needs = Needs(client_rows=1)
    local = {"learning_rate": 1.0, "steps": 1, "correction": storm()}
    single = True
    meanings = {"times": "arrivals s_i of the client"}

    def check(self, clock: Clock, client: Client, num_clients: int) -> None:
        if not isinstance(client.correction, storm):
            way = "Client(learning_rate=1.0, steps=1, correction=afl.correction.storm(0.25))"
            raise UserError(f"mu2 takes recursive momenta, not correction={client.correction!r}; give {way}")
        check_gradients(self.name, client, full_batch=False)

    def init(self, params: Tree, samples: Array) -> Mu2State:
        clients = len(samples)
        return Mu2State(params, buffers.allocate(params, clients), jnp.zeros(clients, jnp.result_type(float)))

    def update(self, params: Tree, state: Mu2State, arrivals: Arrivals) -> Outcome:
        client = arrivals.client[0]
        momenta = jax.tree.map(lambda old, delta: old.at[client].set(-delta[0]), state.momenta, arrivals.delta)
        arrived = state.arrived.at[client].add(1)
        find = weighted_median if self.center == "median" else weighted_geometric_median
        points, restored = jax.vmap(lambda row: ravel_pytree(row)[0])(momenta), ravel_pytree(params)[1]
        direction = restored(find(points, arrived.astype(points.dtype)))
        iterate = jax.tree.map(lambda w, v: w - jnp.asarray(self.learning_rate, w.dtype) * v, state.iterate, direction)

        def mixed(w: Array, x: Array) -> Array:
            mix = jnp.asarray(self.mix, x.dtype)
            return mix * w + (1 - mix) * x

        after = Mu2State(iterate, momenta, arrived)
        return Outcome(jax.tree.map(mixed, iterate, params), after, {"times": arrived[client]})


def weighted_median(points: Array, times: Array) -> Array:
    """Returns the first value of every coordinate, from the smallest on, with more than half of all counts up to it.

    Args:
        points: [N, d].
        times: the number of times that each point counts, whole numbers [N].
    """
    half = jnp.floor(jnp.sum(times) / 2)
    return mean_of_ranks(points, times[:, None], half, half + 1)


def weighted_geometric_median(points: Array, weights: Array) -> Array:
    """Computes three steps of Weiszfeld's iteration from 0, [d]; a point at the centre gets the weight of one nearby.

    Args:
        points: [N, d].
        weights: not normalised, [N].
    """
    least = jnp.sqrt(jnp.finfo(points.dtype).tiny)
    center = jnp.zeros_like(points[0])
    for _ in range(_ROUNDS):
        pulls = weights / jnp.maximum(jnp.linalg.norm(points - center, axis=1), least)
        center = pulls / jnp.sum(pulls) @ points
    return center
