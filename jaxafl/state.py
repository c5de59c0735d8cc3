"""What a run is on the device: the program it depends on, its numbers, its data, its state."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxafl import history
from jaxafl.client import LocalTraining
from jaxafl.data.federated import FederatedData
from jaxafl.keys import Key, Purpose, jax_key, purpose_key
from jaxafl.local import Lane, begin
from jaxafl.models.model import Batch, Model
from jaxafl.pytrees import pytree
from jaxafl.server.contract import Server

Array = jax.Array
Tree = Any


@dataclasses.dataclass(frozen=True)
class Program:
    """What the compiled program depends on, besides the shapes of its arguments.

    Attributes:
        model: what is trained.
        data: where mini-batches come from (its arrays are arguments).
        lanes: L, the most runs trained at once.
        chunk: lanes that advance together under `vmap`; a divisor of `lanes`.
        slots: ring slots.
        rows: rows of the update store.
        capacity: A, arrivals per server step.
        micro_batch: samples per gradient evaluation.
        uniform: all active lanes of a segment make the same number of local steps, so none has to be masked.
        full: every server step takes A arrivals, so none has to be masked.
        sliced: several rows of a buffer are read and written by a loop of slices (on a CPU), not by a gather or a
            scatter.
        stop: leave the loop when the parameters are no longer finite (not under `vmap`).
        observe: the user's diagnostics of the parameters at every server step.
        diagnostics: names from `diagnostics.DIAGNOSTICS`.
    """

    model: Model
    data: FederatedData
    lanes: int
    chunk: int
    slots: int
    rows: int
    capacity: int
    micro_batch: int
    uniform: bool
    full: bool
    sliced: bool
    stop: bool
    observe: Callable[[Tree], dict[str, Array]] | None = None
    diagnostics: tuple[str, ...] = ()


@pytree
class Config:
    """The numbers of a run."""

    client: LocalTraining
    server: Server


class Version(NamedTuple):
    """A global model; a ring slot holds one."""

    params: Tree
    model_state: Tree


class Stored(NamedTuple):
    """An update that is trained and not yet consumed; a row of the update store."""

    delta: Tree
    model_state: Tree
    loss: Array  # mean over the local steps of the mini-batch loss
    local_steps: Array  # int32: local steps made


class Failure(NamedTuple):
    """Where the parameters stopped being finite; `step` -1 if they did not."""

    step: Array
    client: Array


class State(NamedTuple):
    """A run between two server steps."""

    model: Version
    server: Any
    ring: Version
    store: Stored
    lanes: Lane
    clients: Tree  # [N, ...]: the clients' own models, where the server has them, else None
    average: Tree  # the mean of x_1 .. x_t, where it was asked for, else None
    failure: Failure
    batch_key: Key


class Dataset(NamedTuple):
    """What a run only reads, on the device."""

    arrays: Any
    counts: Array  # int32 [N]
    frozen: Any  # what the model neither trains nor federates: one copy for all clients


def initial(program: Program, config: Config, dataset: Dataset, key: Key) -> State:
    """The state before the first server step: x_0 in slot 0 of the ring."""
    model = initial_model(program, key)
    batch_key = purpose_key(key, Purpose.BATCH)
    none = jnp.int32(0)
    run = begin(config.client, model.params, model.model_state, batch_key, none, none, none, jnp.float32(0))
    update = Stored(model.params, model.model_state, run.loss, run.step)
    clients = None
    if config.server.needs.client_models:
        count = dataset.counts.shape[0]
        clients = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), model.params)
    return State(
        model=model,
        server=config.server.init(model.params, dataset.counts.astype(run.loss.dtype)),
        ring=history.write(history.allocate(model, program.slots), jnp.int32(0), model),
        store=history.allocate(update, program.rows),
        lanes=history.allocate(run, program.lanes),
        clients=clients,
        average=jax.tree.map(jnp.zeros_like, model.params) if "average" in program.diagnostics else None,
        failure=Failure(jnp.int32(-1), jnp.int32(-1)),
        batch_key=batch_key,
    )


def initial_model(program: Program, key: Key) -> Version:
    """x_0."""
    return Version(*program.model.init(jax_key(purpose_key(key, Purpose.MODEL)), example_batch(program.data)))


def example_batch(data: FederatedData) -> Batch:
    """One sample, for shapes."""
    x, y = data.example
    return Batch(jax.tree.map(jnp.asarray, x), jnp.asarray(y), jnp.ones(len(y), bool))
