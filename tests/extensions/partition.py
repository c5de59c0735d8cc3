"""A partition: sorted by label, dealt like cards."""

from __future__ import annotations

import numpy as np

from jaxafl.data import Partition
from jaxafl.options import static


class dealt(Partition):
    """Samples sorted by label, client k taking the rows k, k + N, k + 2N ...

    Args:
        clients: N.
    """

    clients: int = static(default=5)

    def split(self, labels, users, rng) -> list[np.ndarray]:
        order = np.argsort(labels, kind="stable")
        return [order[client :: self.clients] for client in range(self.clients)]
