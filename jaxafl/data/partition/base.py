"""What a partition is, and what several of them share: samples by class, and dealing them by a mix of classes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np

from jaxafl.options import Part, bounds_of, check_options, options_of


class Partition(Part):
    """A way to split pooled samples over clients; its options are its fields, checked when it is made.

    One of your own is a subclass with `split`, or any object with `split` and `description`.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None and not bounds_of(field).static:
                object.__setattr__(self, field.name, float(value))
            elif isinstance(value, np.generic):
                object.__setattr__(self, field.name, value.item())

    def split(self, labels: np.ndarray, users: np.ndarray | None, rng: np.random.Generator) -> list[np.ndarray]:
        """Rows of each client's samples.

        Args:
            labels: int32 `[n]`, label of each sample.
            users: int `[n]`, natural client of each sample, or `None`.
            rng: the only source of randomness.

        Returns:
            One int array of rows in `[0, n)` per client.
        """
        raise NotImplementedError(f"{self.name} has no split(labels, users, rng)")

    @property
    def description(self) -> Mapping[str, str | int | float]:
        """What a result file says: the name as `"partition"`, and one `"partition_<option>"` per option."""
        said = {f"partition_{name}": "all" if value is None else value for name, value in options_of(self).items()}
        return {"partition": self.name, **said}


def require_samples(owner: str, clients: int, samples: int, min_size: int | None = None) -> None:
    """Raises `ValueError` unless every client can have `min_size` samples (`None`: one).

    Args:
        owner: the partition, for the message.
        clients: N.
        samples: how many there are.
        min_size: the least of a client.
    """
    least = 1 if min_size is None else min_size
    if clients * least > samples:
        what, smaller = ("one", "") if min_size is None else (f"min_size={least}", ", or a smaller min_size")
        raise ValueError(
            f"{owner}: {samples} samples cannot give {clients} clients {what} each; use at most {samples // least} "
            f"clients{smaller}"
        )


def rows_of_each(values: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """The rows of each value that occurs, in their original order, values sorted; and how many they are."""
    _, counts = np.unique(values, return_counts=True)
    return np.split(np.argsort(values, kind="stable"), np.cumsum(counts)[:-1]), counts


def parts(total: int, count: int) -> np.ndarray:
    """The sizes of so many equal parts, int `[count]`, the first ones larger by one where it does not go evenly."""
    return total // count + (np.arange(count) < total % count)


def shuffled(rows: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """The rows of each client, who holds so many in succession, shuffled; no client has an array of its own before."""
    ends = np.cumsum(sizes)
    for begin, end in zip((ends - sizes).tolist(), ends.tolist(), strict=True):
        rows[begin:end] = rng.permutation(rows[begin:end])
    return np.split(rows, ends[:-1])


def dealt(pieces: Iterable[tuple[np.ndarray, np.ndarray]], clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    """The rows of each client, shuffled.

    Args:
        pieces: pairs of rows and whose they are, int `[m]` each.
        clients: N.
        rng: the randomness.
    """
    rows, owners = map(np.concatenate, zip(*pieces, strict=True))
    return shuffled(rows[np.argsort(owners, kind="stable")], np.bincount(owners, minlength=clients), rng)


def dirichlet_mixes(alpha: float, counts: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
    """Class mixes `[N, C]` of the clients, each drawn from Dir(alpha · p) with p the class proportions of the data.

    Args:
        alpha: concentration.
        counts: int [C], samples of every class.
        clients: N.
        rng: the randomness.
    """
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
        rng: the only source of randomness.

    Returns:
        Rows of each client, shuffled.
    """
    _, remaining = np.unique(labels, return_counts=True)
    quotas = np.zeros(mixes.shape, np.int64)
    for client in rng.permutation(len(sizes)):
        quotas[client] = _draw(int(sizes[client]), mixes[client], remaining, rng)
        remaining -= quotas[client]
    return take(labels, quotas, rng)


def take(labels: np.ndarray, quotas: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Random rows of each client, no sample twice: `quotas[k, c]` of the class that is c-th in sorted order."""
    of_class, _ = rows_of_each(labels)
    clients = np.arange(len(quotas), dtype=np.int32)
    pieces = [
        (rng.permutation(rows)[: quota.sum()], np.repeat(clients, quota))
        for rows, quota in zip(of_class, quotas.T, strict=True)
    ]
    return dealt(pieces, len(quotas), rng)


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
