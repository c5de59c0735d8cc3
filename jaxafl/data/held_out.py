"""Held-out samples: the validation set, several test sets, and the owners of samples for evaluations per client."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.data.form import Gather, gather_stored, kind_of_sample, stored_rows
from jaxafl.data.targets import as_samples, as_targets, check_range
from jaxafl.options import UserError, check_number, check_whole, kept

MOST_CLIENTS = 10_000
"""Maximum number of clients in evaluations per client; more clients are represented by a fixed random sample."""


class HeldOut(NamedTuple):
    """Training samples held out for validation, as arguments of `gather`."""

    client: np.ndarray  # int32 [V], the client of each sample
    position: np.ndarray  # int32 [V], the position among the client's samples


class Owners(NamedTuple):
    """Owners of the samples of a set, for evaluations per client."""

    clients: np.ndarray  # int [C], the clients that are evaluated
    owner: np.ndarray  # int32 [n], index into `clients`, C for none
    samples: np.ndarray  # int32 [C], samples of each client
    of_test: bool  # True for the test set, False for the validation set


class OwnedRows(NamedTuple):
    """Held-out samples of each client in its set, to be read inside a program."""

    first: np.ndarray  # int32 [N], place of the client's first sample in `rows`
    samples: np.ndarray  # int32 [N], held-out samples of the client, 0 for none
    rows: np.ndarray  # int32 [n], the samples of the set in the order of the clients
    positions: np.ndarray  # int32 [B], 0 .. B - 1; B samples are evaluated at once


def held_out(name: str, counts: np.ndarray, gather: Gather, arrays: Any, share: float, seed: int) -> dict[str, Any]:
    """Holds out ⌊share · n_i⌋ samples of each client, drawn without replacement; each keeps at least one.

    Clients that hold the same samples hold out the same ones.

    Args:
        name: name of the dataset, for messages.
        counts: int [N], samples of each client.
        gather, arrays: fields of the federated data.
        share: share of the samples, in (0, 1).
        seed: seed of the draw.

    Returns:
        `counts`, `gather` and `arrays` of the remaining samples, and `validation`, the held-out ones.

    Raises:
        ValueError: no client would hold out a sample, or there are too many samples for int32 indices.
    """
    check_number(name, "share", share, above=0, below=1)
    seed = check_whole(name, "seed", seed, least=0, most=None)
    counts = np.asarray(counts, np.int64)
    kept = counts - np.minimum(np.floor(share * counts), counts - 1).astype(np.int64)
    if (kept == counts).all():
        raise UserError(f"{name}: share={share:g} holds out no sample of any client. Use a larger one")
    if counts.sum() >= 2**31:
        raise UserError(f"{name}: {counts.sum()} samples are too many to hold some out, at most {2**31 - 1}")
    client = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    start = np.cumsum(counts) - counts
    rng = np.random.default_rng(seed)
    rows = stored_rows(arrays, counts) if gather is gather_stored else np.arange(len(client))
    shared = np.bincount(rows).max() > 1  # then all clients of a sample draw one number for it
    numbers = rng.random(rows.max() + 1)[rows] if shared else rng.random(len(client))
    drawn = np.lexsort((numbers, client))  # a random order within each client
    position = (drawn - start[client]).astype(np.int32)
    out = np.arange(len(client)) - start[client] >= kept[client]
    remaining = {"all": arrays, "position": position[~out], "start": (np.cumsum(kept) - kept).astype(np.int32)}
    validation = HeldOut(client[out], position[out])
    return {"counts": kept, "gather": _GatherKept(gather), "arrays": remaining, "validation": validation}


def gather_held_out(gather: Gather, arrays: Any, client: Any, position: Any) -> tuple[Any, jax.Array]:
    """Gathers raw samples, one for each pair of client and position; traceable.

    Args:
        gather, arrays: fields of the data after `held_out`.
        client, position: int32 [B].
    """
    original = gather.gather  # type: ignore[attr-defined]
    samples = jax.vmap(lambda client, position: original(arrays["all"], client, position[None]))(client, position)
    return jax.tree.map(lambda leaf: leaf[:, 0], samples)


def test_sets_of(
    name: str, known: Mapping[str, tuple[Any, np.ndarray]], further: Mapping[str, tuple[Any, Any]], classes: int | None
) -> dict[str, tuple[Any, Any]]:
    """Returns all test sets by name, in the dtypes of the first one.

    Args:
        name: name of the dataset, for messages.
        known: name -> (x, y) of the present test sets, at least one.
        further: name -> (x, y) of the others.
        classes: number of classes; `None` if labels are no classes.

    Raises:
        ValueError: a name is used twice, shapes or dtypes differ from those of the first test set, a value is not
            finite, or a label is unknown.
    """
    found, (x_test, y_test) = dict(known), next(iter(known.values()))
    for key, (x, y) in further.items():
        owner = f"{name}, test set {key!r}"
        if key in found:
            raise UserError(f"{owner}: another test set has this name. Rename one: with_test_sets(..., first='clean')")
        samples, labels = like_samples(owner, as_samples(owner, x), x_test), as_targets(owner, y)
        expected = [len(jax.tree.leaves(samples)[0]), *y_test.shape[1:]]
        if [*labels.shape] != expected or labels.dtype.kind != y_test.dtype.kind:
            raise UserError(f"{owner}: labels are {labels.dtype}{[*labels.shape]}; expected {y_test.dtype}{expected}")
        if classes is not None:
            check_range(owner, labels, classes)
        found[key] = jax.tree.map(kept, samples), labels.astype(y_test.dtype)
    return found


def like_samples(owner: str, x: Any, test: Any) -> Any:
    """Returns raw samples in the dtypes of the test set.

    Args:
        owner: the caller, for messages.
        x: samples [n, ...], n >= 1.
        test: samples of the test set.

    Raises:
        ValueError: shapes or kinds of numbers differ from those of the test set.
    """

    def fits(leaf: np.ndarray, like: np.ndarray) -> bool:
        same = leaf.shape[1:] == like.shape[1:] and leaf.dtype.kind == like.dtype.kind
        return same and (leaf.dtype.kind == "f" or np.array_equal(leaf, leaf.astype(like.dtype)))

    given = jax.tree.map(np.asarray, x)
    lengths = {leaf.shape[:1] for leaf in jax.tree.leaves(given)}
    forms = {jax.tree.structure(tree) for tree in (given, test)}
    if len(forms) > 1 or len(lengths) > 1 or lengths & {(), (0,)} or not jax.tree.all(jax.tree.map(fits, given, test)):
        shapes = jax.tree.map(lambda leaf: f"{leaf.dtype}{[*leaf.shape]}", given)
        raise UserError(f"{owner}: x is {shapes}; expected samples [n, ...] of {kind_of_sample(test)}, as in x_test")
    return jax.tree.map(lambda leaf, like: leaf.astype(like.dtype, copy=False), given, test)


def owners_of(owner: np.ndarray, num_clients: int, of_test: bool) -> Owners:
    """Selects the clients for evaluations per client, and the owner of each sample.

    Args:
        owner: int [n], the client of each sample, negative for none.
        num_clients: N.
        of_test: True for the test set, False for the validation set.
    """
    clients = np.unique(owner[owner >= 0])
    if len(clients) > MOST_CLIENTS:
        clients = np.sort(np.random.default_rng(0).choice(clients, MOST_CLIENTS, replace=False))
    place = np.full(num_clients + 1, len(clients), np.int32)  # index -1, of a sample without client, is the last entry
    place[clients] = np.arange(len(clients), dtype=np.int32)
    index = place[owner]
    return Owners(clients, index, np.bincount(index, minlength=len(clients) + 1)[:-1].astype(np.int32), of_test)


def owned_rows(owners: Owners, num_clients: int, most: int) -> OwnedRows:
    """Returns the held-out samples of each client.

    Args:
        owners: owners of the samples of the set.
        num_clients: N.
        most: largest B.
    """
    first, samples = np.zeros((2, num_clients), np.int32)
    samples[owners.clients] = owners.samples
    first[owners.clients] = np.cumsum(owners.samples) - owners.samples
    rows = np.argsort(owners.owner, kind="stable").astype(np.int32)
    return OwnedRows(first, samples, rows, np.arange(min(most, samples.max()), dtype=np.int32))


@dataclasses.dataclass(frozen=True)
class _GatherKept:
    """Gather of the samples that are not held out; `gather` is the original one."""

    gather: Gather

    def __call__(self, arrays: Any, client: Any, positions: jax.Array) -> tuple[Any, jax.Array]:
        start = jnp.take(arrays["start"], client, mode="clip")
        return self.gather(arrays["all"], client, jnp.take(arrays["position"], start + positions, mode="clip"))
