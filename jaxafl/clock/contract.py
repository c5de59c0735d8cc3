"""What a clock is: the records that it exchanges with the engine.

A clock is a frozen dataclass (`jaxafl.pytrees.pytree`) of numbers (leaves) and options (static) with

    name                                           the protocol, as results and `Server.clocks` name it
    check(num_clients)                             raises `ValueError` for options that cannot work, before compilation
    capacity(num_clients) -> int                   A, the arrivals that one server step can take
    in_flight(num_clients) -> int                  the most runs that are under way at once
    ring_slots(num_clients) -> int                 versions of the global model that must be kept: the pins + 1
    init(key, num_clients) -> state                a pytree with `dispatches` (runs started); float64 times
    next(state, workload) -> (state, ServerStep)   advances simulated time to the next server step
    fault(state) -> Fault                          the first thing that went wrong (a recorded trace that runs out)

and, where they apply,

    in_flight_runs(state) -> InFlight              the runs under way, for servers whose replies change the next
    slots_beside(num_clients) -> int               as `ring_slots`, where a run is trained as late as it arrives
    order_free                                     True where durations do not change who arrives
    references                                     what `Simulation.citation` names, as a server's

`init`, `next`, `fault` and `in_flight_runs` are traced by JAX with 64-bit types enabled, so that time is float64.
`next` never sees a model value. The same functions run ahead of the training, on the CPU (`schedule.py`), or beside it,
when a server's replies change the work of the next runs (`online.py`).
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from jaxafl.keys import Key
from jaxafl.pytrees import pytree, static

Array = jax.Array


class ServerStep(NamedTuple):
    """The arrivals of one server step, in the order in which they are delivered; the leading axis A is the clock's
    capacity.

    A *run* is one local training of one client. It may be consumed by several server steps (a client that offers the
    same update until an upload succeeds), by one, or by none.

    Attributes:
        time: float64, the instant of the step, that of its last arrival, in simulated seconds.
        mask: bool [A], whether the entry is an arrival; the rest of an entry that is none means nothing.
        client: int32 [A], who arrived.
        run: int32 [A], index among the runs of this client, in the order they start.
        dispatch: int32 [A], index among all runs, in the order they start: names the run.
        version: int32 [A]: the run trained from x_version.
        reference: int32 [A]: its update is measured against x_reference and its staleness is t - reference.
        local_steps: int32 [A], local steps that the run made.
        started: float64 [A], when the run started.
        arrived: float64 [A], when it arrived.
        multiplicity: int32 [A], how many times the update counts (a client drawn twice).
        kind: int32 [A], 0, or what the protocol says of this arrival (`semi_async`: 0 picked, 1 undrafted, 2
            resynchronised without an update).
    """

    time: Array
    mask: Array
    client: Array
    run: Array
    dispatch: Array
    version: Array
    reference: Array
    local_steps: Array
    started: Array
    arrived: Array
    multiplicity: Array
    kind: Array


class Fault(NamedTuple):
    """The first thing that went wrong in a schedule.

    Attributes:
        code: int32, an index into `FAULTS`; 0 means that nothing went wrong.
        dispatch: int32, at which dispatch.
        client: int32, whose run.
        run: int32, which of the client's runs.
        round: int32, at which server step.
    """

    code: Array
    dispatch: Array
    client: Array
    run: Array
    round: Array


FAULTS = (
    "",
    "the recorded durations run out: dispatch {dispatch} starts run {run} of client {client}, which has no duration",
    "the recorded starts run out at dispatch {dispatch}",
    "the recorded starts name client {client} at dispatch {dispatch}, but this client is busy",
    "dispatch {dispatch} (run {run} of client {client}) has a negative, infinite or NaN duration",
    "the recorded sets run out at round {round}",
    "the recorded uploads or downloads run out at tick {round}",
    "the recorded stale versions run out at round {round}",
)


def no_fault() -> Fault:
    """Nothing went wrong so far."""
    return Fault(*(jnp.int32(0),) * len(Fault._fields))


def first_fault(before: Fault, now: Fault) -> Fault:
    """The earlier of two faults, if any."""
    return jax.tree.map(lambda old, new: jnp.where(before.code == 0, new, old), before, now)


def valid(duration: Array) -> Array:
    """Whether a duration is one: finite and not negative."""
    return jnp.isfinite(duration) & (duration >= 0)


def durations_fault(
    duration: Array, invalid: Array, dispatch: Array, client: Array, run: Array, version: Array
) -> Fault:
    """The first of several runs that start together whose duration is marked invalid (NaN: the recording has run
    out)."""
    first = jnp.argmax(invalid)
    code = jnp.where(jnp.isnan(duration[first]), 1, 4)
    code = jnp.where(jnp.any(invalid), code, 0).astype(jnp.int32)
    return Fault(code, dispatch[first], client[first], run[first], version)


@pytree
class Workload:
    """How many local steps each run makes: int32 [] for all, [N] per client, or [N, R] per client and run.

    With [N, R], runs past the last column repeat it.
    """

    steps: Array
    num_clients: int = static()

    def local_steps(self, client: Array, run: Array, version: Array | None = None, begins: Any = True) -> Array:
        """The local steps of one run.

        Args:
            client, run: which run.
            version: what it trains from; given by an `OnlineClock`, whose workload may depend on it.
            begins: whether the run really begins; where it does not, the answer does not matter.
        """
        if self.steps.ndim == 0:
            return self.steps
        if self.steps.ndim == 1:
            return self.steps[client]
        return self.steps[client, jnp.minimum(run, self.steps.shape[1] - 1)]


class InFlight(NamedTuple):
    """The runs under way, for a driver that trains beside the clock; leading axis: the clock's rows."""

    mask: Array  # bool: whether the row is a run under way
    client: Array
    run: Array
    dispatch: Array
    version: Array  # of a run under way; or promised to one that is about to start
    reference: Array  # the version that the update will be measured against
    local_steps: Array
    arrives: Array  # float64: when the run will arrive
    pinned: Array  # bool: whether `version` and `reference` must be kept


class Clock(Protocol):
    """What every clock has; `help(jaxafl.clock.contract)` says what each member is."""

    name: ClassVar[str]

    def check(self, num_clients: int) -> None: ...
    def capacity(self, num_clients: int) -> int: ...
    def in_flight(self, num_clients: int) -> int: ...
    def ring_slots(self, num_clients: int) -> int: ...
    def init(self, key: Key, num_clients: int) -> Any: ...
    def next(self, state: Any, workload: Workload) -> tuple[Any, ServerStep]: ...
    def fault(self, state: Any) -> Fault: ...


class OnlineClock(Clock, Protocol):
    """A clock that can run beside the training."""

    def in_flight_runs(self, state: Any) -> InFlight: ...
    def slots_beside(self, num_clients: int) -> int: ...
