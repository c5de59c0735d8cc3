"""Transfers over links with a speed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import ndtri

from jaxafl.clock.durations.duration import Duration
from jaxafl.clock.durations.runs import Draw, Run, worked
from jaxafl.device.keys import Key, per_run, uniform
from jaxafl.options import Number, UserError, number, recording


class link(Duration):
    """Download before a run and upload after it: `uniform(60, 300) + link(up=1e6, down=5e6)`.

    A transfer of b bytes at v bytes per second takes b/v · e^(σZ - σ²/2) seconds, with Z ~ N(0, 1) drawn for every
    transfer, so that b/v is the mean. The bytes are those that the run sends: trained parameters and non-trainable
    state in their precision, without frozen parameters; up, as few as `Client(upload=...)` leaves.

    Args:
        up: speed of uploads in bytes per second, above 0; a number or an array [N].
        down: speed of downloads in bytes per second, above 0; a number or an array [N]. `None` is `up`.
        sigma: standard deviation σ of the logarithm of a transfer's time, at least 0.
        bytes: bytes of a transfer instead of those of the model, at least 0.
    """

    up: Number = number(above=0, per_client=True)
    down: Number | None = number(default=None, above=0, per_client=True)
    sigma: Number = number(default=0.0, least=0)
    bytes: Number | None = number(default=None, least=0, kw_only=True)
    _sent: Any = recording(default=None)  # (up, down) of a simulation, instead of `bytes`

    terms = 2

    def check(self, num_clients: int) -> None:
        if self.bytes is None and self._sent is None:
            raise UserError(
                "link: the bytes of a transfer are unknown without a model; expected a clock of a Simulation. "
                "Give bytes=..., or run it in one"
            )

    def prepare_size(self, size: Callable[[], tuple[int, int]]) -> Duration:
        return self if self.bytes is not None else dataclasses.replace(self, _sent=np.asarray(size(), float))

    def draw(self, prepared: Sequence[Key], run: Run) -> Draw:
        sigma = jnp.asarray(self.sigma, jnp.float64)

        def transfer(key: Key, speed: Number, sent: Any) -> Array:
            normal = ndtri(uniform(per_run(key, run.client, run.run), jnp.float64) + 2.0**-54)
            values = jnp.asarray(speed, jnp.float64)
            return (
                jnp.asarray(sent, jnp.float64)
                / (values[run.client] if values.ndim else values)
                * jnp.exp(sigma * (normal - sigma / 2))
            )

        down = self.up if self.down is None else self.down
        sent: Any = (self.bytes, self.bytes) if self._sent is None else self._sent
        return worked(transfer(prepared[0], down, sent[1]) + transfer(prepared[1], self.up, sent[0]))
