"""Time on the network, with a speed that fluctuates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtri

from jaxafl.checks import check_number
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
    references: ClassVar[tuple[str, ...]] = ("wang2022asyncfeded",)

    def check(self, num_clients: int) -> None:
        check_number("transmission", "bytes", self.size, least=0)
        check_number("transmission", "speed", self.speed, above=0)
        check_number("transmission", "sigma", self.sigma, least=0)

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
