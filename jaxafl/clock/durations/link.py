"""Transfers over links with a speed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import ndtri

from jaxafl.clock.durations.duration import Draw, Duration, Run, worked
from jaxafl.clock.options import fail_if
from jaxafl.device.keys import per_run, uniform
from jaxafl.options import Number, UserError, number, recording


class link(Duration):
    """Download before a run and upload after it: `uniform(60, 300) + link(up=1e6, down=5e6)`.

    A transfer of b bytes at v bytes per second takes b/v · e^(σZ - σ²/2) seconds, with Z ~ N(0, 1) drawn for every
    transfer, so that b/v is the mean. The bytes are those that the run sends: trained parameters and non-trainable
    state in their precision, without frozen parameters; up, as few as `Client(upload=...)` leaves.

    With `shared`, all transfers share the link of the server: each of the n transfers under way, up or down, gets B/n
    bytes per second, and n changes whenever one begins or ends. The other terms of the sum are the run's time between
    its download and its upload. The transfers of a stopped run end with it.

    Args:
        up: speed of uploads in bytes per second, above 0; a number or an array [N].
        down: speed of downloads in bytes per second, above 0; a number or an array [N]. `None` is `up`.
        sigma: standard deviation σ of the logarithm of a transfer's time, at least 0.
        shared: speed B of the server's link in bytes per second, above 0, instead of `up`, `down` and `sigma`.
        bytes: bytes of a transfer instead of those of the model, at least 0.
    """

    up: Number | None = number(default=None, above=0, per_client=True)
    down: Number | None = number(default=None, above=0, per_client=True)
    sigma: Number = number(default=0.0, least=0)
    shared: Number | None = number(default=None, above=0, kw_only=True)
    bytes: Number | None = number(default=None, least=0, kw_only=True)
    _sent: Any = recording(default=None)  # (up, down) of a simulation, instead of `bytes`

    terms = 2

    def check(self, num_clients: int) -> None:
        several = self.up is not None or self.down is not None or np.any(self.sigma)
        fail_if("link", [
            (self.shared is None and self.up is None, "no speed is given; expected up=... in bytes per second, or "
             "shared=..., the speed of the link of the server. Give one of them"),
            (self.shared is not None and bool(several), "with shared=B all transfers have equal shares of B; expected "
             "neither up, down nor sigma. Leave them out, or give shared=None"),
            (self.bytes is None and self._sent is None, "the bytes of a transfer are unknown without a model; expected "
             "a clock of a Simulation. Give bytes=..., or run it in one"),
        ])  # fmt: skip

    @property
    def sent(self) -> Any:
        """Bytes of an upload and of a download."""
        return (self.bytes, self.bytes) if self._sent is None else self._sent

    def without_shared(self) -> Duration:
        return self if self.shared is None else dataclasses.replace(self, shared=None)

    def transport(self) -> Any:
        if self.shared is None:
            return None
        from jaxafl.clock.durations.sharing import Sharing

        up, down = (float(one) for one in self.sent)
        return Sharing(float(np.asarray(self.shared)), up, down)

    def prepare_size(self, size: Callable[[], tuple[int, int]]) -> Duration:
        return self if self.bytes is not None else dataclasses.replace(self, _sent=np.asarray(size(), float))

    def draw(self, prepared: Sequence[Array], run: Run) -> Draw:
        if self.shared is not None:
            raise UserError(
                "link: with shared=... the time of a transfer depends on the other transfers; expected durations of "
                "free_running, of a clock of its kind, or of rounds, in which the link is a term of the sum. Write "
                "other + link(shared=...) in one of them, or give up=... instead"
            )
        if self.up is None:  # `without_shared`
            return worked(jnp.zeros(jnp.shape(run.client)))
        sigma = jnp.asarray(self.sigma, jnp.float64)

        def transfer(key: Array, speed: Number, sent: Any) -> Array:
            normal = ndtri(uniform(per_run(key, run.client, run.run), jnp.float64) + 2.0**-54)
            values = jnp.asarray(speed, jnp.float64)
            return (
                jnp.asarray(sent, jnp.float64)
                / (values[run.client] if values.ndim else values)
                * jnp.exp(sigma * (normal - sigma / 2))
            )

        down = self.up if self.down is None else self.down
        return worked(transfer(prepared[0], down, self.sent[1]) + transfer(prepared[1], self.up, self.sent[0]))
