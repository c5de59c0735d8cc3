"""Contract of clocks: the base class `Clock`, and the records that clocks exchange with the engine.

A clock inherits from `Clock`; its options are its fields (see `jaxafl.options`). `init` and `next` are traced by JAX
with 64-bit types enabled, so that time is float64. `next` never gets model values. A clock normally runs ahead of
training, on the CPU (`jaxafl.clock.schedules`). It runs online, interleaved with training, if training changes the work
of later runs.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32

from jaxafl.clock.durations.runs import with_size
from jaxafl.device.keys import Key
from jaxafl.options import Part, static

Recording: TypeAlias = jax.Array | np.ndarray | None


class Delivery(enum.Flag):
    """Properties of a protocol's arrivals.

    A clock lists them in `Clock.delivers`, a server in `Server.requires` and `Server.accepts`.
    """

    NONE = 0
    STALE = enum.auto()  # an update may start from an older version than the newest
    CONTINUOUS = enum.auto()  # clients start at any time, not only at server steps
    AGED = enum.auto()  # runs start from versions of a drawn age
    REPEATED = enum.auto()  # several server steps can take the same update
    EMPTY = enum.auto()  # a server step may have no arrivals
    SEVERAL = enum.auto()  # a server step may have several arrivals, with any options
    MULTIPLE = enum.auto()  # an update may count several times (`multiplicity`)
    PULLED = enum.auto()  # the server chooses the clients of the next arrivals after they have started
    PARTIAL = enum.auto()  # a run arrives with the local steps that it has completed, possibly 0
    BY_CLIENT = enum.auto()  # entry i is client i
    KINDS = enum.auto()  # `kind` distinguishes arrivals
    HELD = enum.auto()  # a client may go on from the version that it holds
    QUEUED = enum.auto()  # a run may wait at its client before it starts, with the model that was sent
    REPLIES = enum.auto()  # the server may answer with the local steps of a client's next run


class ByOptions:
    """Descriptor for an attribute of a clock (`delivers`, `order_free`) that depends on the clock's options."""

    def __init__(self, default: Any, of: Callable[[Any], Any]) -> None:
        """Takes the value with default options, which the class has, and the value of an instance."""
        self.default = default
        self.of = of

    def __get__(self, clock: Any, owner: type) -> Any:
        return self.default if clock is None else self.of(clock)


class Runs(NamedTuple):
    """Runs; a *run* is one local training of one client. All fields have one shape, [A] in a server step."""

    client: Int32[Array, "*A"]  # client index
    run: Int32[Array, "*A"]  # index among the client's runs, in start order
    run_id: Int32[Array, "*A"]  # index among all runs, in start order
    version: Int32[Array, "*A"]  # index of the start model x_version
    local_steps: Int32[Array, "*A"]  # number of local steps
    started: Float[Array, "*A"]  # start in simulated seconds
    arrived: Float[Array, "*A"]  # arrival in simulated seconds
    reference: Int32[Array, "*A"] | None = None  # the update is relative to x_reference; `None`: relative to x_version

    def complete(self) -> Runs:
        """Returns the runs with `reference` filled in."""
        return self if self.reference is not None else self._replace(reference=self.version)


class ServerStep(NamedTuple):
    """Arrivals of one server step, in delivery order; A is the clock's capacity.

    A run may be consumed by several server steps (if a client offers its update until an upload succeeds), by one, or
    by none. With `advances` False the arrivals make no version. The next step that makes one takes them, too, and only
    that step counts. `next` may then return fewer than A entries.
    """

    time: Float[Array, ""]  # time of the step, that is of its last arrival, in simulated seconds
    mask: Bool[Array, " A"]  # True for arrivals, False for padding, whose other fields are undefined
    runs: Runs  # [A]
    multiplicity: Int32[Array, " A"] | None = None  # number of times the update counts; `None`: 1
    kind: Int32[Array, " A"] | None = None  # index into the clock's `kinds`; `None`: 0
    advances: Bool[Array, ""] | None = None  # True if the step makes a version; `None`: it always does

    def complete(self) -> ServerStep:
        """Returns the step with `multiplicity`, `kind` and `reference` filled in."""
        once = jnp.ones_like(self.runs.client) if self.multiplicity is None else self.multiplicity
        kind = jnp.zeros_like(self.runs.client) if self.kind is None else self.kind
        return self._replace(runs=self.runs.complete(), multiplicity=once, kind=kind)


class FaultCode(enum.IntEnum):
    """Faults of schedules, with their messages as templates of the fields of `Fault`."""

    message: str

    def __new__(cls, message: str) -> FaultCode:
        member = int.__new__(cls, len(cls.__members__))  # numbered from 0
        member._value_, member.message = int(member), message
        return member

    NONE = ""
    DURATIONS_END = (
        "the recorded durations run out: run {run} of client {client} (start number {run_id}) has no duration "
        "(a user-defined duration that is NaN means this, too)"
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
        "{round} needs arrivals; give fewer server steps, or finite durations"
    )
    NO_TIME = "run {run} of client {client} (start number {run_id}) takes no time; give durations above 0"
    SILENT = "client {client} has not arrived in {run} steps, and the first server step waits for all clients"
    SETS_END = "the recorded sets run out at round {round}"
    MASKS_END = "the recorded uploads or downloads run out at tick {round}"
    STALE_END = "the recorded stale versions run out at round {round}"
    FULL = (
        "more updates arrive at server step {round} than the clock's capacity, at {time:,.6g} s; give a "
        "max_arrivals above {run}, unless a client that the step waits for never comes, or runs take no time"
    )
    REPLY = "the server replied at server step {round} with {run} local steps for client {client}; expected 1 or more"


class Fault(NamedTuple):
    """First fault of a schedule."""

    code: Int32[Array, ""]  # a `FaultCode`
    run_id: Int32[Array, ""]
    client: Int32[Array, ""]
    run: Int32[Array, ""]
    round: Int32[Array, ""]  # server step
    time: Float[Array, ""]  # simulated seconds


class RunCounts(NamedTuple):
    """Numbers of runs up to a server step, int32."""

    started: Any
    refused: Any  # runs whose update the server discarded
    stopped: Any  # runs that the server stopped
    lost: Any  # runs whose upload failed
    skipped: Any  # starts at a rate for which no client was idle


class Starts(NamedTuple):
    """Record of the runs that a clock has started, in the field `starts` of its state."""

    count: Int32[Array, ""]  # type: ignore[assignment]  # runs started
    longest: Float[Array, ""]  # longest run so far in seconds, hangs excluded
    fault: Fault
    prepared: Any  # result of `Duration.prepare`
    refused: Int32[Array, ""] | int = 0  # see `RunCounts`
    stopped: Int32[Array, ""] | int = 0
    lost: Int32[Array, ""] | int = 0
    skipped: Int32[Array, ""] | int = 0

    @property
    def counts(self) -> RunCounts:
        """Numbers of runs so far."""
        names = ("count", "refused", "stopped", "lost", "skipped")
        return RunCounts(*(jnp.asarray(getattr(self, name), jnp.int32) for name in names))


class Workload(Part):
    """Local steps of every run: int32 [] for all, [N] per client, or [N, R] per client and run.

    Runs after the last column use its value.
    """

    steps: Array
    num_clients: int = static()

    def local_steps(self, client: Array, run: Array, version: Array | None = None, begins: Any = True) -> Array:
        """Returns the local steps of one run.

        Args:
            client, run: client, and index of the run among the client's runs.
            version: index of the start model, from a clock that can run online.
            begins: False if this call is masked out and its result is ignored.
        """
        if self.steps.ndim < 2:
            return self.steps[client] if self.steps.ndim else self.steps
        return self.steps[client, jnp.minimum(run, self.steps.shape[1] - 1)]


class InFlight(NamedTuple):
    """Runs in flight of an online clock; the leading axis R is the clock's rows."""

    mask: Bool[Array, " R"]  # True if the row is a run in flight
    runs: Runs  # `version` of other rows is reserved for the next run in the row
    pinned: Bool[Array, " R"]  # True if `version` and `reference` must be kept


_PROMISES = {
    "order_free": {"init", "next"},
    "event_by_event": {"init", "next"},
    "takes_all": {"init", "next", "arrives"},
}  # of a class about its methods


class Clock(Part):
    """Base of clocks, which schedule the training of clients and the arrivals of every server step.

    A subclass that overrides `init` or `next` does not inherit `order_free`, `event_by_event` and `takes_all`. Neither
    does one that overrides `arrives` of `Events` inherit `takes_all`.

    Attributes:
        delivers: properties of the arrivals.
        kinds: meanings of the values of `ServerStep.kind`, if there are several.
        order_free: True if durations change arrival times, but not which runs arrive at which step.
        event_by_event: True if `next` consists of small operations without sorting or scattering. A schedule is then
            compiled as one function (`whole` of `jaxafl.device.compiled`).
        takes_all: True if a server step takes every run that a client completes. Clients that keep something from run
            to run (`Client.remembers`) need it, or a clock that inherits `Events.next`.
        chooses_steps: True if the clock chooses the local steps of every run.
    """

    delivers: ClassVar[Delivery] = Delivery.NONE
    kinds: ClassVar[tuple[str, ...]] = ()
    order_free: ClassVar[bool] = False
    event_by_event: ClassVar[bool] = False
    takes_all: ClassVar[bool] = False
    chooses_steps: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for promise, methods in _PROMISES.items():
            if promise not in vars(cls) and methods & vars(cls).keys():  # they may break what a parent class promises
                setattr(cls, promise, getattr(Clock, promise))

    def check(self, num_clients: int) -> None:
        """Raises `ValueError` for options that contradict each other; single options are checked before."""

    def prepare(self, counts: np.ndarray, size: Callable[[], tuple[int, int]]) -> Self:
        """Returns the clock of a run with sample counts n_i, int [N], and `size()` bytes sent, up and down."""
        return with_size(self, size)

    def capacity(self, num_clients: int) -> int:
        """Returns A, the maximum number of arrivals of one server step."""
        raise NotImplementedError(f"the clock {self.name} has no capacity(num_clients)")

    def entries(self, num_clients: int) -> int:
        """Returns the number of entries that `next` returns; fewer than A need `ServerStep.advances`."""
        return self.capacity(num_clients)

    def in_flight(self, num_clients: int) -> int:
        """Returns the maximum number of runs in flight at once."""
        return self.capacity(num_clients)

    def ring_slots(self, num_clients: int) -> int:
        """Returns the number of model versions that must be kept, for runs in flight and the newest one."""
        return self.in_flight(num_clients) + 1

    def init(self, key: Key, num_clients: int) -> Any:
        """Returns the state before the first server step, a pytree with a field `starts` (see `Starts`).

        Args:
            key: PRNG key of the schedule, for `jax.random` and for `jaxafl.device.keys`.
            num_clients: N.
        """
        raise NotImplementedError(f"the clock {self.name} has no init(key, num_clients)")

    def next(self, state: Any, workload: Workload) -> tuple[Any, ServerStep]:
        """Advances simulated time to the next server step."""
        raise NotImplementedError(f"the clock {self.name} has no next(state, workload)")

    def held(self, state: Any) -> list[Array]:
        """Returns the versions that later server steps may still need, int32 arrays of any shape.

        They are start models and references of runs; the default returns those of all `Runs` in the state.
        """
        nodes = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, Runs))
        runs = [node.complete() for node in nodes if isinstance(node, Runs)]
        return [jnp.asarray(version) for one in runs for version in (one.version, one.reference)]

    @property
    def pause(self) -> float:
        """Simulated seconds per server step in which no client computes, summed over the clock's durations."""
        names = {"durations", *(field.name for field in dataclasses.fields(self))}
        return float(sum(getattr(getattr(self, name, None), "pause", 0.0) for name in sorted(names)))


class OnlineClock(Protocol):
    """Additional methods of a clock that can run online (with `Delivery.REPLIES`)."""

    def in_flight_runs(self, state: Any) -> InFlight:
        """Returns the runs in flight."""

    def online_ring_slots(self, num_clients: int) -> int:
        """Returns the number of model versions that must be kept if runs are trained at their arrival."""
