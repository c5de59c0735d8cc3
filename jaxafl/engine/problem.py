"""Inputs of the engine: one immutable `Problem` per run, built by `Simulation`, and static arguments of programs."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from jaxafl.client import Client
from jaxafl.clock.contract import Clock
from jaxafl.data.federated import FederatedData
from jaxafl.data.form import DataForm
from jaxafl.device import on_device
from jaxafl.device.keys import Key, seed_key
from jaxafl.models.metrics import Metric
from jaxafl.models.model import Model
from jaxafl.options import UserError
from jaxafl.server.contract import Server, Tree

Array = jax.Array
Observe = Callable[[Tree], dict[str, Array]]


class Hyperparameters(NamedTuple):
    """Client and server, whose numeric options are arguments of the compiled program."""

    client: Client
    server: Server


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MemberHyperparameters:
    """Hyperparameters of several members as one pytree.

    Attributes:
        values: hyperparameters; a leaf that differs between members has a leading member axis.
        batched: True for each leaf with a member axis.
    """

    values: Hyperparameters
    batched: tuple[bool, ...] = dataclasses.field(metadata={"static": True})

    @classmethod
    def stacked(cls, members: Sequence[Hyperparameters]) -> MemberHyperparameters:
        """Stacks the leaves that differ between members."""
        columns = list(zip(*(map(np.asarray, jax.tree.leaves(one)) for one in members), strict=True))
        batched = tuple(any(not np.array_equal(leaf, column[0]) for leaf in column) for column in columns)
        leaves = [_stack(column) if many else column[0] for column, many in zip(columns, batched, strict=True)]
        return cls(jax.tree.unflatten(jax.tree.structure(members[0]), on_device(leaves)), batched)

    @property
    def axes(self) -> Hyperparameters:
        """The `in_axes` of the values: 0, or None for leaves without a member axis."""
        return jax.tree.unflatten(jax.tree.structure(self.values), [0 if many else None for many in self.batched])


class DeviceData(NamedTuple):
    """Read-only arrays of a run on the device."""

    arrays: Any  # training samples, as `FederatedData.fetch` reads them
    counts: Array  # int32 [N]
    frozen: Any  # what the model neither trains nor federates: one copy for all clients
    test: tuple[Any, Array]  # raw inputs, labels
    validation: Any  # (client, position) [V] of the validation set, or None
    tests: Any = ()  # raw inputs and labels of each further test set
    owned: Any = None  # prefix of a set (see `sets_of`) -> `OwnedRows` in it, if local models are evaluated


class Speed(NamedTuple):
    """Execution options: they change speed and memory, never results (up to float rounding).

    Attributes:
        lanes: runs trained at once; `None` chooses: 1 on a CPU, 4 on each of several that gather updates, elsewhere as
            many as take the least time, see `width`.
        chunk: lanes per `vmap`; `None`: 1 on a CPU (where a loop is faster), elsewhere as many as half of the memory
            holds.
        deterministic: only operations that give the same bits every time; a CPU has no others.
        devices: devices that share the members of a sweep, or one run; none: where JAX places things.
    """

    lanes: int | None = None
    chunk: int | None = None
    deterministic: bool = False
    devices: tuple[Any, ...] = ()


class Layout(NamedTuple):
    """Devices of a program, and the arrays that are sharded over them.

    Attributes:
        mesh: the devices, if there are several.
        shares: D, if they share one run: its lanes and per-client tables are sharded. 1 if they share the members.
        divided: True if the training samples are sharded by client.
        local_updates: with updates sharded over devices, the largest number of one server step's updates that one
            device holds; 0 if updates are replicated.
    """

    mesh: Mesh | None = None
    shares: int = 1
    divided: bool = False
    local_updates: int = 0


class Recording(NamedTuple):
    """Records beyond those of every run.

    Attributes:
        observe: traced function of the parameters, returning a dict of arrays.
        diagnostics: names from `diagnostics.DIAGNOSTICS`.
        metrics: metrics of whole sets by name.
    """

    observe: Observe | None = None
    diagnostics: tuple[str, ...] = ()
    metrics: tuple[tuple[str, Metric], ...] = ()

    @property
    def needs_base(self) -> bool:
        """True if the start models of arrivals are recorded, or local models computed from them."""
        return bool({"drift", "local_accuracy"} & {*self.diagnostics})

    @property
    def asked(self) -> dict[str, Any]:
        """The records by name, for fingerprints."""
        asked = {"observe": self.observe, "diagnostics": self.diagnostics}
        return asked | ({"metrics": dict(self.metrics)} if self.metrics else {})


class Loops(NamedTuple):
    """Static sizes of a program's loops.

    An accelerator's host waits for every iteration of a loop with a dynamic trip count, so constant trip counts are
    static there (None: it varies). On a CPU they stay dynamic: a static one would recompile for every
    other number.

    Attributes:
        steps_per_call: the most server steps of a call, and rows of the returned records.
        rows_per_check: rows between two evaluations of the loop predicate; every call advances by a multiple of it.
        lanes_per_vmap: lanes that advance in one `vmap`; a divisor of the number of lanes.
        local_steps: trip count: local steps of all active lanes of every segment.
        segments: trip count: segments of every row.
        steps: trip count: server steps of every row.
        widths: numbers of arrivals < A for which a server step is compiled, too, because most steps have fewer.
    """

    steps_per_call: int = 1
    rows_per_check: int = 1
    lanes_per_vmap: int = 1
    local_steps: int | None = None
    segments: int | None = None
    steps: int | None = None
    widths: tuple[int, ...] = ()


class BufferSizes(NamedTuple):
    """Sizes of the buffers of one member (on each device, if devices share a run)."""

    lanes: int
    ring: int  # versions
    store: int  # updates


@dataclasses.dataclass(frozen=True)
class Program:
    """Static arguments of a compiled program; everything else is read off its arguments.

    Attributes:
        reference: weak reference to the trained model; no program keeps a model alive.
        data: how mini-batches are gathered and preprocessed.
        recording: diagnostics and the user's `observe`.
        layout: devices and sharding.
        loops: static sizes of its loops.
    """

    reference: weakref.ref[Model]
    data: DataForm
    recording: Recording
    layout: Layout
    loops: Loops

    @property
    def model(self) -> Model:
        """The trained model."""
        model = self.reference()
        assert model is not None, "a program is traced while a problem holds its model"
        return model

    @property
    def unsharded(self) -> Program:
        """The program of the same run on one device."""
        return dataclasses.replace(self, layout=Layout())

    @property
    def without_loops(self) -> Program:
        """The program as its initialisation and evaluation depend on it."""
        return dataclasses.replace(self, loops=Loops())

    def looping(self, **loops: Any) -> Program:
        """Returns the program with other sizes of loops."""
        return dataclasses.replace(self, loops=self.loops._replace(**loops))


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """One simulation with one seed.

    Attributes:
        model, data, client, server, clock: its parts, as the user gave them.
        hyperparameters: client and server as they run, on the device.
        device: data on the device.
        seed: of the initial model, the schedule and the mini-batches.
        recording: diagnostics and the user's `observe`.
        layout: devices and sharding.
    """

    model: Model
    data: FederatedData
    client: Client
    server: Server
    clock: Clock
    hyperparameters: Hyperparameters
    device: DeviceData
    seed: int
    recording: Recording
    layout: Layout

    @property
    def key(self) -> Key:
        """The key derived from the seed."""
        return seed_key(self.seed)

    def program(self, loops: Loops, local_updates: int = 0) -> Program:
        """Returns the program of the problem; `local_updates`: see `Layout`."""
        data = self.data.divided(self.layout.shares) if self.layout.divided else self.data
        layout = self.layout._replace(local_updates=local_updates)
        traced = self.recording._replace(metrics=())
        return Program(weakref.ref(self.model), data.form, traced, layout, loops)


def _stack(column: Sequence[np.ndarray]) -> np.ndarray:
    """Stacks numbers of several members; int32 and uint32 become the 32-bit type that holds all."""
    stacked = np.stack(column)
    if stacked.dtype != np.int64 or any(one.dtype == np.int64 for one in column):
        return stacked
    if stacked.min() < 0:
        raise UserError(
            f"a sweep over integers from {stacked.min()} to {stacked.max()}, which no type of 32 bits holds: write "
            "numbers as floats (1e10), or sweep over them in two sweeps"
        )
    return stacked.astype(np.uint32)
