"""The usual distributions, drawn by inverting their distribution function at one uniform number.

Each takes `per`: `"client"` draws once for a client, `"run"` (default) for every run, `"step"` a time per local step,
drawn for every run and multiplied by the run's number of local steps. Parameters are numbers or arrays [N] with one
value per client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri

from jaxafl.checks import as_numbers, check_choice
from jaxafl.clock.durations.duration import Composable, Draw, Run, worked
from jaxafl.keys import Key, per_client, per_run
from jaxafl.keys import uniform as uniform_from_bits
from jaxafl.pytrees import leaf, pytree, static

Array = jax.Array
PER = ("client", "run", "step")


@pytree
class Distribution(Composable):
    """A duration whose draws are independent; see the functions of this module."""

    parameters: dict[str, Any]
    name: str = static(default="")
    quantile: Callable[..., Array] = static(default=None)
    validate: Callable[..., str | None] = static(default=None)
    per: str = static(default="run")

    terms = 1

    def check(self, num_clients: int) -> None:
        check_choice(self.name, "per", self.per, PER)
        values = {}
        for name, value in self.parameters.items():
            array = as_numbers(self.name, name, value)
            if array.shape not in ((), (num_clients,)):
                raise ValueError(
                    f"{self.name}: {name} must be a number or an array of one number per client ({num_clients},), "
                    f"got shape {array.shape}"
                )
            if not np.isfinite(array).all():
                raise ValueError(f"{self.name}: {name} must be finite, got {value}")
            values[name] = array
        if message := self.validate(**values):
            raise ValueError(f"{self.name}: {message}, got {', '.join(f'{k}={v}' for k, v in self.parameters.items())}")

    def prepare(self, keys: Sequence[Key], num_clients: int) -> Any:
        return keys[0]

    def draw(self, prepared: Key, run: Run) -> Draw:
        bits = per_client(prepared, run.client) if self.per == "client" else per_run(prepared, run.client, run.run)
        values = {
            name: jnp.asarray(value, jnp.float64)
            if np.ndim(value) == 0
            else jnp.asarray(value, jnp.float64)[run.client]
            for name, value in self.parameters.items()
        }
        time = self.quantile(uniform_from_bits(bits, jnp.float64), **values)
        return worked(time * run.local_steps if self.per == "step" else time)


def constant(value: Any, per: str = "run") -> Distribution:
    """Always `value` seconds (per local step with `per="step"`)."""
    return Distribution({"value": leaf(value)}, "constant", _constant, _check_constant, per)


def uniform(low: Any, high: Any, per: str = "run") -> Distribution:
    """Uniform on [low, high) seconds."""
    return Distribution({"low": leaf(low), "high": leaf(high)}, "uniform", _uniform, _check_uniform, per)


def exponential(mean: Any, per: str = "run") -> Distribution:
    """Exponential with the given mean in seconds (QuAFL: per step, mean 2 for fast and 8 for slow clients)."""
    return Distribution({"mean": leaf(mean)}, "exponential", _exponential, _check_exponential, per)


def half_normal(scale: Any, per: str = "run") -> Distribution:
    """|Z| with Z ~ N(0, scale²) seconds (FedBuff)."""
    return Distribution({"scale": leaf(scale)}, "half_normal", _half_normal, _check_scale, per)


def lognormal(mu: Any, sigma: Any, per: str = "run") -> Distribution:
    """exp(Z) seconds with Z ~ N(mu, sigma²)."""
    return Distribution({"mu": leaf(mu), "sigma": leaf(sigma)}, "lognormal", _lognormal, _check_lognormal, per)


def _constant(u: Array, value: Array) -> Array:
    return value + 0 * u


def _uniform(u: Array, low: Array, high: Array) -> Array:
    return low + (high - low) * u


def _exponential(u: Array, mean: Array) -> Array:
    return -mean * jnp.log1p(-u)


def _half_normal(u: Array, scale: Array) -> Array:
    return scale * ndtri(0.5 + 0.5 * u)


def _lognormal(u: Array, mu: Array, sigma: Array) -> Array:
    # the middle of the 53-bit cell: u = 0 would give a duration of exactly 0
    return jnp.exp(mu + sigma * ndtri(u + 2.0**-54))


def _check_constant(value: np.ndarray) -> str | None:
    return "value must be >= 0" if (value < 0).any() else None


def _check_uniform(low: np.ndarray, high: np.ndarray) -> str | None:
    return "0 <= low <= high is needed" if (low < 0).any() or (high < low).any() else None


def _check_exponential(mean: np.ndarray) -> str | None:
    return "mean must be >= 0" if (mean < 0).any() else None


def _check_scale(scale: np.ndarray) -> str | None:
    return "scale must be >= 0" if (scale < 0).any() else None


def _check_lognormal(mu: np.ndarray, sigma: np.ndarray) -> str | None:
    return "sigma must be >= 0" if (sigma < 0).any() else None
