"""Distributions of durations, and mixtures; `constant` is defined in `duration`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr, ndtri

from jaxafl.clock.durations.duration import ByOptions, Distribution, Draw, Duration, Pair, Per, Run, draw_of, share_of
from jaxafl.options import Number, UserError, as_numbers, check_number, named, number, static

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


class normal(Distribution):
    """N(mean, std²) where it is positive.

    Args:
        mean: mean of the normal distribution in seconds, at least 0; a number or an array [N], one per client.
        std: its standard deviation in seconds, at least 0; a number or an array [N], one per client.
        below: treatment of draws below 0. `"clip"`: they count as 0, as in NVFlare. `"again"`: they are drawn again,
            which raises the mean more.
        per: unit of a draw. `"run"`: one per run. `"client"`: one per client. `"step"`: one per run, as a time per
            local step.
    """

    mean: Number = number(least=0, per_client=True)
    std: Number = number(least=0, per_client=True)
    below: Literal["clip", "again"] = static(default="clip")
    per: Per = static(default="run")

    def quantile(self, u: Array) -> Array:
        share = u + 2.0**-54
        if self.below == "again":
            negative = ndtr(-self.mean / jnp.where(self.std > 0, self.std, 1)) * (self.std > 0)
            share = negative + (1 - negative) * share
        return jnp.maximum(self.mean + self.std * ndtri(share), 0)


class pareto(Distribution):
    """Pareto distribution of type I, whose long tail makes a few clients or runs very slow.

    P(time > t) = (minimum / t)^shape for t >= minimum. NumPy's `random.pareto(shape)` is t / minimum - 1.

    Args:
        minimum: smallest time in seconds, at least 0; a number or an array [N], one per client.
        shape: exponent of the tail, above 0, without unit. The mean is minimum · shape / (shape - 1), and infinite for
            a shape of at most 1; a number or an array [N], one per client.
        per: unit of a draw. `"run"`: one per run. `"client"`: one per client. `"step"`: one per run, as a time per
            local step.
    """

    minimum: Number = number(least=0, per_client=True)
    shape: Number = number(above=0, per_client=True)
    per: Per = static(default="run")

    def quantile(self, u: Array) -> Array:
        return jnp.exp(-jnp.log1p(-u) / self.shape) * self.minimum


class Mixed(Pair):
    """The left duration with the probability `share`, else the right one; see `mixture`."""

    share: Number = number(least=0, most=1)
    per: Literal["client", "run"] = static(default="client")

    terms = ByOptions(3, lambda mixed: mixed.left.terms + mixed.right.terms + 1)

    def __repr__(self) -> str:
        return f"mixture([{self.left}, {self.right}], [{self.share:g}, {1 - self.share:g}], per={self.per!r})"

    def prepare(self, keys: Sequence[Array], num_clients: int) -> Any:
        return *super().prepare(keys[1:], num_clients), keys[0]

    def draw(self, prepared: Any, run: Run) -> Draw:
        left, right = (draw_of(*one, run) for one in zip((self.left, self.right), prepared, strict=False))
        chosen = share_of(prepared[2], run.client, None if self.per == "client" else run.run) < self.share
        return jax.tree.map(lambda one, other: jnp.where(chosen, one, other), left, right)


@named
def mixture(
    durations: Sequence[Duration], weights: Sequence[float] | None = None, per: Literal["client", "run"] = "client"
) -> Duration:
    """Draws one of several durations: `mixture([normal(100, 1), normal(200, 2), normal(400, 4)])`, types of devices.

    Args:
        durations: the durations, two or more.
        weights: their probabilities, up to a factor; equal by default.
        per: unit of the draw. `"client"`: once for a client, as a type of device. `"run"`: for every run.

    Raises:
        ValueError: there are fewer than two durations, or the weights are not as many, negative, or all 0.
    """
    odds = as_numbers("mixture", "weights", [1.0] * len(durations) if weights is None else weights)
    known = len(durations) > 1 and all(isinstance(one, Duration) for one in durations)
    if not known or odds.shape != (len(durations),) or odds.min() < 0 or not odds.sum():
        raise UserError(
            f"mixture: durations are {durations!r:.100}, and weights {weights}; expected two durations, such as "
            "constant(2.0), or more, and a weight >= 0 for each, not all of them 0"
        )
    made = durations[-1]
    for place in reversed(range(len(durations) - 1)):
        rest = odds[place:].sum()
        made = Mixed(durations[place], made, odds[place] / rest if rest else 0.0, per)
    return made
