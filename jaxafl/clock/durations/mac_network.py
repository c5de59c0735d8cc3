"""DeFedAvg's network: time from multiply-accumulates and megabytes, and transfers during which nobody computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import jax.numpy as jnp

from jaxafl.checks import check_choice, check_flag, check_number
from jaxafl.clock.durations.duration import Composable, Draw, Run, worked
from jaxafl.keys import Key, per_client, uniform
from jaxafl.pytrees import pytree, static


@pytree
class MACNetwork(Composable):
    """See `mac_network`."""

    mflop: Any
    megabytes: Any
    gflops: Any
    mbits: Any
    spread: str = static(default="time")
    freeze: bool = static(default=True)

    terms = 1
    references: ClassVar[tuple[str, ...]] = ("wang2024defedavg",)

    @property
    def frozen(self) -> float:
        """Seconds that every server step adds to the clock, in which no client computes."""
        return 2 * float(self.megabytes) * 8 / float(self.mbits) if self.freeze else 0.0

    def check(self, num_clients: int) -> None:
        check_number("mac_network", "mflop", self.mflop, least=0)
        check_number("mac_network", "megabytes", self.megabytes, least=0)
        check_number("mac_network", "gflops", self.gflops, above=0)
        check_number("mac_network", "mbits", self.mbits, above=0)
        check_choice("mac_network", "spread", self.spread, ("time", "speed"))
        check_flag("mac_network", "freeze", self.freeze)

    def prepare(self, keys: Sequence[Key], num_clients: int) -> Key:
        return keys[0]

    def draw(self, prepared: Key, run: Run) -> Draw:
        factor = 1 + 4 * uniform(per_client(prepared, run.client), jnp.float64)
        seconds = run.local_steps * self.mflop / (1000 * self.gflops)
        return worked(seconds * factor if self.spread == "time" else seconds / factor)


def mac_network(
    mflop: Any, megabytes: Any, gflops: Any = 10.0, mbits: Any = 400.0, spread: str = "time", freeze: bool = True
) -> MACNetwork:
    """DeFedAvg's delays: a run computes for c_i · local steps · mflop / gflops, with c_i ~ U(1, 5) once per client.

    A server step costs its waiting time plus two one-way transfers of the model, during which NO client computes (that
    is what the published times imply): every time after it is later by 2 · megabytes · 8 / mbits.

    Args:
        mflop: million floating-point operations per local step (17.0 for Fashion-MNIST, 31.4 for CIFAR-10).
        megabytes: size of the model (2.2 and 3.53).
        gflops: of a client, in 10⁹ operations per second.
        mbits: of a link, in Mbit/s.
        spread: c_i multiplies the `"time"` of a client, or its `"speed"`.
        freeze: whether the transfers stop everyone. FAVANO's published round costs the two transfers alone: there give
            `interrupting` that period, and `freeze=False`.

    References:
        "Achieving linear speedup in asynchronous federated learning with heterogeneous clients" (DeFedAvg), section
        4.1.3.
    """
    return MACNetwork(mflop, megabytes, gflops, mbits, spread, freeze)
