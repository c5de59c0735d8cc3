"""Diagnostics on request: records that cost memory or a full pass over the training data."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxafl.engine.evaluate import gradient_sum, owned_sums
from jaxafl.engine.problem import DeviceData, Program
from jaxafl.options import UserError, check_choice
from jaxafl.server.contract import Arrivals, norm

Array = jax.Array
Tree = Any

DIAGNOSTICS = ("drift", "gradient_norm", "asynchronous_error", "average", "per_client", "local_accuracy")
"""Names of `Simulation.run(diagnostics=...)`."""


def check_diagnostics(names: Any, server: Any) -> tuple[str, ...]:
    """Returns the requested names as a tuple, in the order of `DIAGNOSTICS`.

    Args:
        names: one name or several.
        server: the server of the run.

    Raises:
        ValueError: a name is unknown, or the diagnostic has no meaning for this server.
    """
    names = (names,) if isinstance(names, str) else tuple(names)
    for name in names:
        check_choice("run", "diagnostics", name, DIAGNOSTICS)
    if "drift" in names and server.needs.client_models:
        raise ValueError(
            f"drift is measured from a global version, but the clients of {server.name} have their own models"
        )
    return tuple(name for name in DIAGNOSTICS if name in names)


def drift(params: Tree, start: Tree) -> Array:
    """Computes ‖x_t - x_s‖ of every arrival, [A] (Definition 1 of the AFL paper); `start`: x_s, each leaf [A, ...]."""
    return jax.vmap(lambda x_s: norm(jax.tree.map(jnp.subtract, params, x_s)))(start)


def local_accuracy(program: Program, device: DeviceData, arrivals: Arrivals, states: Tree) -> Array:
    """Computes the accuracy of the clients' own models x_i^K = x_s + Δ_i on their held-out samples, [A].

    It is NaN for clients without held-out samples.

    Args:
        program, device: of the run.
        arrivals: of the server step.
        states: non-trainable model state of each arrival.
    """
    ((_, owned),) = device.owned.items()

    def one(arrival: tuple[Array, Tree, Tree]) -> Array:
        total = owned_sums(program, device, lambda outputs: outputs.metrics["accuracy"], *arrival)
        return total / owned.samples[arrival[0]].astype(total.dtype)

    params = jax.tree.map(jnp.add, arrivals.base, arrivals.delta)
    return jax.lax.map(one, (arrivals.client, params, states))


def of_gradient(names: tuple[str, ...], gradient: Tree, before: Tree, after: Tree, rate: Any) -> dict[str, Array]:
    """Computes ‖∇F(x_t)‖² and the asynchronous error ‖∇F(x_t) - (x_t - x_{t+1}) / η‖, if requested.

    They are Definitions 1 and 2 of the AUDG/PSURDG paper.

    Args:
        names: requested diagnostics.
        gradient: ∇F(x_t).
        before, after: x_t and x_{t+1}.
        rate: η, the applied learning rate; `None` if unknown.
    """
    record = {}
    if "gradient_norm" in names:
        record["gradient_norm_squared"] = jnp.square(norm(gradient))
    if "asynchronous_error" in names:
        if rate is None or jnp.ndim(rate):
            raise UserError(
                "asynchronous_error needs the gradient that was applied, (x_t - x_(t+1)) / η, and the rate η of this "
                "server's step is not known: a schedule, or an optimiser of your own, makes it"
            )
        applied = jax.tree.map(lambda x, y: (x - y) / rate, before, after)
        record["asynchronous_error"] = norm(jax.tree.map(jnp.subtract, gradient, applied))
    return record


def full_gradient(program: Program, device: DeviceData, params: Tree, model_state: Tree) -> Tree:
    """Computes Σ_i n_i ∇f_i(x) over the training samples of all clients, without augmentation or dropout.

    Args:
        program, device: of the run.
        params, model_state: x.
    """

    def add(client: Array, total: Tree) -> Tree:
        def fetch(places: Array) -> Any:
            return program.data.gather(device.arrays, client, places)

        return gradient_sum(program, device.frozen, (params, model_state), fetch, device.counts[client], total)

    return jax.lax.fori_loop(0, device.counts.shape[0], add, jax.tree.map(jnp.zeros_like, params))
