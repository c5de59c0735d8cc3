"""Time on the network, with a speed that fluctuates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri

from jaxafl.clock.durations.duration import Composable, Draw, Run, worked
from jaxafl.keys import Key, per_run, uniform
from jaxafl.pytrees import pytree


@pytree
class Transmission(Composable):
    """See `transmission`."""

    size: Any
    speed: Any
    sigma: Any

    terms = 2

    def check(self, num_clients: int) -> None:
        for value, what in ((self.size, "bytes"), (self.sigma, "sigma")):
            if not (np.isfinite(value) and value >= 0):
                raise ValueError(f"transmission: {what} must be a number >= 0, got {value}")
        if not (np.isfinite(self.speed) and self.speed > 0):
            raise ValueError(f"transmission: speed must be a positive number of bytes per second, got {self.speed}")

    def prepare(self, keys: Sequence[Key], num_clients: int) -> Sequence[Key]:
        return tuple(keys)

    def draw(self, prepared: Sequence[Key], run: Run) -> Draw:
        def factor(key: Key) -> jax.Array:
            normal = ndtri(uniform(per_run(key, run.client, run.run), jnp.float64) + 2.0**-54)
            return jnp.maximum(1 + self.sigma * normal, 0)

        return worked((factor(prepared[0]) + factor(prepared[1])) * (self.size / self.speed))


def transmission(bytes: Any, speed: Any, sigma: Any = 0.1) -> Transmission:
    """Download plus upload, each `bytes`/`speed` · max(N(1, σ²), 0) seconds, drawn for every run.

    Args:
        bytes: size of the model in bytes.
        speed: bytes per second.
        sigma: relative standard deviation of the time of one way.

    References:
        AsyncFedED (Wang et al., 2022), appendix B.2.
    """
    return Transmission(bytes, speed, sigma)
