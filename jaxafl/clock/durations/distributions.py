"""Distributions of durations; `constant` is defined in `duration`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri

from jaxafl.clock.durations.duration import Distribution, Per
from jaxafl.options import Number, check_number, number, static

Array = jax.Array


class uniform(Distribution):
    """Uniform on [low, high).

    Args:
        low: lower bound in seconds, at least 0; a number or an array [N], one per client.
        high: upper bound in seconds, at least `low`; a number or an array [N], one per client.
        per: unit of a draw. `"run"`: one per run. `"client"`: one per client. `"step"`: one per run, as a time per
            local step.
    """

    low: Number = number(least=0, per_client=True)
    high: Number = number(per_client=True)
    per: Per = static(default="run")

    def check(self, num_clients: int) -> None:
        check_number(self.name, "high - low", np.subtract(self.high, self.low), least=0, per_client=True)

    def quantile(self, u: Array) -> Array:
        return u * (self.high - self.low) + self.low


class exponential(Distribution):
    """Exponential distribution with the given mean.

    Args:
        mean: mean in seconds, at least 0; a number or an array [N], one per client (QuAFL: per step, 2 for fast and 8
            for slow clients).
        per: unit of a draw. `"run"`: one per run. `"client"`: one per client. `"step"`: one per run, as a time per
            local step.
    """

    mean: Number = number(least=0, per_client=True)
    per: Per = static(default="run")

    def quantile(self, u: Array) -> Array:
        return -jnp.log1p(-u) * self.mean


class half_normal(Distribution):
    """|Z| with Z ~ N(0, scale²) (FedBuff).

    Args:
        scale: standard deviation of Z in seconds, at least 0; a number or an array [N], one per client.
        per: unit of a draw. `"run"`: one per run. `"client"`: one per client. `"step"`: one per run, as a time per
            local step.
    """

    scale: Number = number(least=0, per_client=True)
    per: Per = static(default="run")

    def quantile(self, u: Array) -> Array:
        return ndtri(0.5 + 0.5 * u) * self.scale


class lognormal(Distribution):
    """exp(Z) seconds with Z ~ N(mu, sigma²).

    Args:
        mu: mean of the logarithm of the seconds, so that the median is exp(mu) seconds; a number or an array [N], one
            per client.
        sigma: standard deviation of the logarithm, at least 0, without unit; a number or an array [N], one per client.
        per: unit of a draw. `"run"`: one per run. `"client"`: one per client. `"step"`: one per run, as a time per
            local step.
    """

    mu: Number = number(per_client=True)
    sigma: Number = number(least=0, per_client=True)
    per: Per = static(default="run")

    def quantile(self, u: Array) -> Array:
        # shifts u to the middle of its 53-bit cell: u = 0 would give a duration of exactly 0
        return jnp.exp(self.mu + self.sigma * ndtri(u + 2.0**-54))
