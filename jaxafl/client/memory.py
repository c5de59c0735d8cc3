"""Rows of clients: what a client keeps from run to run."""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxafl.client.options import Client
from jaxafl.client.personal import personal_of, sent_of, shared_of

Tree = Any


class Memory(NamedTuple):
    """Row of a client. It changes at the end of every run that the client completes, whether or not a step takes it."""

    upload: Tree = ()  # of `Client(upload=...)`
    correction: Tree = ()  # of `Client(correction=...)`
    personal: Tree = ()  # the personal parameters, `None` for the others


def first_memory(client: Client, params: Tree) -> Memory | None:
    """Returns the row of a client before its first run; `None` if clients keep nothing.

    Args:
        client: local training.
        params: x_0.
    """
    if not client.remembers:
        return None
    return Memory(
        upload=() if client.upload is None else client.upload.init(sent_of(client, params)),
        correction=() if client.correction is None else client.correction.init(shared_of(client, params))[0],
        personal=() if client.personal is None else personal_of(client, params),
    )


def first_shared(client: Client, params: Tree) -> Tree:
    """Returns what the server's model has beside its parameters for `Client(correction=...)`; else `None`."""
    return None if client.correction is None else client.correction.init(shared_of(client, params))[1]
