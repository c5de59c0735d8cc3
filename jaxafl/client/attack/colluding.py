"""Attacks by clients that see honest updates."""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
from jax.scipy.special import ndtri

from jaxafl.client.attack.contract import Array, Attack
from jaxafl.options import Number, number, static

_MOST = 1 - 1e-6


class alie(Attack):
    """A little is enough: all attackers of a server step send μ - z σ.

    μ and σ are the mean and the standard deviation (with n_h - 1) of every coordinate over the n_h honest arrivals of
    the step, including stale ones. With `knowledge="delivered"` they are over the last delivered update of each
    honest client, of this step or an earlier one. Without honest updates attackers send their own.

    Args:
        z: `None` for Φ⁻¹((n - m - s) / (n - m)) with s = ⌊n/2 + 1⌋ - m, at least 1, where m of the n arrivals are
            attackers. With `knowledge="delivered"` m is the number of attackers, and n - m that of known updates.
        knowledge: `"step"` or `"delivered"`.
        clients: who attacks: a share in [0, 1] of the N clients, rounded (halves to even numbers) and drawn with the
            seed of the run, or a list of clients.

    References:
        Baruch, Baruch, Goldberg (2019), "A little is enough: Circumventing defenses for distributed learning", NeurIPS,
        Algorithm 3.
    """

    z: Number | None = number(default=None)
    knowledge: Literal["step", "delivered"] = static(default="step", kw_only=True)

    references = ("baruch2019",)

    def collude(self, deltas: Array, honest: Array, attackers: Array) -> Array:
        count = jnp.sum(honest)
        mean = honest @ deltas / jnp.maximum(count, 1)
        variance = honest @ jnp.square(deltas - mean) / jnp.maximum(count - 1, 1)
        z = supporters_z(count, jnp.sum(attackers)) if self.z is None else self.z
        return mean - z * jnp.sqrt(variance)


class ipm(Attack):
    """Inner product manipulation ("empire"): all attackers of a server step send -ε times the mean of the honest.

    The mean is over the honest arrivals of the step, including stale ones. With `knowledge="delivered"` it is over
    the last delivered update of each honest client, of this step or an earlier one, as Yang & Li (2023) and Otsuka et
    al. (2026) define it. Without honest updates attackers send their own.

    Args:
        factor: ε ≥ 0.
        knowledge: `"step"` or `"delivered"`.
        clients: who attacks: a share in [0, 1] of the N clients, rounded (halves to even numbers) and drawn with the
            seed of the run, or a list of clients.

    References:
        Xie, Koyejo, Gupta (2019), "Fall of empires: Breaking Byzantine-tolerant SGD by inner product manipulation",
        UAI.
    """

    factor: Number = number(default=0.1, least=0)
    knowledge: Literal["step", "delivered"] = static(default="step", kw_only=True)

    references = ("xie2019empires",)

    def collude(self, deltas: Array, honest: Array, attackers: Array) -> Array:
        return (honest @ deltas) * -self.factor / jnp.maximum(jnp.sum(honest), 1)


def supporters_z(honest: Array, attackers: Array) -> Array:
    """Computes z of `alie` for numbers of honest and of attacking arrivals."""
    needed = jnp.maximum(jnp.floor((honest + attackers) / 2 + 1) - attackers, 1)
    return ndtri(jnp.clip((honest - needed) / jnp.maximum(honest, 1), 1 - _MOST, _MOST))
