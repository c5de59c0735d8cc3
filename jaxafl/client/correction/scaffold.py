"""SCAFFOLD: control variates against the drift of clients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxafl.client.correction.contract import Correction, LocalRun, Tree, plain_sgd, zeros
from jaxafl.options import UserError


class scaffold(Correction):
    """SCAFFOLD: local steps with g ← g - c_i + c, where c_i estimates the client's gradient and c the mean of all.

    When a run ends, c_i⁺ = c_i - c - (x - x_s) / Σ_k η_k (option II of the paper, with the sum of the applied rates),
    and the client sends c_i⁺ - c_i with its update. At a server step, c ← c + 1/N Σ (c_i⁺ - c_i) over the arrivals.
    All begin at 0. c is sent with the model, so a run costs twice the bytes in both directions.

    The paper has synchronous rounds. On asynchronous clocks each run uses the c that it got with its model; this is our
    extension. c_i changes at the end of every completed run, also if its message is lost.

    Raises:
        ValueError: the client's optimiser is not `optax.sgd` without momentum.

    References:
        Karimireddy, Kale, Mohri, Reddi, Stich, Suresh (2020), "SCAFFOLD: Stochastic controlled averaging for federated
        learning", ICML, Algorithm 1.
    """

    references = ("karimireddy2020",)

    def check(self, client: Any) -> None:
        if given := plain_sgd(client):
            raise UserError(
                f"scaffold: the client's optimiser is {given}, and c_i needs steps of -η g; expected optax.sgd without "
                "momentum. Give Client(learning_rate=...)"
            )

    init = zeros

    def gradient(self, gradient: Tree, params: Tree, row: Tree, shared: Tree, run: LocalRun) -> Tree:
        return jax.tree.map(lambda g, c_i, c: g - c_i + c, gradient, row, shared)

    def finish(self, moved: Tree, row: Tree, shared: Tree, run: LocalRun) -> tuple[Tree, Tree]:
        steps = run.rate_sum > 0  # a run without local steps says nothing of the gradient

        def change(moved: Any, mean: Any) -> Any:
            rates = jnp.where(steps, run.rate_sum, 1).astype(moved.dtype)
            return jnp.where(steps, -mean - moved / rates, 0)

        message = jax.tree.map(change, moved, shared)
        return jax.tree.map(jnp.add, row, message), message

    def serve(self, shared: Tree, params: Tree, messages: Tree, arrivals: Any, num_clients: int) -> tuple[Tree, Tree]:
        return jax.tree.map(lambda c, sent: c + jnp.sum(sent, axis=0) / num_clients, shared, messages), params
