"""Updates and messages as they are sent, after `Client(upload=...)` and an attack, and their bytes."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxafl.client.correction.contract import Array, Correction, LocalRun, Tree
from jaxafl.client.memory import Memory, personal_of, shared_of
from jaxafl.client.options import Client
from jaxafl.client.training import Lane, local_run
from jaxafl.client.upload.contract import Sent, received_size
from jaxafl.device.keys import jax_key, threefry
from jaxafl.models.frozen import filled
from jaxafl.options.user_code import like_given, traced_method

_STREAM = 0xFFFFFFFA


class Traffic(NamedTuple):
    """Bytes of one transfer."""

    up: int  # of an update
    down: int  # of a model


def sent_update(client: Client, delta: Tree, lane: Lane, samples: Array) -> tuple[Tree, Tree, Memory | None]:
    """Returns the update of a finished run as the server receives it, the message of the correction, and the row.

    Args:
        client: local training.
        delta: Δ.
        lane: state of the run.
        samples: int32, n_i.
    """
    memory, message, of_client = lane.memory, None, client.of(lane.client)
    if client.correction is not None:
        moved = shared_of(client, optax.tree.sub(lane.params, lane.anchor))
        part: Any = of_client.correction
        owner = f"the correction {part.name}"
        with traced_method(owner, "finish", "`Client(upload=...)`, which has a key"):
            row, message = part.finish(moved, memory.correction, lane.shared, local_run(client, lane))
        memory = memory._replace(correction=row)
    if client.reset == "never":
        memory = memory._replace(optimizer=lane.optimizer_state)
    if client.personal is not None:
        memory = memory._replace(personal=personal_of(client, lane.params))
        delta = filled(shared_of(client, delta), optax.tree.zeros_like(delta))
    if client.upload is None and client.attack is None:
        return delta, message, memory
    upload = of_client.upload
    key = jax_key(threefry(lane.key, 0, _STREAM))
    trained, sent = shared_of(client, delta), Sent(lane.client, lane.run, samples, lane.step, key)
    received = trained
    if upload is not None:
        owner, method = f"the upload {upload.name}", "update" if upload.remembers else "apply"
        with traced_method(owner, method, "`sent.key`"):
            row = upload.init(trained) if memory is None else memory.upload
            received, row = upload.update(trained, row, sent)
        memory = None if memory is None else memory._replace(upload=row)
        received = like_given(owner, method, received, trained)  # `filled` would send Δ for `None`
    if of_client.attack is not None:
        received = of_client.attack.sent(received, sent)
    return filled(received, delta), message, memory


def traffic(client: Client, params: Tree, model_state: Tree) -> Traffic:
    """Returns the bytes of an update and of a model, without frozen and personal parameters.

    An update is as large as `Client(upload=...)` leaves it, and has the non-trainable state with it. A correction's
    message and shared pytree are sent, too.
    """
    trained = params if client.personal is None else shared_of(client, params)
    plain, state = received_size(None, trained), received_size(None, model_state)
    message, shared = (0, 0) if client.correction is None else traffic_of_correction(client.correction, trained)
    return Traffic(received_size(client.upload, trained) + state + message, plain + state + shared)


def traffic_of_correction(correction: Correction, params: Tree) -> Traffic:
    """Returns the bytes that a correction sends with an update and with a model; `params`: those that are sent."""

    def sent(params: Tree) -> tuple[Tree, Tree]:
        row, shared = correction.init(params)
        run = LocalRun(params, jnp.int32(0), jnp.int32(0), jnp.int32(1), jnp.float32(1))
        return correction.finish(params, row, shared, run)[1], shared if correction.downloads else None

    return Traffic(*(received_size(None, tree) for tree in jax.eval_shape(sent, params)))
