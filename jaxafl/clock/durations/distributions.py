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
    validate: Callable[..., tuple[str, np.ndarray]] = static(default=None)
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
            self._refuse(~np.isfinite(array), f"{name} must be finite", {name: array})
            values[name] = array
        rule, broken = self.validate(**values)
        self._refuse(broken, rule, values)

    def _refuse(self, broken: np.ndarray, rule: str, values: dict[str, np.ndarray]) -> None:
        """Names the first client of those whose numbers break a rule."""
        if not np.any(broken):
            return
        client = int(np.flatnonzero(broken)[0])
        numbers = {name: f"{array[client] if array.ndim else array:.10g}" for name, array in values.items()}
        got = ", ".join(f"{name}={number}" if len(values) > 1 else number for name, number in numbers.items())
        whose = f" (client {client}, the first of {np.sum(broken)})" if np.ndim(broken) else ""
        raise ValueError(f"{self.name}: {rule}, got {got}{whose}")

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
    """Always the same time.

    Args:
        value: seconds >= 0 (per local step with `per="step"`); a number or an array [N], one per client.
        per: `"run"`, or `"step"` to multiply by the run's number of local steps; `"client"` is as `"run"`.
    """
    return _distribution("constant", _constant, _check_constant, per, value=value)


def uniform(low: Any, high: Any, per: str = "run") -> Distribution:
    """Uniform on [low, high).

    Args:
        low: the shortest time in seconds, >= 0; a number or an array [N], one per client.
        high: the bound of the longest time in seconds, >= low; a number or an array [N].
        per: `"run"` draws for every run, `"client"` once for a client, `"step"` for every run a time per local step.
    """
    return _distribution("uniform", _uniform, _check_uniform, per, low=low, high=high)


def exponential(mean: Any, per: str = "run") -> Distribution:
    """Exponential with the given mean.

    Args:
        mean: in seconds, >= 0; a number or an array [N], one per client (QuAFL: per step, 2 for fast and 8 for slow
            clients).
        per: `"run"` draws for every run, `"client"` once for a client, `"step"` for every run a time per local step.
    """
    return _distribution("exponential", _exponential, _check_exponential, per, mean=mean)


def half_normal(scale: Any, per: str = "run") -> Distribution:
    """|Z| with Z ~ N(0, scale²) (FedBuff).

    Args:
        scale: standard deviation of Z in seconds, >= 0; a number or an array [N], one per client.
        per: `"run"` draws for every run, `"client"` once for a client, `"step"` for every run a time per local step.
    """
    return _distribution("half_normal", _half_normal, _check_scale, per, scale=scale)


def lognormal(mu: Any, sigma: Any, per: str = "run") -> Distribution:
    """exp(Z) seconds with Z ~ N(mu, sigma²).

    Args:
        mu: mean of the logarithm of the seconds; the median is exp(mu) seconds. A number or an array [N], one per
            client.
        sigma: standard deviation of the logarithm, >= 0, without unit; a number or an array [N].
        per: `"run"` draws for every run, `"client"` once for a client, `"step"` for every run a time per local step.
    """
    return _distribution("lognormal", _lognormal, _check_lognormal, per, mu=mu, sigma=sigma)


def _distribution(
    name: str,
    quantile: Callable[..., Array],
    validate: Callable[..., tuple[str, np.ndarray]],
    per: str,
    **parameters: Any,
) -> Distribution:
    leaves = {option: leaf(value, name, option) for option, value in parameters.items()}
    for option, value in leaves.items():
        if not isinstance(value, jax.Array):  # which may be traced
            as_numbers(name, option, value)
    return Distribution(leaves, name, quantile, validate, per)


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


def _check_constant(value: np.ndarray) -> tuple[str, np.ndarray]:
    return "value must be >= 0", value < 0


def _check_uniform(low: np.ndarray, high: np.ndarray) -> tuple[str, np.ndarray]:
    return "0 <= low <= high is needed", (low < 0) | (high < low)


def _check_exponential(mean: np.ndarray) -> tuple[str, np.ndarray]:
    return "mean must be >= 0", mean < 0


def _check_scale(scale: np.ndarray) -> tuple[str, np.ndarray]:
    return "scale must be >= 0", scale < 0


def _check_lognormal(mu: np.ndarray, sigma: np.ndarray) -> tuple[str, np.ndarray]:
    return "sigma must be >= 0", sigma < 0
