"""What a clock is: the records that it exchanges with the engine.

A clock inherits from `Clock`; its options are its fields (see `jaxafl.options`). `init` and `next` are traced by JAX
with 64-bit types enabled, so that time is float64. `next` never sees a model value: the same functions run ahead of the
training, on the CPU (`jaxafl.clock.schedules`), or beside it, where the training changes the work of the next runs.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32

from jaxafl.device.keys import Key, jax_key, words_of
from jaxafl.options import Part, UserError, static
from jaxafl.options.promises import keeps_promise

Recording: TypeAlias = jax.Array | np.ndarray | None


class Delivery(enum.Flag):
    """What the arrivals of a protocol are. A clock says which of these hold for it, a server which it needs
    (`Server.requires`) and which it accepts (`Server.accepts`)."""

    NONE = 0
    STALE = enum.auto()  # an update may start from an older version than the newest
    CONTINUOUS = enum.auto()  # clients start at any time, not together at a server step
    AGED = enum.auto()  # runs start from versions of a drawn age
    REPEATED = enum.auto()  # several server steps can take the same update
    EMPTY = enum.auto()  # a server step may have no arrivals
    MULTIPLE = enum.auto()  # an update may count several times (`multiplicity`)
    PULLED = enum.auto()  # the server chooses whose updates it takes after they have started
    PARTIAL = enum.auto()  # a run is handed in with the local steps that it has made, 0 included
    BY_CLIENT = enum.auto()  # entry i is client i
    KINDS = enum.auto()  # `kind` tells arrivals apart
    REPLIES = enum.auto()  # the server may answer with the local steps of a client's next run


class Runs(NamedTuple):
    """Local trainings; a *run* is one local training of one client. All fields have one shape, [A] in a server step."""

    client: Int32[Array, "*A"]  # whose
    run: Int32[Array, "*A"]  # index among the runs of this client, in the order they start
    run_id: Int32[Array, "*A"]  # index among all runs, in the order they start
    version: Int32[Array, "*A"]  # it trains from x_version
    local_steps: Int32[Array, "*A"]  # local steps that it makes
    started: Float[Array, "*A"]  # simulated seconds
    arrived: Float[Array, "*A"]  # simulated seconds at which it arrives
    reference: Int32[Array, "*A"] | None = None  # its update is measured against x_reference; `None`: against x_version

    def complete(self) -> Runs:
        """The same with every field there."""
        return self if self.reference is not None else self._replace(reference=self.version)


class ServerStep(NamedTuple):
    """The arrivals of one server step, in the order in which they are delivered; A is the clock's capacity.

    A run may be taken by several server steps (a client that offers the same update until an upload succeeds), by one,
    or by none.
    """

    time: Float[Array, ""]  # the instant of the step, that of its last arrival, in simulated seconds
    mask: Bool[Array, " A"]  # whether the entry is an arrival; the rest of an entry that is none means nothing
    runs: Runs  # [A]
    multiplicity: Int32[Array, " A"] | None = None  # how many times the update counts; `None`: once
    kind: Int32[Array, " A"] | None = None  # index into the clock's `kinds`; `None`: 0

    def complete(self) -> ServerStep:
        """The same with every field there."""
        once = jnp.ones_like(self.runs.client) if self.multiplicity is None else self.multiplicity
        kind = jnp.zeros_like(self.runs.client) if self.kind is None else self.kind
        return self._replace(runs=self.runs.complete(), multiplicity=once, kind=kind)


class FaultCode(enum.IntEnum):
    """What can go wrong in a schedule, and what the user is told of it: a template of the fields of `Fault`."""

    message: str

    def __new__(cls, message: str) -> FaultCode:
        member = int.__new__(cls, len(cls.__members__))  # numbered from 0
        member._value_, member.message = int(member), message
        return member

    NONE = ""
    DURATIONS_END = (
        "the recorded durations run out: run {run} of client {client} (start number {run_id}) has no duration "
        "(NaN of a duration of one's own means the same)"
    )
    STARTS_END = "the recorded starts run out at start number {run_id}"
    BUSY = "the recorded starts name client {client} at start number {run_id}, but this client is busy"
    INVALID_DURATION = "run {run} of client {client} (start number {run_id}) has a negative or NaN duration"
    NEVER = (
        "run {run} of client {client} (start number {run_id}) never arrives (an infinite duration), and server step "
        "{round} waits for it, from {time:,.6g} simulated seconds on"
    )
    ALL_GONE = (
        "all clients that are at work are gone (infinite durations) at {time:,.6g} simulated seconds, and server step "
        "{round} needs arrivals; give fewer server steps"
    )
    NO_TIME = (
        "run {run} of client {client} (start number {run_id}) takes no time: it would be made again and again at one "
        "instant; give durations above 0"
    )
    SETS_END = "the recorded sets run out at round {round}"
    MASKS_END = "the recorded uploads or downloads run out at tick {round}"
    STALE_END = "the recorded stale versions run out at round {round}"


class Fault(NamedTuple):
    """The first thing that went wrong in a schedule."""

    code: Int32[Array, ""]  # a `FaultCode`
    run_id: Int32[Array, ""]
    client: Int32[Array, ""]
    run: Int32[Array, ""]
    round: Int32[Array, ""]  # at which server step
    time: Float[Array, ""]  # simulated seconds


class Starts(NamedTuple):
    """What a clock keeps of the runs that it has started: the field `starts` of its state."""

    count: Int32[Array, ""]  # type: ignore[assignment]  # runs started
    longest: Float[Array, ""]  # the longest run so far, hangs excluded
    fault: Fault
    prepared: Any  # of the durations


class Workload(Part):
    """How many local steps each run makes: int32 [] for all, [N] per client, or [N, R] per client and run (runs past
    the last column repeat it)."""

    steps: Array
    num_clients: int = static()

    def local_steps(self, client: Array, run: Array, version: Array | None = None, begins: Any = True) -> Array:
        """The local steps of one run.

        Args:
            client, run: which run.
            version: what it trains from; given by a clock that can run beside the training.
            begins: whether the run really begins; where it does not, the answer does not matter.
        """
        if self.steps.ndim == 0:
            return self.steps
        if self.steps.ndim == 1:
            return self.steps[client]
        return self.steps[client, jnp.minimum(run, self.steps.shape[1] - 1)]


class InFlight(NamedTuple):
    """The runs under way, for training beside the clock; leading axis: the clock's rows."""

    mask: Bool[Array, " R"]  # whether the row is a run under way
    runs: Runs  # `version` of a row that is none: promised to the run that is about to start
    pinned: Bool[Array, " R"]  # whether `version` and `reference` must be kept


class Clock(Part):
    """Base of clocks: who trains when, and who arrives at every server step.

    Attributes:
        delivers: what its arrivals are.
        kinds: what the values of `ServerStep.kind` mean, where there are several.
        order_free: whether durations leave who arrives as it is; a class with an `init` or a `next` of its own says so
            itself, as with `event_by_event`: neither is inherited past them.
        event_by_event: whether it goes from one event to the next in small operations, none of which sorts or scatters:
            then a schedule is compiled as one function (`whole` of `jaxafl.device.compiled`).
    """

    delivers: ClassVar[Delivery] = Delivery.NONE
    kinds: ClassVar[tuple[str, ...]] = ()
    order_free: ClassVar[bool] = False
    event_by_event: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for promise in ("order_free", "event_by_event"):
            if not keeps_promise(cls, promise, "init", "next"):
                setattr(cls, promise, getattr(Clock, promise))

    def check(self, num_clients: int) -> None:
        """Raises `ValueError` for options that do not go together; each by itself is checked before."""

    def capacity(self, num_clients: int) -> int:
        """A, the arrivals that one server step can take."""
        raise NotImplementedError(f"the clock {self.name} has no capacity(num_clients)")

    def in_flight(self, num_clients: int) -> int:
        """The most runs that are under way at once."""
        return self.capacity(num_clients)

    def ring_slots(self, num_clients: int) -> int:
        """Versions of the global model that must be kept: those that runs under way need, and the newest."""
        return self.in_flight(num_clients) + 1

    def init(self, key: Key, num_clients: int) -> Any:
        """The state before the first server step: a pytree with a field `starts`, see `Starts`.

        Args:
            key: of the schedule, for `jax.random` and for `jaxafl.device.keys`.
            num_clients: N.
        """
        raise NotImplementedError(f"the clock {self.name} has no init(key, num_clients)")

    def next(self, state: Any, workload: Workload) -> tuple[Any, ServerStep]:
        """Advances simulated time to the next server step."""
        raise NotImplementedError(f"the clock {self.name} has no next(state, workload)")

    def held(self, state: Any) -> list[Array]:
        """Versions, each int32 of any shape, from which later server steps may still take runs, or measure their
        updates; here those of all `Runs` in the state. A run that is made longer afterwards goes on from them."""
        nodes = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, Runs))
        runs = [node.complete() for node in nodes if isinstance(node, Runs)]
        return [jnp.asarray(version) for one in runs for version in (one.version, one.reference)]

    @property
    def pause(self) -> float:
        """Seconds that every server step adds to the clock, in which no client computes: those of its durations."""
        names = {"durations", *(field.name for field in dataclasses.fields(self))}
        return float(sum(getattr(getattr(self, name, None), "pause", 0.0) for name in sorted(names)))


def first_state(clock: Clock, key: Key, num_clients: int) -> Any:
    """The state before the first server step, by a key that `jax.random` takes where `init` is not one of jaxafl's."""
    own = type(clock).init.__module__.startswith("jaxafl.")
    state = clock.init(key if own else cast(Any, jax_key(words_of(key))), num_clients)
    if not hasattr(state, "starts"):
        raise UserError(
            f"the clock {clock.name}: init(key, num_clients) must return a state with a field `starts` "
            f"(jaxafl.clock.Starts), {type(state).__name__} has none"
        )
    return state


class OnlineClock(Protocol):
    """What a clock has besides that can run beside the training (it then delivers `Delivery.REPLIES`)."""

    def in_flight_runs(self, state: Any) -> InFlight:
        """The runs under way."""

    def slots_beside(self, num_clients: int) -> int:
        """As `ring_slots`, where a run is trained as late as it arrives."""
