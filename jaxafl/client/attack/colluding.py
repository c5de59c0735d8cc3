"""Attacks by clients that see the honest arrivals of their server step."""

from __future__ import annotations

import jax.numpy as jnp
from jax.scipy.special import ndtri

from jaxafl.client.attack.contract import Array, Attack
from jaxafl.options import Number, number

_MOST = 1 - 1e-6


class alie(Attack):
    """A little is enough: all attackers of a server step send μ - z σ.

    μ and σ are the mean and the standard deviation (with n_h - 1) of every coordinate over the n_h honest arrivals of
    the step, stale ones as they are. Without honest arrivals attackers send their honest updates.

    Args:
        z: `None` for Φ⁻¹((n - m - s) / (n - m)) with s = ⌊n/2 + 1⌋ - m, at least 1, where m of the n arrivals are
            attackers.
        clients: who attacks: a share in [0, 1] of the N clients, drawn with the seed of the run, or a list of clients.

    References:
        Baruch, Baruch, Goldberg (2019), "A little is enough: Circumventing defenses for distributed learning", NeurIPS,
        Algorithm 3.
    """

    z: Number | None = number(default=None)

    colludes = True
    references = ("baruch2019",)

    def collude(self, deltas: Array, honest: Array, attackers: Array) -> Array:
        count = jnp.sum(honest)
        mean = honest @ deltas / jnp.maximum(count, 1)
        variance = honest @ jnp.square(deltas - mean) / jnp.maximum(count - 1, 1)
        z = supporters_z(count, jnp.sum(attackers)) if self.z is None else self.z
        return mean - z * jnp.sqrt(variance)


class ipm(Attack):
    """Inner product manipulation ("empire"): all attackers of a server step send -ε times the mean of the honest.

    The mean is over the honest arrivals of the step, stale ones as they are. Without any attackers send their honest
    updates.

    Args:
        factor: ε ≥ 0.
        clients: who attacks: a share in [0, 1] of the N clients, drawn with the seed of the run, or a list of clients.

    References:
        Xie, Koyejo, Gupta (2019), "Fall of empires: Breaking Byzantine-tolerant SGD by inner product manipulation",
        UAI.
    """

    factor: Number = number(default=0.1, least=0)

    colludes = True
    references = ("xie2019empires",)

    def collude(self, deltas: Array, honest: Array, attackers: Array) -> Array:
        return jnp.asarray(-self.factor * (honest @ deltas) / jnp.maximum(jnp.sum(honest), 1))


def supporters_z(honest: Array, attackers: Array) -> Array:
    """Computes z of `alie` for numbers of honest and of attacking arrivals."""
    needed = jnp.maximum(jnp.floor((honest + attackers) / 2 + 1) - attackers, 1)
    return ndtri(jnp.clip((honest - needed) / jnp.maximum(honest, 1), 1 - _MOST, _MOST))
