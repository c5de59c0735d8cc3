"""Rows of clients: what a client keeps from run to run, among it the parameters of `Client(personal=...)`."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxafl.client.correction.contract import Tree
from jaxafl.client.options import Client
from jaxafl.device.keys import pack
from jaxafl.models.model import path_of
from jaxafl.options import UserError, check_flag
from jaxafl.options.user_code import with_arrays


class Memory(NamedTuple):
    """Row of a client. It changes at the end of every run that the client completes, whether or not a step takes it."""

    upload: Tree = ()  # of `Client(upload=...)`
    correction: Tree = ()  # of `Client(correction=...)`
    personal: Tree = ()  # the personal parameters, `None` for the others
    optimizer: Tree = ()  # the optimiser's state of `Client(reset="never")`, packed


class Turns(enum.IntEnum):
    """Order in which the runs of a client are trained."""

    ANY = 0
    IN_TURN = 1  # after the previous run of the client
    IN_TIME = 2  # also not before the server step that the run arrives at: evaluations read the rows


def turns_of(client: Client) -> Turns:
    """Returns the order in which runs of a client must be trained."""
    if client.personal is not None:
        return Turns.IN_TIME
    return Turns.IN_TURN if client.remembers else Turns.ANY


def first_memory(client: Client, params: Tree) -> Memory:
    """Returns the row of a client that keeps one (`Client.remembers`) before its first run.

    Args:
        client: local training.
        params: x_0.
    """
    return Memory(
        upload=() if client.upload is None else with_arrays(client.upload.init(shared_of(client, params))),
        correction=() if client.correction is None else _first(client, params)[0],
        personal=() if client.personal is None else personal_of(client, params),
        optimizer=() if client.reset != "never" else pack(client.of(jnp.int32(0)).make_optimizer().init(params)),
    )


def check_lasting(client: Client, params: Tree, num_clients: int) -> None:
    """Raises `UserError` if the state of an optimiser cannot last from run to run.

    Such a state depends on the parameters, of which it would carry those of an old model, or on a client's numbers.

    Args:
        client: local training.
        params: shapes of the parameters.
        num_clients: N.
    """
    zeros, ones = optax.tree.zeros_like(params), optax.tree.ones_like(params)
    compared = [(0, zeros, ""), (0, ones, "the parameters, and would carry those of an old model")]
    for numbers in map(np.asarray, jax.tree.leaves(client)):
        if numbers.shape == (num_clients,):
            compared.append((int(np.argmax(numbers != numbers[0])), zeros, "numbers of each client"))
    states = [pack(client.of(jnp.int32(one)).make_optimizer().init(at)) for one, at, _ in compared]
    for other, (_, _, what) in zip(states, compared, strict=True):
        if not optax.tree.allclose(states[0], other, rtol=0, atol=0):
            raise UserError(
                f"Client: reset='never' keeps the state of {client.optimizer_name}, which holds {what}; expected "
                "moments and counts. Give reset='run'"
            )


def first_shared(client: Client, params: Tree) -> Tree:
    """Returns what the server's model has beside its parameters for `Client(correction=...)`."""
    return _first(client, params)[1]


def _first(client: Any, params: Tree) -> Any:
    """Returns the first row of a client's correction, and the first shared pytree."""
    return with_arrays(client.correction.init(shared_of(client, params)))


def shared_of(client: Client, tree: Tree) -> Tree:
    """Returns a tree of parameters with `None` for the personal ones."""
    if client.personal is None:
        return tree
    return jax.tree.map(lambda leaf, personal: None if personal else leaf, tree, _marks(client, tree))


def personal_of(client: Client, tree: Tree) -> Tree:
    """Returns a tree of parameters with `None` for those that are not personal."""
    return jax.tree.map(lambda leaf, personal: leaf if personal else None, tree, _marks(client, tree))


def _marks(client: Client, tree: Tree) -> Tree:
    """Returns True for each personal parameter.

    Raises:
        UserError: the predicate selects no parameter.
        TypeError: it returns no bool.
    """
    assert client.personal is not None
    names = [path_of(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    found = [client.personal(name) for name in names]
    for name, one in zip(names, found, strict=True):
        check_flag("Client", f"personal({name!r})", one)
    if not any(found):
        listed = ", ".join(names[:5]) + ", ..." * (len(names) > 5)
        raise UserError(
            f"Client: personal selects none of the parameters {listed}; expected some. "
            "It is a function of a path, such as lambda path: path.startswith('head/')"
        )
    return jax.tree.unflatten(jax.tree.structure(tree), map(bool, found))
