"""Dealing samples to clients of given sizes by a mix of classes for each: what several partitions share."""

from __future__ import annotations

import numpy as np


def dirichlet_mixes(alpha: float, counts: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
    """Class mixes `[N, C]` of the clients, each drawn from Dir(alpha · p) with p the class proportions of the data."""
    return rng.dirichlet(alpha * counts / counts.sum(), size=clients)


def deal(labels: np.ndarray, sizes: np.ndarray, mixes: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Give each client a number of samples whose classes are drawn from its mix, no sample twice.

    Clients are served one after another in random order. A class that has run out is left out of the mix, the rest of
    which is renormalised (where nothing of it is left, the mix of the samples left takes its place). So the last ones
    served may get another mix than theirs, and do if all samples are used.

    Args:
        labels: int `[n]`.
        sizes: int `[N]`, samples of each client, n or fewer together.
        mixes: float `[N, C]`, probabilities over the classes that occur, in sorted order.
        rng: The only source of randomness.

    Returns:
        Rows of each client, shuffled.
    """
    _, counts = np.unique(labels, return_counts=True)
    quotas = np.zeros(mixes.shape, np.int64)
    remaining = counts.copy()
    for client in rng.permutation(len(sizes)):
        quotas[client] = _draw(int(sizes[client]), mixes[client], remaining, rng)
        remaining -= quotas[client]
    return take(labels, quotas, rng)


def take(labels: np.ndarray, quotas: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Random rows of each client, no sample twice: `quotas[k, c]` of the class that is c-th in sorted order."""
    _, counts = np.unique(labels, return_counts=True)
    of_class = np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])
    ends = np.cumsum(quotas, axis=0)
    pieces = [
        np.split(rng.permutation(rows)[: stops[-1]], stops[:-1]) for rows, stops in zip(of_class, ends.T, strict=True)
    ]
    return [rng.permutation(np.concatenate(own)) for own in zip(*pieces, strict=True)]


def _draw(size: int, mix: np.ndarray, remaining: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """How many samples of each class, int `[C]`: draws from the mix one by one, those of an empty class drawn again.

    A multinomial draw of many at once, cut to what remains and repeated for what was cut, is the same in distribution.
    """
    taken = np.zeros_like(remaining)
    while missing := size - int(taken.sum()):
        left = remaining - taken
        weights = np.where(left > 0, mix, 0.0)
        if not weights.sum() > 0:
            weights = left.astype(float)
        taken += np.minimum(rng.multinomial(missing, weights / weights.sum()), left)
    return taken
