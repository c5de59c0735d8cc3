"""What a partition is, and what several of them share: samples by class, and dealing them by a mix of classes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxafl.options import Part, bounds_of, check_options, options_of

_BLOCK = 1024  # clients whose classes are drawn together


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

    def split(self, labels: np.ndarray, users: np.ndarray | None, rng: np.random.Generator) -> Sequence[np.ndarray]:
        """Rows of each client's samples.

        Args:
            labels: int32 `[n]`, label of each sample.
            users: int `[n]`, natural client of each sample, or `None`.
            rng: the only source of randomness.

        Returns:
            One int array of rows in `[0, n)` per client.
        """
        raise NotImplementedError(f"{self.name} has no split(labels, users, rng)")

    def remedy(self, labels: np.ndarray, rng: np.random.Generator) -> str:
        """Returns what to use instead where clients are left without samples, for the error.

        Args:
            labels: int32 `[n]`, label of each sample.
            rng: as `split` was given it.
        """
        return "Use fewer clients, or a less skewed partition"

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


class ClientRows(Sequence[np.ndarray]):
    """The rows of all clients in one array; an array for each of a million clients would take more than their rows.

    Args:
        flat: int `[n]`, the rows of one client after another.
        counts: int `[N]`, how many are each client's.
    """

    def __init__(self, flat: np.ndarray, counts: np.ndarray) -> None:
        self.flat, self.counts, self._ends = flat, counts, np.cumsum(counts)

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, client: Any) -> Any:
        if isinstance(client, slice):
            return [self[place] for place in range(*client.indices(len(self)))]
        end = self._ends[client]
        return self.flat[end - self.counts[client] : end]


def rows_of_each(values: np.ndarray) -> ClientRows:
    """The rows of each value that occurs, in their original order, values sorted."""
    _, counts = np.unique(values, return_counts=True)
    return ClientRows(np.argsort(values, kind="stable").astype(np.int32), counts)


def parts(total: int, count: int) -> np.ndarray:
    """The sizes of so many equal parts, int `[count]`, the first ones larger by one where it does not go evenly."""
    return total // count + (np.arange(count) < total % count)


def shuffled(rows: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> ClientRows:
    """The rows of each client, who holds so many in succession, shuffled in place."""
    found = ClientRows(rows, sizes)
    for own in found:
        rng.shuffle(own)
    return found


def dealt(
    pieces: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]], sizes: np.ndarray, rng: np.random.Generator
) -> ClientRows:
    """The rows of each client, shuffled.

    Args:
        pieces: rows int `[m]`, the clients int `[h]` (no one twice) who take them one after another, and how many each
            takes, int `[h]`; int32 all.
        sizes: int32 `[N]`, how many rows each client takes of all pieces.
        rng: the randomness.
    """
    places, index = np.cumsum(sizes, dtype=np.int32), np.empty(sizes.sum(), np.int32)
    places -= sizes
    for rows, takers, taken in pieces:
        begins = np.cumsum(taken, dtype=np.int32)
        begins -= taken
        np.subtract(places[takers], begins, out=begins)
        index[np.repeat(begins, taken) + np.arange(taken.sum(), dtype=np.int32)] = rows
        places[takers] += taken
    return shuffled(index, sizes, rng)


def dirichlet_mixes(alpha: float, counts: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
    """Class mixes `[N, C]` of the clients, each drawn from Dir(alpha · p) with p the class proportions of the data.

    Args:
        alpha: concentration.
        counts: int [C], samples of every class.
        clients: N.
        rng: the randomness.
    """
    return rng.dirichlet(alpha * counts / counts.sum(), size=clients)


def deal(
    labels: np.ndarray, counts: np.ndarray, sizes: np.ndarray, mixes: np.ndarray, rng: np.random.Generator
) -> ClientRows:
    """Give each client a number of samples whose classes are drawn from its mix, no sample twice.

    Clients are served one after another in random order. A class that has run out is left out of the mix, the rest of
    which is renormalised (where nothing of it is left, the mix of the samples left takes its place). So the last ones
    served may get another mix than theirs, and do if all samples are used.

    Args:
        labels: int `[n]`.
        counts: int `[C]`, samples of each class that occurs, in sorted order.
        sizes: int `[N]`, samples of each client, n or fewer together.
        mixes: float `[N, C]`, probabilities over the classes that occur, in sorted order; overwritten, since many
            clients' numbers of samples would need as much room again.
        rng: the only source of randomness.

    Returns:
        Rows of each client, shuffled.
    """
    remaining = counts
    order = rng.permutation(len(sizes)).astype(np.int32)
    for served in np.array_split(order, -(-len(order) // _BLOCK)):
        state, there = rng.bit_generator.state, remaining > 0
        weights = np.where(there, mixes[served], 0.0)
        totals = weights.sum(1, keepdims=True)
        if (totals > 0).all():  # all at once, which is the same unless a class runs out
            drawn = rng.multinomial(sizes[served], weights / totals)
            left = remaining - drawn.sum(0)
            if (left >= 0).all() and ((left > 0) == there).all():
                mixes[served], remaining = drawn, left
                continue
            rng.bit_generator.state = state
        for client in served:
            mixes[client] = taken = _draw(int(sizes[client]), mixes[client], remaining, rng)
            remaining = remaining - taken
    del order, served
    return take(labels, _narrowed(mixes), rng)


def _narrowed(whole: np.ndarray) -> np.ndarray:
    """Whole numbers in float64 as int32, in the first half of their own memory; the other half is given back."""
    shape, wide = whole.shape, whole.reshape(-1)
    narrow, many = wide.view(np.int32), len(wide)
    for begin in range(0, many, _BLOCK):  # an entry is written where one that has been read lay
        narrow[begin : min(begin + _BLOCK, many)] = wide[begin : begin + _BLOCK].astype(np.int32)
    del narrow, wide
    whole.resize(-(-many // 2), refcheck=False)
    return whole.view(np.int32)[:many].reshape(shape)


def take(labels: np.ndarray, quotas: np.ndarray, rng: np.random.Generator) -> ClientRows:
    """Random rows of each client, no sample twice: `quotas[k, c]` of the class that is c-th in sorted order."""

    def pieces() -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        clients = np.arange(len(quotas), dtype=np.int32)
        for label, quota in zip(np.unique(labels), quotas.T, strict=True):
            taken = quota.astype(np.int32, copy=False)
            yield rng.permutation(np.flatnonzero(labels == label))[: taken.sum()], clients, taken

    return dealt(pieces(), quotas.sum(1, dtype=np.int32), rng)


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
