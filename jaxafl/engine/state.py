"""State of a run, one pytree on the device, and its initial value."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int32, Num, PyTree

from jaxafl.client import Client, Lane, Memory, begin, first_memory, first_shared, sent_update, shared_of
from jaxafl.data.form import DataForm
from jaxafl.device import Rows, buffers
from jaxafl.device.keys import Key, Purpose, jax_key, pack, purpose_key
from jaxafl.engine.problem import DeviceData, Hyperparameters, Program
from jaxafl.models.model import Batch, Model
from jaxafl.options.user_code import traced_method, with_arrays
from jaxafl.server.contract import Server, Tree


class Version(NamedTuple):
    """A global model; a ring slot holds one."""

    params: PyTree[Num[Array, "..."]]
    model_state: PyTree[Num[Array, "..."]]
    shared: Any = None  # of `Client(correction=...)`, if there is one


class Stored(NamedTuple):
    """A trained update; a row of the update store."""

    delta: PyTree[Num[Array, "..."]]
    model_state: PyTree[Num[Array, "..."]]
    loss: Float[Array, "*R"]  # mean over the local steps of the mini-batch loss
    local_steps: Int32[Array, "*R"]  # executed local steps
    message: Any = None  # of `Client(correction=...)`, if it sends one
    computed: Float[Array, "*R"] | None = None  # ‖Δ‖ before upload and attack, if there are any


class Failure(NamedTuple):
    """First server step with non-finite parameters, -1 if there is none, and the client of its update."""

    step: Int32[Array, "*P"]
    client: Int32[Array, "*P"]


class State(NamedTuple):
    """State of a run between two server steps; of several runs with a leading member axis."""

    model: Version
    server: Any
    ring: Version  # each leaf [S, ...]
    store: Stored  # each leaf [R, ...]
    lanes: Lane  # each leaf [L, ...]
    clients: Any  # `Rows`: the clients' own models, if the server keeps them, else None
    average: Any  # mean of x_1 .. x_t (x_0 at first), if requested, else None
    failure: Failure
    batch_key: Key
    memory: Any = None  # `Rows` of `client.Memory`, if clients keep something from run to run, else None
    delivered: Any = None  # updates that the attackers know, with `knowledge="delivered"`, else None


class Records(NamedTuple):
    """Records of server steps, each [..., steps, ...]."""

    info: dict[str, Array]
    replies: Any = None  # int32 [..., A], local steps of each client's next run, if the server replies


def initial(program: Program, hyperparameters: Hyperparameters, device: DeviceData, key: Key) -> State:
    """Returns the state before the first server step: x_0 in slot 0 of the ring.

    Args:
        program: static, with the sizes of the buffers.
        hyperparameters: of the run.
        device: its data.
        key: derived from its seed.
    """
    client, shapes = hyperparameters.client, program.shapes
    model, num_clients = first_model(program.model, program.data, key), device.counts.shape[0]
    if client.correction is not None:
        model = model._replace(shared=first_shared(client, model.params))
    batch_key, none = purpose_key(key, Purpose.BATCH), jnp.int32(0)
    row = first_memory(client, model.params) if client.remembers else None
    lane = begin(client, model.params, model.model_state, batch_key, none, none, memory=row, shared=model.shared)
    update, _ = jax.eval_shape(functools.partial(stored_of, client), lane, model.params, none)
    first_server, samples = hyperparameters.server.at_step(0), device.counts.astype(lane.loss.dtype)
    own_models = hyperparameters.server.needs.client_models
    return State(
        model=model,
        server=pack(first_state(first_server, model.params, samples)),
        ring=buffers.write(buffers.allocate(model, shapes.ring), none, model),
        store=buffers.allocate(update, shapes.store),
        lanes=buffers.allocate(lane, shapes.lanes),
        clients=Rows.filled(model.params, num_clients) if own_models else None,
        average=model.params if "average" in program.recording.diagnostics else None,
        failure=Failure(jnp.int32(-1), jnp.int32(-1)),
        batch_key=batch_key,
        memory=None if row is None else Rows.filled(row, num_clients),
        delivered=None if client.attack is None else client.attack.first_known(model.params, num_clients),
    )


def stored_of(client: Client, lane: Lane, reference: Tree, samples: Array) -> tuple[Stored, Memory | None]:
    """Returns the update of a finished run, and the new row of its client's memory if there is one.

    Args:
        client: local training.
        lane: state of the run.
        reference: the parameters that the update is measured against.
        samples: int32, n_i.
    """
    delta, computed = optax.tree.sub(lane.params, reference), None
    if client.upload is not None or client.attack is not None:
        computed = optax.tree.norm(shared_of(client, delta))  # of the parameters that are sent
    delta, message, memory = sent_update(client, delta, lane, samples)
    loss = jnp.where(lane.step > 0, lane.loss / jnp.maximum(lane.step, 1), jnp.nan)
    return Stored(delta, lane.model_state, loss, lane.step, message, computed), memory


def first_state(server: Server, params: Tree, samples: Array) -> Any:
    """Returns the state of a server before its first step, with arrays in the place of Python's numbers."""
    with traced_method(f"the server {server.name}", "init", "`Arrivals.key` in `update`"):
        return with_arrays(server.init(params, samples))


def first_model(model: Model, data: DataForm, key: Key) -> Version:
    """Returns x_0 of a run with the key of its seed."""
    return Version(*model.init(jax_key(purpose_key(key, Purpose.MODEL)), example_batch(data)))


def shapes_of_model(model: Model, data: DataForm) -> tuple[Any, Any]:
    """Returns the shapes of a model's parameters and of its non-trainable state."""
    return jax.eval_shape(lambda: model.init(jax.random.key(0), example_batch(data)))


def example_batch(data: DataForm) -> Batch:
    """Returns one sample of zeros, for shapes."""
    x, y = data.example
    return Batch(jax.tree.map(jnp.asarray, x), jnp.asarray(y), jnp.ones(len(y), bool))
