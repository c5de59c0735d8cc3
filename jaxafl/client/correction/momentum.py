"""Momentum that clients keep from run to run, of one gradient per run."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxafl.client.correction.contract import Array, Correction, LocalRun, Tree, plain_sgd
from jaxafl.options import Number, UserError, number


class Last(NamedTuple):
    """Row of a client."""

    momentum: Tree  # d_i
    point: Tree  # x_s of the last run; () if not kept
    runs: Array  # float, 1 after the first run


class _Momentum(Correction):
    """Base class of corrections that send d_i, which the client keeps after every run at a rate above 0."""

    downloads = False
    keeps_point = False

    def check(self, client: Any) -> None:
        one = client.steps == 1 or (client.epochs == 1 and client.batch_size is None)
        if not one or (given := plain_sgd(client)):
            given = f"optimiser is {given}" if one else "runs have several local steps"
            raise UserError(
                f"{self.name}: the client's {given}, and d_i follows one gradient per run; expected one step of "
                "optax.sgd without momentum. Give Client(learning_rate=1.0, steps=1)"
            )

    def init(self, params: Tree) -> tuple[Tree, Tree]:
        zero = optax.tree.zeros_like(params)
        return Last(zero, zero if self.keeps_point else (), jnp.zeros(())), ()

    def finish(self, moved: Tree, row: Last, shared: Tree, run: LocalRun) -> tuple[Last, Tree]:
        moves = run.rate_sum > 0  # a rate of 0 says nothing of the gradient
        kept = jax.tree.map(lambda m: -m / jnp.where(moves, run.rate_sum, 1).astype(m.dtype), moved)
        after = Last(kept, run.start if self.keeps_point else (), jnp.ones_like(row.runs))
        return optax.tree.where(moves & (run.step > 0), after, row), None


class local_momentum(_Momentum):
    """Momentum of the clients, as in BASGDm: a run sends d_i ← (1 - μ) g + μ d_i, with its gradient g.

    d_i begins at 0, and changes at the end of every completed run at a rate above 0, also if no step takes it.

    Args:
        momentum: μ in [0, 1).

    Raises:
        ValueError: a run has several local steps, or the client's optimiser is not `optax.sgd` without momentum.

    References:
        Yang & Li (2023), "Buffered asynchronous SGD for Byzantine learning", JMLR 24(204), whose abstract names local
        momentum. The factor 1 - μ is our reading.
    """

    momentum: Number = number(default=0.9, least=0, below=1)

    references = ("yang2023basgd",)

    def gradient(self, gradient: Tree, params: Tree, row: Last, shared: Tree, run: LocalRun) -> Tree:
        return jax.tree.map(lambda g, d: (1 - self.momentum) * g + self.momentum * d, gradient, row.momentum)


class storm(_Momentum):
    """Recursive momentum of the clients: a run sends d_i ← g(x; ξ) + (1 - β) (d_i - g(x'; ξ)).

    x' is the model of the client's last run, and both gradients are of the same mini-batch ξ, so that a run computes
    two. The first run sends g(x; ξ). d_i changes at the end of every completed run at a rate above 0, also if no step
    takes it.

    Args:
        beta: β in [0, 1]. 1 sends plain gradients.

    Raises:
        ValueError: a run has several local steps, or the client's optimiser is not `optax.sgd` without momentum.

    References:
        Cutkosky, Orabona (2019), "Momentum-based variance reduction in non-convex SGD", NeurIPS; at clients
        in Dahan, Levy (2024), "Weight for robustness: A comprehensive approach towards optimal fault-tolerant
        asynchronous ML", NeurIPS.
    """

    beta: Number = number(default=0.25, least=0, most=1)

    references = ("cutkosky2019", "dahan2024")
    keeps_point = True

    def gradient(self, gradient: Tree, params: Tree, row: Last, shared: Tree, run: LocalRun) -> Tree:
        assert run.gradient_at is not None
        weight, before = (1 - self.beta) * row.runs, run.gradient_at(row.point)
        return jax.tree.map(lambda g, d, b: g + jnp.asarray(weight, g.dtype) * (d - b), gradient, row.momentum, before)
