"""Durations of published experiments: delays in tiers, networks, transfers, hanging clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtri

from jaxafl.clock.durations.duration import ByOptions, Draw, Duration, Run, share_of, worked
from jaxafl.device.keys import jax_key, per_client
from jaxafl.options import Number, number, static

Array = jax.Array
_MANY = 100_000  # clients above which tiers are drawn at the start of runs, since most clients may never start
_TIERS = {
    "large": ((1.0, 2.0), (3.0, 5.0), (50.0, 80.0)),
    "mild": ((1.0, 2.0), (3.0, 5.0), (5.0, 8.0)),
}


class three_tier(Duration):
    """FADAS's delays, in which every client belongs to a tier for the complete simulation.

    A client draws w ~ Dirichlet([3γ, 2γ, γ]) and belongs to the tier argmax(w) (small, medium, large); a run takes U(1,
    2), U(3, 5) and U(50, 80) (`"large"` worst case) or U(5, 8) (`"mild"`) units.

    Args:
        profile: delays of the third tier. `"large"`: U(50, 80) units. `"mild"`: U(5, 8) units.
        gamma: concentration γ > 0 of the Dirichlet distribution. Smaller values give tiers of more equal frequency.
        unit: seconds per unit, above 0. FADAS reports time in units of 10 s.
        per: unit of a draw. `"run"`: one delay per run. `"client"`: one delay per client.
        split: assignment of tiers. `"client"`: drawn for each client as above. `"population"`: one draw from a
            symmetric Dirichlet(γ, γ, γ) gives the proportions in which the clients, in random order, are split.

    References:
        FADAS (Wang et al., 2024), section 6 and Table 1.
    """

    profile: Literal["large", "mild"] = static(default="large")
    gamma: Number = number(default=1.0, above=0)
    unit: Number = number(default=10.0, above=0)
    per: Literal["run", "client"] = static(default="run")
    split: Literal["client", "population"] = static(default="client")

    terms = 2
    references = ("wang2024fadas",)

    def prepare(self, keys: Sequence[Array], num_clients: int) -> tuple[Array, Array]:
        if self.split == "client":
            if num_clients > _MANY:
                return keys[0], keys[1]
            return keys[0], jax.vmap(self._tier, (None, 0))(keys[1], jnp.arange(num_clients))
        shape = jnp.full(3, self.gamma, jnp.float64)
        edges = jnp.cumsum(jax.nn.softmax(jax.random.loggamma(keys[1], shape, dtype=jnp.float64)))
        order = jnp.argsort(share_of(keys[1], jnp.arange(num_clients)))
        return keys[0], jnp.searchsorted(edges[:2], (jnp.argsort(order) + 0.5) / num_clients)

    def draw(self, prepared: tuple[Array, Array], run: Run) -> Draw:
        key, tiers = prepared
        tier = self._tier(tiers, run.client) if tiers.ndim == 0 else tiers[run.client]
        low, high = jnp.float64(_TIERS[self.profile])[tier]
        share = share_of(key, run.client, None if self.per == "client" else run.run)
        return worked((low + (high - low) * share) * self.unit)

    def _tier(self, key: Array, client: Array) -> Array:
        """Draws a client's tier, the argmax of gamma variates, which is that of their Dirichlet weights."""
        shape = jnp.float64(self.gamma) * jnp.asarray([3.0, 2.0, 1.0])
        return jnp.argmax(jax.random.loggamma(jax_key(per_client(key, client)), shape, dtype=jnp.float64))


class mac_network(Duration):
    """DeFedAvg's delays: a run computes for c_i · local steps · mflop / gflops, with c_i ~ U(1, 5) once per client.

    A server step costs its waiting time plus two one-way transfers of the model, during which NO client computes, as
    the published times imply. Every later time is delayed by 2 · megabytes · 8 / mbits.

    Args:
        mflop: computation per local step in 10⁶ floating-point operations, at least 0 (17.0 for Fashion-MNIST, 31.4 for
            CIFAR-10).
        megabytes: size of the model in 10⁶ bytes, at least 0 (2.2 for Fashion-MNIST, 3.53 for CIFAR-10).
        gflops: speed of a client in 10⁹ operations per second, above 0.
        mbits: bandwidth of a link in Mbit/s, above 0.
        spread: quantity that c_i multiplies, the `"time"` or the `"speed"` of a client.
        freeze: let the transfers stop all clients. FAVANO's published round costs only the two transfers. To reproduce
            it, give `interrupting` this period, and `freeze=False`.

    References:
        "Achieving linear speedup in asynchronous federated learning with heterogeneous clients" (DeFedAvg), section
        4.1.3.
    """

    mflop: Number = number(least=0)
    megabytes: Number = number(least=0)
    gflops: Number = number(default=10.0, above=0)
    mbits: Number = number(default=400.0, above=0)
    spread: Literal["time", "speed"] = static(default="time")
    freeze: bool = static(default=True)

    references = ("wang2024defedavg",)

    pause = ByOptions(0.0, lambda one: 2 * float(one.megabytes) * 8 / float(one.mbits) if one.freeze else 0.0)

    def draw(self, prepared: Sequence[Array], run: Run) -> Draw:
        factor = 1 + 4 * share_of(prepared[0], run.client)
        seconds = run.local_steps * self.mflop / (1000 * self.gflops)
        return worked(seconds * factor if self.spread == "time" else seconds / factor)


class transmission(Duration):
    """Download plus upload, each `bytes`/`speed` · max(N(1, σ²), 0) seconds, drawn for every run.

    Args:
        bytes: size of the model in bytes, at least 0.
        speed: bandwidth in bytes per second, above 0.
        sigma: relative standard deviation σ of the time of one way; at least 0.

    References:
        AsyncFedED (Wang et al., 2022), appendix B.2.
    """

    bytes: Number = number(least=0)
    speed: Number = number(above=0)
    sigma: Number = number(default=0.1, least=0)

    terms = 2
    references = ("wang2022asyncfeded",)

    def draw(self, prepared: Sequence[Array], run: Run) -> Draw:
        def factor(key: Array) -> Array:
            normal = ndtri(share_of(key, run.client, run.run) + 2.0**-54)
            return jnp.maximum(1 + self.sigma * normal, 0)

        return worked((factor(prepared[0]) + factor(prepared[1])) * (self.bytes / self.speed))


class suspension(Duration):
    """Random hangs of U(0, L) extra seconds, L the longest run so far, hangs excluded.

    Reading: "so far" means among all runs, of any client, that started before this one (in start order), so the first
    run never hangs. Clocks that send tasks ahead (`routed`, `regional_rounds` with `down`) order runs by their sending,
    and `interrupting` takes L at the contact, over the runs contacted so far, with their hangs. Transfers over
    `link(shared=...)` are not in L. Used as a term: `uniform(1, 5) + suspension(0.1)`.

    Args:
        probability: probability that a run hangs, in [0, 1].

    References:
        AsyncFedED (Wang et al., 2022), section 6.1.
    """

    probability: Number = number(least=0, most=1)

    terms = 2
    references = ("wang2022asyncfeded",)

    def draw(self, prepared: Sequence[Array], run: Run) -> Draw:
        hits = share_of(prepared[0], run.client, run.run) < self.probability
        share = share_of(prepared[1], run.client, run.run)
        return Draw(jnp.zeros_like(share), jnp.where(hits, share * run.longest, 0.0))
