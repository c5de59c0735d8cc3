"""Zeno++, which scores arrivals by a gradient of the server."""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxafl.clock.contract import Delivery
from jaxafl.options import Number, number, static
from jaxafl.server.contract import Array, Arrivals, Needs, Outcome, Server, Tree
from jaxafl.server.scheduled import Rate


class ZenoState(NamedTuple):
    """Server state."""

    gradient: Tree  # g_r


class zeno(Server):
    """Zeno++: x ← x - η u at every arrival, if η ⟨g_r, u⟩ - ρ ‖p‖² + η ε ≥ 0, with u = g ‖g_r‖ / ‖g‖ and g = -Δ_i.

    g_r is the gradient of the model on samples of the server. These are the validation set: clients do not train on
    it, and validation metrics are then of samples that the server has seen. g_r is computed every `every` server steps.

    A rejected arrival makes a version with the same x, and counts in `count_rejected`. An update of 0 changes nothing.
    One gradient per run, Δ = -∇f_i, in the paper; several local steps are our extension.

    Args:
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps.
        penalty: ρ ≥ 0.
        slack: ε ≥ 0.
        every: server steps between two computations of g_r; at least 1.
        batch_size: samples of g_r, drawn independently each time; `None` for the whole validation set.
        penalised: p. `"sent"`: g as it arrived, as in the authors' code. `"scaled"`: u.

    Raises:
        UserError: the data has no validation set.

    References:
        Xie, Koyejo, Gupta, "Zeno++: Robust fully asynchronous SGD", ICML 2020, Algorithm 1. Follows the authors' code.
    """

    learning_rate: Rate = number(default=0.1, least=0)
    penalty: Number = number(default=0.001, least=0)
    slack: Number = number(default=0.0, least=0)
    every: int = static(default=1, kw_only=True)
    batch_size: int | None = static(default=32, kw_only=True)
    penalised: Literal["sent", "scaled"] = static(default="sent", kw_only=True)

    accepts = Delivery.STALE | Delivery.CONTINUOUS
    references = ("xie2020zeno",)
    needs = Needs(validation=True)
    single = True
    counters = ("rejected",)
    meanings: ClassVar[dict[str, str]] = {
        "rejected": "1 for a rejected arrival, else 0",
        "score": "score of the arrival, which is accepted if it is at least 0",
    }

    def init(self, params: Tree, samples: Array) -> ZenoState:
        return ZenoState(jax.tree.map(jnp.zeros_like, params))

    def update(self, params: Tree, state: ZenoState, arrivals: Arrivals) -> Outcome:
        compute = arrivals.validation_gradient
        assert compute is not None, "`needs` has `validation`"
        of_server = jax.lax.cond(
            arrivals.step % self.every == 0, lambda: compute(params, self.batch_size), lambda: state.gradient
        )
        sent = jax.tree.map(lambda leaf: -leaf[0], arrivals.delta)
        length = optax.tree.norm(sent)
        factor = jnp.where(length > 0, optax.tree.norm(of_server) / jnp.where(length > 0, length, 1), 0)
        scaled = jax.tree.map(lambda leaf: factor.astype(leaf.dtype) * leaf, sent)
        rate = jnp.asarray(self.learning_rate, length.dtype)
        punished = optax.tree.norm(sent if self.penalised == "sent" else scaled, squared=True)
        score = rate * (optax.tree.vdot(of_server, scaled) + self.slack) - self.penalty * punished
        passes = score >= 0
        params = jax.tree.map(lambda x, g: jnp.where(passes, x - rate.astype(x.dtype) * g, x), params, scaled)
        kept = (~passes).astype(arrivals.loss.dtype)
        info = {"rejected": (~passes).astype(jnp.int32), "score": score}
        return Outcome(params, ZenoState(of_server), info, weights=(1 - kept)[None], kept=kept)
