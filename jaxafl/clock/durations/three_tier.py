"""FADAS's three tiers of clients: small, medium and large (straggling) delays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxafl.checks import check_choice, check_number
from jaxafl.clock.durations.duration import Composable, Draw, Run, worked
from jaxafl.keys import Key, jax_key, per_client, per_run, uniform
from jaxafl.pytrees import pytree, static

Array = jax.Array

_BOUNDS = {
    "large": ((1.0, 2.0), (3.0, 5.0), (50.0, 80.0)),
    "mild": ((1.0, 2.0), (3.0, 5.0), (5.0, 8.0)),
}


@pytree
class ThreeTier(Composable):
    """See `three_tier`."""

    gamma: Any
    unit: Any
    profile: str = static(default="large")
    per: str = static(default="run")
    split: str = static(default="client")

    terms = 2
    references: ClassVar[tuple[str, ...]] = ("wang2024fadas",)

    def check(self, num_clients: int) -> None:
        check_choice("three_tier", "profile", self.profile, tuple(_BOUNDS))
        check_choice("three_tier", "per", self.per, ("run", "client"))
        check_choice("three_tier", "split", self.split, ("client", "population"))
        check_number("three_tier", "gamma", self.gamma, above=0)
        check_number("three_tier", "unit", self.unit, above=0)

    def prepare(self, keys: Sequence[Key], num_clients: int) -> tuple[Key, Array]:
        if self.split == "client":
            shape = jnp.asarray(self.gamma, jnp.float64) * jnp.asarray([3.0, 2.0, 1.0])
            bits = per_client(keys[1], jnp.arange(num_clients))
            draws = jax.vmap(lambda low, high: jax.random.loggamma(jax_key((low, high)), shape, dtype=jnp.float64))(
                *bits
            )
            return keys[0], jnp.argmax(draws, axis=-1)  # the largest weight of a Dirichlet is its largest gamma
        shape = jnp.full(3, self.gamma, jnp.float64)
        edges = jnp.cumsum(jax.nn.softmax(jax.random.loggamma(jax_key(keys[1]), shape, dtype=jnp.float64)))
        order = jnp.argsort(uniform(per_client(keys[1], jnp.arange(num_clients)), jnp.float64))
        rank = jnp.zeros(num_clients, jnp.int32).at[order].set(jnp.arange(num_clients, dtype=jnp.int32))
        return keys[0], jnp.searchsorted(edges[:2], (rank + 0.5) / num_clients)

    def draw(self, prepared: tuple[Key, Array], run: Run) -> Draw:
        key, tiers = prepared
        low, high = jnp.asarray(_BOUNDS[self.profile], jnp.float64)[tiers[run.client]]
        bits = per_client(key, run.client) if self.per == "client" else per_run(key, run.client, run.run)
        return worked((low + (high - low) * uniform(bits, jnp.float64)) * self.unit)


def three_tier(
    profile: str = "large", gamma: Any = 1.0, unit: Any = 10.0, per: str = "run", split: str = "client"
) -> ThreeTier:
    """FADAS's delays: every client belongs to a tier for the whole run.

    A client draws w ~ Dirichlet([3γ, 2γ, γ]) and belongs to the tier argmax(w) (small, medium, large); a run takes U(1,
    2), U(3, 5) and U(50, 80) (`"large"` worst case) or U(5, 8) (`"mild"`) units.

    Args:
        profile: `"large"` or `"mild"`: the delays of the third tier.
        gamma: concentration γ > 0; small values make tiers of more equal frequency.
        unit: seconds per unit (FADAS reports time in units of 10 s).
        per: `"run"` draws a delay for every run, `"client"` one for each client.
        split: `"client"` draws each client's tier as above; `"population"` draws one symmetric Dirichlet(γ, γ, γ) and
            splits the clients, in random order, in these proportions.

    References:
        FADAS (Wang et al., 2024), section 6 and Table 1.
    """
    return ThreeTier(gamma, unit, profile, per, split)
