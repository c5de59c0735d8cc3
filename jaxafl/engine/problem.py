"""Inputs of the engine: one immutable `Problem` per run, built by `Simulation`, and static arguments of programs."""

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
from jaxafl.device import as_arrays
from jaxafl.device.keys import Key, seed_key
from jaxafl.models.metrics import Metric
from jaxafl.models.model import Model
from jaxafl.server.contract import Server, Tree

Array = jax.Array
Observe = Callable[[Tree], dict[str, Array]]
BATCH = 500  # samples whose losses are summed at once in an evaluation, unless the memory of an accelerator decides

AT_ONCE = 0.4  # share of all results of a forward pass that are in memory at once


class Hyperparameters(NamedTuple):
    """Client and server, whose numeric options are arguments of the compiled program.

    At its boundary they have a leading member axis.
    """

    client: Client
    server: Server


def stacked(members: Sequence[Hyperparameters]) -> Hyperparameters:
    """Returns the hyperparameters of several members, each leaf with a leading member axis."""
    values = jax.tree.map(lambda *leaves: np.stack(leaves), *members)
    return as_arrays(values, jnp.result_type(float))  # together they may need other integers


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
        lanes: local runs trained at once; `None`: 1 on one CPU device, at most 4 on each of several, on an
            accelerator as many as take the least time (`plan_of`; `Replying` for servers that reply).
        chunk: lanes per `vmap`; `None`: 1 on a CPU (where a loop is faster), elsewhere as many as half of the memory
            holds. Runs over several devices and in lockstep ignore it: all their lanes advance at once.
        deterministic: only operations that give the same bits every time; a CPU has no others.
        devices: devices that share the lanes of a run, or the batches of a sweep; none: where JAX places things.
    """

    lanes: int | None = None
    chunk: int | None = None
    deterministic: bool = False
    devices: tuple[Any, ...] = ()


class Recording(NamedTuple):
    """Records beyond those of every run.

    Attributes:
        observe: traced function of the parameters, returning a dict of arrays.
        diagnostics: names from `step.DIAGNOSTICS`.
        metrics: metrics of whole sets by name.
    """

    observe: Observe | None = None
    diagnostics: tuple[str, ...] = ()
    metrics: tuple[tuple[str, Metric], ...] = ()

    @property
    def asked(self) -> dict[str, Any]:
        """The records by name, for fingerprints."""
        asked = {"observe": self.observe, "diagnostics": self.diagnostics}
        return asked | ({"metrics": dict(self.metrics)} if self.metrics else {})


class Shapes(NamedTuple):
    """Static shapes of a program: sizes of its buffers and tables, the columns of a plan that it reads, trip counts.

    An accelerator's host waits for every iteration of a loop with a dynamic trip count, so constant trip counts are
    static there (`None`: it varies). On a CPU they stay dynamic: a static one would compile for every other number.

    Attributes:
        lanes: L, runs trained at once.
        ring: versions in the ring.
        store: updates in the store.
        chunk: lanes per `vmap`, a divisor of L.
        arrivals: A, places for arrivals of a server step.
        rows: rows of the plan's tables of server steps.
        segments: rows of its tables of segments.
        steps_per_call: the most server steps of a call, and rows of the returned records.
        rows_per_check: rows between two evaluations of the loop predicate, of which a call makes a multiple; 1 from
            the first call on that does not.
        mask: True if some server step has fewer than A arrivals.
        picks_rows: True if the row of an update in the store may differ from its place among the arrivals.
        base: True if x_s is read.
        per_lane: True if lanes make different numbers of local steps in a segment, or are not one `vmap`.
        steady: True if a run begins and ends in every lane of every segment.
        local_steps: trip count: local steps of all active lanes of every segment.
        segments_per_row: trip count: segments of every row.
        steps_per_row: trip count: server steps of every row.
    """

    lanes: int = 1
    ring: int = 1
    store: int = 1
    chunk: int = 1
    arrivals: int = 1
    rows: int = 1
    segments: int = 1
    steps_per_call: int = 1
    rows_per_check: int = 1
    mask: bool = False
    picks_rows: bool = False
    base: bool = False
    per_lane: bool = False
    steady: bool = False
    local_steps: int | None = None
    segments_per_row: int | None = None
    steps_per_row: int | None = None

    def joined(self, other: Shapes) -> Shapes:
        """Returns the shapes of a program that executes plans of both shapes."""
        mine, its = self._asdict(), other._asdict()
        found = {name: max(mine[name], its[name]) for name in _LARGER}
        found |= {name: mine[name] if mine[name] == its[name] else None for name in _TRIP_COUNTS}
        return self._replace(**found, steady=self.steady and other.steady)


_LARGER = ("ring", "store", "arrivals", "rows", "segments", "mask", "picks_rows", "base", "per_lane")  # or True for one
_TRIP_COUNTS = ("local_steps", "segments_per_row", "steps_per_row")


class Program(NamedTuple):
    """Static arguments of a compiled program; everything else is read off its arguments.

    Attributes:
        model_ref: weak reference to the trained model; no program keeps a model alive.
        data: how mini-batches are gathered and preprocessed.
        recording: diagnostics and the user's `observe`.
        mesh: devices that share the lanes of the run, if there are several.
        shapes: of its buffers, tables and loops; an evaluation has none of them.
    """

    model_ref: weakref.ref[Model]
    data: DataForm
    recording: Recording
    mesh: Mesh | None = None
    shapes: Shapes = Shapes()

    @property
    def model(self) -> Model:
        """The trained model."""
        model = self.model_ref()
        assert model is not None, "a program is traced while a problem holds its model"
        return model


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """One simulation with one seed.

    Attributes:
        model, clock: as the run has them.
        data, client, server: as the user gave them.
        hyperparameters: client (with the attack, if there is one) and server as they run, on the device.
        device: data on the device.
        seed: of the initial model, the schedule and the mini-batches.
        recording: diagnostics and the user's `observe`.
        mesh: devices that share the lanes, if there are several.
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
    mesh: Mesh | None = None

    @property
    def key(self) -> Key:
        """The key derived from the seed."""
        return seed_key(self.seed)

    @property
    def reads_base(self) -> bool:
        """True if x_s of the arrivals is read."""
        return self.server.needs.base or bool({"drift", "local_accuracy"} & {*self.recording.diagnostics})

    def program(self, shapes: Shapes = Shapes()) -> Program:  # noqa: B008 (immutable)
        """Returns the program of the problem."""
        traced = self.recording._replace(metrics=())
        return Program(weakref.ref(self.model), self.data.form, traced, self.mesh, shapes)
