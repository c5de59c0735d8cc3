"""Where a run is: one pytree on the device."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32, Num, PyTree

from jaxafl.client import Lane, begin
from jaxafl.data.form import DataForm
from jaxafl.device import Rows, buffers
from jaxafl.device.key_leaves import pack
from jaxafl.device.keys import Key, Purpose, jax_key, purpose_key
from jaxafl.engine.problem import DeviceData, Numbers, Program
from jaxafl.models.model import Batch, Model


class Version(NamedTuple):
    """A global model; a ring slot holds one."""

    params: PyTree[Num[Array, "..."]]
    model_state: PyTree[Num[Array, "..."]]


class Stored(NamedTuple):
    """An update that is trained and not yet taken; a row of the update store."""

    delta: PyTree[Num[Array, "..."]]
    model_state: PyTree[Num[Array, "..."]]
    loss: Float[Array, "*R"]  # mean over the local steps of the mini-batch loss
    local_steps: Int32[Array, "*R"]  # local steps made


class Failure(NamedTuple):
    """Where the parameters stopped being finite; `step` -1 if they did not."""

    step: Int32[Array, "*P"]
    client: Int32[Array, "*P"]


class Beside(NamedTuple):
    """What a run with its clock beside the training keeps."""

    clock: Any  # the clock's state
    next_steps: Int32[Array, " N"]  # K of each client's next run: local steps, or epochs where `Client` counts epochs
    slot_version: Int32[Array, " S"]  # the version in each ring slot
    row_run: Int32[Array, " R"]  # the run whose update is in each store row
    lost: Int32[Array, ""]  # runs trained from, or measured against, a version that the ring no longer held: 0


class State(NamedTuple):
    """A run between two server steps; several runs with a leading member axis."""

    model: Version
    server: Any
    ring: Version  # each leaf [S, ...]
    store: Stored  # each leaf [R, ...]
    lanes: Lane  # each leaf [L, ...]
    clients: Any  # `Rows`: the clients' own models, where the server has them, else None
    average: Any  # the mean of x_1 .. x_t (x_0 at first), where it was asked for, else None
    failure: Failure
    batch_key: Key
    beside: Any = None  # a `Beside` where the clock runs beside the training
    records: Any = None  # in lockstep: those of the chunk under way


class Records(NamedTuple):
    """What server steps leave behind, each [..., steps, ...]."""

    info: dict[str, Array]
    event: Any = None  # the clock's `ServerStep`, where it ran beside the training
    runs_begun: Any = None  # int32, runs started so far, likewise


def initial(program: Program, numbers: Numbers, device: DeviceData, key: Key) -> State:
    """The state before the first server step: x_0 in slot 0 of the ring.

    Args:
        program: what is run.
        numbers: of the run.
        device: its data.
        key: made of its seed.
    """
    model = first_model(program.model, program.data, key)
    batch_key, none = purpose_key(key, Purpose.BATCH), jnp.int32(0)
    lane = begin(numbers.client, model.params, model.model_state, batch_key, none, none, none, jnp.float32(0))
    clients = None
    if numbers.server.needs.client_models:
        clients = Rows.filled(model.params, device.counts.shape[0])
    server = pack(numbers.server.init(model.params, device.counts.astype(lane.loss.dtype)))
    server, clients = jax.tree.map(
        lambda part: part.shared(program.shares) if isinstance(part, Rows) else part,
        (server, clients),
        is_leaf=lambda part: isinstance(part, Rows),
    )
    return State(
        model=model,
        server=server,
        ring=buffers.write(buffers.allocate(model, program.slots), none, model),
        store=buffers.allocate(Stored(model.params, model.model_state, lane.loss, lane.step), program.rows),
        lanes=buffers.allocate(lane, program.lanes),
        clients=clients,
        average=model.params if "average" in program.recording.diagnostics else None,
        failure=Failure(jnp.int32(-1), jnp.int32(-1)),
        batch_key=batch_key,
    )


def first_model(model: Model, data: DataForm, key: Key) -> Version:
    """x_0 of a run with the key of its seed."""
    return Version(*model.init(jax_key(purpose_key(key, Purpose.MODEL)), example_batch(data)))


def example_batch(data: DataForm) -> Batch:
    """One sample of zeros, for shapes."""
    x, y = data.example
    return Batch(jax.tree.map(jnp.asarray, x), jnp.asarray(y), jnp.ones(len(y), bool))
