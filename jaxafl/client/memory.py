"""Rows of clients: what a client keeps from run to run."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

from jaxafl.client.correction import Correction
from jaxafl.client.options import Client
from jaxafl.client.personal import personal_of, sent_of, shared_of
from jaxafl.device.user_code import parts_of, with_arrays

Tree = Any


class Memory(NamedTuple):
    """Row of a client. It changes at the end of every run that the client completes, whether or not a step takes it."""

    upload: Tree = ()  # of `Client(upload=...)`
    correction: Tree = ()  # of `Client(correction=...)`
    personal: Tree = ()  # the personal parameters, `None` for the others


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


def first_memory(client: Client, params: Tree) -> Memory | None:
    """Returns the row of a client before its first run; `None` if clients keep nothing.

    Args:
        client: local training.
        params: x_0.
    """
    if not client.remembers:
        return None
    return Memory(
        upload=() if client.upload is None else with_arrays(client.upload.init(sent_of(client, params))),
        correction=() if client.correction is None else _first(client.correction, shared_of(client, params))[0],
        personal=() if client.personal is None else personal_of(client, params),
    )


def first_shared(client: Client, params: Tree) -> Tree:
    """Returns what the server's model has beside its parameters for `Client(correction=...)`; else `None`."""
    return None if client.correction is None else _first(client.correction, shared_of(client, params))[1]


def _first(correction: Correction, params: Tree) -> tuple[Tree, Tree]:
    """Returns the first row of a client, and the first shared pytree."""
    owner, names = f"the correction {correction.name}", ("first row of a client", "first shared pytree")
    row, shared = parts_of(owner, "init", names, correction.init(params))
    return with_arrays((row, shared))
