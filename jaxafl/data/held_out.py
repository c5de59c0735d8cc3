"""Samples that clients hold out: a validation set to choose by, and what single clients are evaluated on."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.data.form import Gather
from jaxafl.options import UserError, check_number, check_whole

MOST_CLIENTS = 10_000
"""Clients that are evaluated one by one; of more, a fixed random sample."""


class HeldOut(NamedTuple):
    """Training samples that are not trained on, by `gather`."""

    client: np.ndarray  # int32 [V], whose
    position: np.ndarray  # int32 [V], as `gather` takes it


class Owners(NamedTuple):
    """Whose the samples of a set are, for evaluations one by one."""

    clients: np.ndarray  # int [C], the clients that are evaluated
    owner: np.ndarray  # int32 [n], index into them, C for none
    samples: np.ndarray  # int32 [C]
    of_test: bool  # whether the set is the test set, or else the validation set


def held_out(
    name: str, counts: np.ndarray, gather: Gather, arrays: Any, share: float, seed: int
) -> tuple[np.ndarray, Gather, Any, HeldOut]:
    """Holds out ⌊share · n_i⌋ samples of each client, drawn without replacement; each keeps at least one.

    Args:
        name: of the dataset, for messages.
        counts: int [N].
        gather, arrays: of the federated data.
        share: in (0, 1).
        seed: of the draw.

    Returns:
        The counts of what is left, its gather and arrays, and what is held out.

    Raises:
        ValueError: no client would hold out a sample, or all samples are too many for int32 places.
    """
    check_number(name, "share", share, above=0, below=1)
    seed = check_whole(name, "seed", seed, least=0, most=None)
    counts = np.asarray(counts, np.int64)
    kept = counts - np.minimum(np.floor(share * counts), counts - 1).astype(np.int64)
    if (kept == counts).all():
        raise UserError(
            f"{name}: a share of {share:g} holds out no sample of any client (the largest has {counts.max()}); use a "
            "larger one"
        )
    if counts.sum() >= 2**31:
        raise UserError(f"{name}: {counts.sum()} samples are too many to hold some out, at most {2**31 - 1}")
    client = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    start = np.cumsum(counts) - counts
    drawn = np.lexsort((np.random.default_rng(seed).random(len(client)), client))  # a random order within each client
    position = (drawn - start[client]).astype(np.int32)
    apart = np.arange(len(client)) - start[client] >= kept[client]
    own = {"all": arrays, "position": position[~apart], "start": (np.cumsum(kept) - kept).astype(np.int32)}
    return kept, _GatherKept(gather), own, HeldOut(client[apart], position[apart])


def gather_held_out(gather: Gather, arrays: Any, client: Any, position: Any) -> tuple[Any, jax.Array]:
    """Raw samples, each of a client and at a position of its own; traced.

    Args:
        gather, arrays: of the data with everything held out, `FederatedData.arrays`.
        client, position: int32 [B].
    """
    whole = gather.gather  # type: ignore[attr-defined]
    one = jax.vmap(lambda client, position: whole(arrays["all"], client, position[None]))(client, position)
    return jax.tree.map(lambda leaf: leaf[:, 0], one)


def owners_of(owner: np.ndarray, num_clients: int, of_test: bool) -> Owners:
    """Whose samples are evaluated one by one.

    Args:
        owner: int [n], the client of each sample, negative for none.
        num_clients: N.
        of_test: whether the samples are the test set.
    """
    clients = np.unique(owner[owner >= 0])
    if len(clients) > MOST_CLIENTS:
        clients = np.sort(np.random.default_rng(0).choice(clients, MOST_CLIENTS, replace=False))
    place = np.full(num_clients + 1, len(clients), np.int32)  # the last: of no client
    place[clients] = np.arange(len(clients), dtype=np.int32)
    index = place[owner]
    return Owners(clients, index, np.bincount(index, minlength=len(clients) + 1)[:-1].astype(np.int32), of_test)


@dataclasses.dataclass(frozen=True)
class _GatherKept:
    """Gathers samples of which some are held out; `gather`: of the data before that."""

    gather: Gather

    def __call__(self, arrays: Any, client: Any, positions: jax.Array) -> tuple[Any, jax.Array]:
        start = jnp.take(arrays["start"], client, mode="clip")
        return self.gather(arrays["all"], client, jnp.take(arrays["position"], start + positions, mode="clip"))
