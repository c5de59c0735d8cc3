"""Updates as they are sent, after `Client(upload=...)`, and their bytes."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxafl.client.frozen import trained_of
from jaxafl.client.memory import Memory
from jaxafl.client.options import Client
from jaxafl.client.training import Lane
from jaxafl.client.upload import Sent, received_size
from jaxafl.device.keys import jax_key, threefry
from jaxafl.options import UserError

Array = jax.Array
Tree = Any
_STREAM = 0xFFFFFFFA


class Traffic(NamedTuple):
    """Bytes of one transfer."""

    up: int  # of an update
    down: int  # of a model


def sent_update(client: Client, delta: Tree, lane: Lane, samples: Array) -> tuple[Tree, Memory | None]:
    """Returns the update of a finished run as the server receives it, and the client's row after the run.

    Args:
        client: local training.
        delta: Δ.
        lane: state of the run.
        samples: int32, n_i.
    """
    memory = lane.memory
    if client.upload is None:
        return delta, memory
    upload: Any = client.of(lane.client).upload
    key = jax_key(threefry(lane.key, 0, _STREAM))
    trained, sent = trained_of(client, delta), Sent(lane.client, lane.run, samples, lane.step, key)
    if memory is not None:
        received, row = upload.update(trained, memory.upload, sent)
        memory = memory._replace(upload=row)
    else:
        received = upload.apply(trained, sent)
    whole = jax.tree.map(
        lambda new, old: old if new is None else new, received, delta, is_leaf=lambda leaf: leaf is None
    )
    return whole, memory


def check_upload(client: Client, lane: Lane) -> None:
    """Raises unless the upload returns updates and rows of the same shapes and types; `lane`: shapes of a run."""
    if client.upload is None:
        return
    leaves = jax.tree.leaves(trained_of(client, lane.params))
    client.upload.check(tuple(leaf.size for leaf in leaves))
    received_size(client.upload, leaves)
    try:
        received = jax.eval_shape(lambda lane: sent_update(client, lane.params, lane, jnp.int32(1)), lane)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"Client: upload={client.upload!r} cannot be traced on the parameters: {error}") from error
    pairs = {"those of the parameters": (received[0], lane.params), "the row of `init`": (received[1], lane.memory)}
    for kept, (new, old) in pairs.items():
        if _form(new) != _form(old):
            raise UserError(f"Client: upload={client.upload!r} returns other shapes or types than {kept}")


def traffic(client: Client, params: Tree, model_state: Tree) -> Traffic:
    """Returns the bytes of an update and of a model, without frozen parameters.

    An update is as large as `Client(upload=...)` leaves it, and has the non-trainable state with it.
    """
    leaves = jax.tree.leaves(trained_of(client, params))
    state = received_size(None, jax.tree.leaves(model_state))
    return Traffic(received_size(client.upload, leaves) + state, received_size(None, leaves) + state)


def _form(tree: Tree) -> Any:
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)
