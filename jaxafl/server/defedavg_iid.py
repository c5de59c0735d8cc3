"""DeFedAvg-IID."""

from __future__ import annotations

from typing import Any, ClassVar

import jax

from jaxafl.checks import check_number
from jaxafl.pytrees import pytree
from jaxafl.server.contract import Arrivals, Needs, Tree, Update
from jaxafl.server.fedbuff import FedBuff

Array = jax.Array


@pytree
class DeFedAvgIID:
    """See `defedavg_iid`."""

    learning_rate: Any

    name: ClassVar[str] = "defedavg_iid"
    clocks: ClassVar[frozenset[str]] = frozenset({"free_running"})
    references: ClassVar[tuple[str, ...]] = ("wang2024defedavg",)
    needs: ClassVar[Needs] = Needs()

    def check(self, clock: Any, client: Any, num_clients: int) -> None:
        check_number("defedavg_iid", "learning_rate", self.learning_rate, least=0)
        if clock.in_flight(num_clients) != num_clients:
            raise ValueError(
                f"defedavg_iid: all clients train all the time: give free_running(concurrency={num_clients}), "
                f"not {clock.in_flight(num_clients)}"
            )
        if clock.dispatch != "arrival" or clock.before_step:
            raise ValueError(
                "defedavg_iid: a client that finishes starts again at once from the newest model: give "
                "free_running(dispatch='arrival', before_step=False)"
            )

    def init(self, params: Tree, samples: Array) -> Any:
        return FedBuff(self.learning_rate).init(params, samples)

    def update(self, params: Tree, state: Any, arrivals: Arrivals) -> Update:
        return FedBuff(self.learning_rate).update(params, state, arrivals)


def defedavg_iid(learning_rate: Any = 1.0) -> DeFedAvgIID:
    """DeFedAvg-IID: x ← x + (η/n) Σ Δ_i over the n updates that complete first.

    All clients train all the time (`free_running` with concurrency = N and buffer = n); one that finishes starts again
    at once from the newest model. On this clock FedBuff with s = 1 is the same algorithm.

    Args:
        learning_rate: η >= 0.

    References:
        "Achieving linear speedup in asynchronous federated learning with heterogeneous clients" (DeFedAvg), Algorithm
        2.
    """
    return DeFedAvgIID(learning_rate)
