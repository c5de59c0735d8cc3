"""What is run: one immutable record per run, made once by `Simulation` and passed down."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxafl.client import Client
from jaxafl.clock.contract import Clock
from jaxafl.data.federated import FederatedData
from jaxafl.data.form import DataForm
from jaxafl.device import on_device, slices_are_faster
from jaxafl.device.keys import Key, seed_key
from jaxafl.models.model import Model
from jaxafl.options import UserError
from jaxafl.server.contract import Server, Tree

Array = jax.Array
Observe = Callable[[Tree], dict[str, Array]]
_FULL_BATCH_PIECE = 256  # samples per gradient evaluation of a full batch, unless the client says otherwise


class Numbers(NamedTuple):
    """The numbers of a run, arguments of its program."""

    client: Client
    server: Server


class DeviceData(NamedTuple):
    """What a run only reads, on the device."""

    arrays: Any  # training samples, as `FederatedData.fetch` reads them
    counts: Array  # int32 [N]
    frozen: Any  # what the model neither trains nor federates: one copy for all clients
    test: tuple[Any, Array]  # raw inputs, labels
    validation: Any  # (client, position) [V] of the validation set, or None


class Speed(NamedTuple):
    """Options that change how fast a run is and what memory it takes, never its results (up to float rounding).

    Attributes:
        lanes: runs trained at once; `None` chooses: 1 on a CPU, 4 on each of several that gather updates, elsewhere as
            many as take the least time, see `width`.
        chunk: lanes that advance together under `vmap`; `None`: 1 on a CPU (where a loop is faster), elsewhere as many
            as half of the memory holds.
        deterministic: only operations that give the same bits every time; a CPU has no others.
        devices: that share the members of a sweep, or one run; none: where JAX places things.
    """

    lanes: int | None = None
    chunk: int | None = None
    deterministic: bool = False
    devices: tuple[Any, ...] = ()


class Layout(NamedTuple):
    """Where a run is.

    Attributes:
        mesh: the devices, where there are several.
        shares: D, where they share one run: its lanes, and what is kept per client; 1 where they share the members.
        divided: whether each has the training samples of its share of the clients only.
    """

    mesh: Mesh | None = None
    shares: int = 1
    divided: bool = False


class Recording(NamedTuple):
    """What a run records besides what every run returns.

    Attributes:
        observe: traced function of the parameters, returning a dict of arrays.
        diagnostics: names from `diagnostics.DIAGNOSTICS`.
    """

    observe: Observe | None = None
    diagnostics: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Program:
    """What a compiled program depends on, besides the shapes of its arguments.

    Attributes:
        reference: to what is trained, which no program keeps alive.
        data: how mini-batches are gathered and preprocessed (the samples are arguments).
        recording: what is recorded besides.
        members: P, runs that advance together (on each device, where they share the members).
        varies: which leaves of the numbers differ between them and have a leading member axis.
        length: the most server steps of a call, and rows of the records that come back.
        lanes: L, the most runs of one member that are trained at once (on each device, where they share a run).
        chunk: lanes that advance together under `vmap`; a divisor of `lanes`.
        slots: ring slots.
        rows: rows of the update store, of each device's with `apart`.
        in_order: whether these are the arrivals of every server step, with `apart` those of the device.
        capacity: A, arrivals per server step.
        micro_batch: samples per gradient evaluation.
        uniform: all active lanes of a segment make the same number of local steps, so none has to be masked.
        local_steps: what all active lanes of all segments make, if that is known when the program is compiled.
        segments: how many precede each server step, likewise.
        steps: how many are taken after each row of a lockstep, likewise.
        block: server steps (in lockstep: rows) from one look at whether a run has failed, or a call is over, to the
            next; every call takes a multiple of it.
        full: every server step takes A arrivals, so none has to be masked.
        sliced: several rows of a buffer are read and written by a loop of slices (on a CPU), not by a gather or a
            scatter.
        wide: the training itself uses 64-bit types.
        deterministic: only operations that give the same bits every time.
        mesh, shares, divided: see `Layout`.
        apart: where each of the devices that share a run keeps the updates of its own lanes, and the server adds up
            what they hold: how many of those of a server step one of them has at the most; else 0.
    """

    reference: weakref.ref[Model]
    data: DataForm
    recording: Recording
    members: int
    varies: tuple[bool, ...]
    length: int
    lanes: int
    chunk: int
    slots: int
    rows: int
    in_order: bool
    capacity: int
    micro_batch: int
    uniform: bool
    full: bool
    sliced: bool
    wide: bool
    local_steps: int | None = None
    segments: int | None = None
    steps: int | None = None
    block: int = 1
    deterministic: bool = False
    mesh: Mesh | None = None
    shares: int = 1
    divided: bool = False
    apart: int = 0

    @property
    def model(self) -> Model:
        """The model that is trained."""
        model = self.reference()
        assert model is not None, "a program is traced while a problem holds its model"
        return model


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """One simulation with one seed.

    Attributes:
        model, data, client, server, clock: its parts, as the user gave them.
        numbers: client and server as they run, on the device.
        device: data on the device.
        seed: of the initial model, the schedule and the mini-batches.
        recording: what is recorded besides.
        layout: where it runs.
    """

    model: Model
    data: FederatedData
    client: Client
    server: Server
    clock: Clock
    numbers: Numbers
    device: DeviceData
    seed: int
    recording: Recording
    layout: Layout

    @property
    def key(self) -> Key:
        """Made of the seed."""
        return seed_key(self.seed)

    def program(self, **shapes: Any) -> Program:
        """The program that runs it; `shapes`: what the other members and the schedule decide of it."""
        client = self.client
        piece = piece_of(client, self.data)
        capacity = self.clock.capacity(self.data.num_clients)
        wide = jnp.result_type(float) == jnp.float64
        shapes = (
            dict[str, Any](members=1, varies=(), length=1, in_order=False, sliced=slices_are_faster(), wide=wide)
            | shapes
        )
        data = self.data.divided(self.layout.shares) if self.layout.divided else self.data
        shapes |= self.layout._asdict()
        return Program(
            weakref.ref(self.model), data.form, self.recording, capacity=capacity, micro_batch=piece, **shapes
        )


def piece_of(client: Client, data: FederatedData) -> int:
    """Samples per gradient evaluation."""
    return client.micro_batch or client.batch_size or min(int(data.counts.max()), _FULL_BATCH_PIECE)


def stacked(numbers: Sequence[Numbers]) -> tuple[Numbers, tuple[bool, ...]]:
    """The numbers of several members as one: leaves that differ get a leading member axis; and which leaves those
    are."""
    columns = list(zip(*(map(np.asarray, jax.tree.leaves(one)) for one in numbers), strict=True))
    varies = tuple(any(not np.array_equal(leaf, column[0]) for leaf in column) for column in columns)
    leaves = [on_device(_stack(column) if own else column[0]) for column, own in zip(columns, varies, strict=True)]
    return jax.tree.unflatten(jax.tree.structure(numbers[0]), leaves), varies


def _stack(column: Sequence[np.ndarray]) -> np.ndarray:
    """Numbers of several members; int32 beside uint32 as the one that holds all, where there are no longer ones."""
    whole = np.stack(column)
    if whole.dtype != np.int64 or any(one.dtype == np.int64 for one in column):
        return whole
    if whole.min() < 0:
        raise UserError(
            f"a sweep over integers from {whole.min()} to {whole.max()}, which no type of 32 bits holds: write numbers "
            "as floats (1e10), or sweep over them in two sweeps"
        )
    return whole.astype(np.uint32)
