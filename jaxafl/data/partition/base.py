"""The base class of partitions, and functions that several share: rows by class, and dealing by a mix of classes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from jaxafl.options import Part, UserError, bounds_of, check_options, options_of

Rng: TypeAlias = np.random.Generator
Users: TypeAlias = np.ndarray | None  # the user of each sample, if the dataset has users


class Partition(Part):
    """Base class of partitions of pooled samples over clients; its options are its fields, checked on construction.

    To write another partition, inherit and define `split`. Any object with `split` and `description` works too.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self)
        for field in dataclasses.fields(self):  # for descriptions, which must be equal for 1 and 1.0
            value = getattr(self, field.name)
            if value is not None and "bounds" in field.metadata and not bounds_of(field).static:
                object.__setattr__(self, field.name, float(value))

    def split(self, labels: np.ndarray, users: Users, rng: Rng) -> Sequence[np.ndarray]:
        """Returns the rows of each client's samples.

        Args:
            labels: int32 `[n]`, label of each sample; the targets of a regression as they are, `[n, ...]`.
            users: int `[n]`, natural client of each sample, or `None`.
            rng: the only source of randomness.

        Returns:
            One int array of rows in `[0, n)` per client.
        """
        raise NotImplementedError

    @property
    def description(self) -> Mapping[str, str | int | float]:
        """Entries of a result file: the name as `"partition"`, and one `"partition_<option>"` per option."""
        given = {name: value for name, value in options_of(self).items() if name != "alpha" or value is not None}
        said = {f"partition_{name}": "all" if value is None else value for name, value in given.items()}
        return {"partition": self.name, **said}


def require_samples(owner: str, clients: int, samples: int, min_size: int = 1) -> None:
    """Raises `ValueError` unless every client can have `min_size` samples.

    Args:
        owner: the partition, for the message.
        clients: N.
        samples: number of samples.
        min_size: minimum number of samples per client.
    """
    if clients * min_size > samples:
        raise UserError(f"{owner}: {samples} samples are too few for {clients} clients; expected {min_size} for each")


def cut(rows: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    """Returns the rows of each client; client k holds the next `sizes[k]` of them, and the last ones are left."""
    return np.split(rows, np.cumsum(sizes))[:-1]


def rows_of_each(values: np.ndarray) -> list[np.ndarray]:
    """Groups rows by value, in sorted order of the values; rows of one value keep their order."""
    return cut(np.argsort(values, kind="stable").astype(np.int32), np.unique(values, return_counts=True)[1])


def shuffled(rows: np.ndarray, sizes: np.ndarray, rng: Rng) -> list[np.ndarray]:
    """Shuffles the rows of each client in place; client k holds `sizes[k]` consecutive rows."""
    found = cut(rows, sizes)
    for part in found:
        rng.shuffle(part)
    return found


def dealt(pieces: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]], sizes: np.ndarray, rng: Rng) -> list[np.ndarray]:
    """Distributes the rows of all pieces, and returns the rows of each client, shuffled.

    Args:
        pieces: triples of int arrays: rows `[m]`, distinct clients `[h]` that take consecutive rows, and the number
            that each takes `[h]`.
        sizes: int `[N]`, number of rows that each client takes from all pieces.
        rng: source of randomness.
    """
    places, index = np.cumsum(sizes) - sizes, np.empty(sizes.sum(), np.int32)
    for rows, takers, taken in pieces:
        begins = places[takers] - np.cumsum(taken) + taken
        index[np.repeat(begins, taken) + np.arange(taken.sum())] = rows
        places[takers] += taken
    return shuffled(index, sizes, rng)


def deal(labels: np.ndarray, counts: np.ndarray, sizes: np.ndarray, alpha: float, rng: Rng) -> list[np.ndarray]:
    """Deals each client a number of samples with classes drawn from its mix, no sample twice.

    The mixes are drawn from Dir(alpha · p), with p the class proportions of the data. Clients are served in random
    order. An exhausted class is removed from the mix, and the rest is renormalised. If nothing is left of the mix, the
    mix of the remaining samples replaces it. So the last clients may get another mix than their own, and always do if
    all samples are used.

    Args:
        labels: int `[n]`.
        counts: int `[C]`, samples of each class that occurs, in sorted order.
        sizes: int `[N]`, samples of each client; the sum is at most n.
        alpha: concentration of the mixes.
        rng: the only source of randomness.

    Returns:
        Rows of each client, shuffled.
    """
    mixes, remaining = rng.dirichlet(alpha * counts / counts.sum(), size=len(sizes)), counts
    quotas = np.zeros(mixes.shape, np.int32)
    for client in rng.permutation(len(sizes)):
        quotas[client] = taken = _draw(int(sizes[client]), mixes[client], remaining, rng)
        remaining = remaining - taken
    return take(labels, quotas, rng)


def take(labels: np.ndarray, quotas: np.ndarray, rng: Rng) -> list[np.ndarray]:
    """Draws rows of each client, no sample twice: `quotas[k, c]` of the class that is c-th in sorted order."""
    clients = np.arange(len(quotas))
    pieces = (
        (rng.permutation(np.flatnonzero(labels == label))[: quota.sum()], clients, quota)
        for label, quota in zip(np.unique(labels), quotas.T, strict=True)
    )
    return dealt(pieces, quotas.sum(1), rng)


def _draw(size: int, mix: np.ndarray, remaining: np.ndarray, rng: Rng) -> np.ndarray:
    """Draws the number of samples of each class, int `[C]`, from the mix without replacement.

    Multinomial draws are cut to the remaining samples, and what was cut is drawn again. The distribution equals that of
    single draws in which an empty class is drawn again.
    """
    taken = np.zeros_like(remaining)
    while missing := size - int(taken.sum()):
        left = remaining - taken
        weights = np.where(left > 0, mix, 0.0)
        if not weights.sum() > 0:
            weights = left.astype(float)
        taken += np.minimum(rng.multinomial(missing, weights / weights.sum()), left)
    return taken
