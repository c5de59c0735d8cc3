"""DeFedAvg-nIID."""

from __future__ import annotations

from typing import Any, ClassVar

import jax

from jaxafl.checks import check_number
from jaxafl.pytrees import pytree
from jaxafl.server.contract import Arrivals, Needs, Tree, Update
from jaxafl.server.fedbuff import FedBuff

Array = jax.Array


@pytree
class DeFedAvgNonIID:
    """See `defedavg_niid`."""

    learning_rate: Any

    name: ClassVar[str] = "defedavg_niid"
    clocks: ClassVar[frozenset[str]] = frozenset({"sampled"})
    references: ClassVar[tuple[str, ...]] = ("wang2024defedavg",)
    needs: ClassVar[Needs] = Needs()

    def check(self, clock: Any, client: Any, num_clients: int) -> None:
        check_number("defedavg_niid", "learning_rate", self.learning_rate, least=0)

    def init(self, params: Tree, samples: Array) -> Any:
        return FedBuff(self.learning_rate).init(params, samples)

    def update(self, params: Tree, state: Any, arrivals: Arrivals) -> Update:
        return FedBuff(self.learning_rate).update(params, state, arrivals)


def defedavg_niid(learning_rate: Any = 1.0) -> DeFedAvgNonIID:
    """DeFedAvg-nIID: x ← x + (η/n) Σ Δ_i over n clients drawn with replacement, WITH multiplicity.

    Runs on `sampled`: each drawn client must have a finished update in its send buffer. Eq. (8) and line 7 of the
    algorithm count a client as often as it is drawn; the sign in eq. (3) and "|I_t| <= n" are slips (without
    multiplicity the sum is biased).

    Args:
        learning_rate: η >= 0.

    References:
        "Achieving linear speedup in asynchronous federated learning with heterogeneous clients" (DeFedAvg), Algorithm
        1.
    """
    return DeFedAvgNonIID(learning_rate)
