"""A protocol whose first server step takes an update of every client: the beginning of IA²SGD, ACE and MIFA."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.clock.contract import (
    ByOptions,
    Clock,
    Delivery,
    FaultCode,
    InFlight,
    Runs,
    ServerStep,
    Starts,
    Workload,
)
from jaxafl.clock.starts import first_fault, first_state
from jaxafl.device.keys import Key
from jaxafl.options import check_options, static

Array = jax.Array
_TAKES = Delivery.STALE | Delivery.CONTINUOUS | Delivery.MULTIPLE | Delivery.REPEATED | Delivery.EMPTY
_TAKES |= Delivery.BY_CLIENT | Delivery.REPLIES | Delivery.SEVERAL
_MOST = 1000  # steps of the protocol for each client, without which a client that never comes would be waited for


class State(NamedTuple):
    """State of the clock between two server steps."""

    inner: Any  # of the protocol
    starts: Starts
    shift: Array  # versions that the protocol has counted, and this clock has not; -1 with `first="all"`
    begins: Array  # True before the first server step


class warm_up(Clock):
    """Clock that makes no version before it has an update of every client; then it is the given protocol.

    Meanwhile clients start from x_0, as the protocol lets them. The first server step takes the last update of every
    client. Earlier ones count as refused and are never trained. Staleness, server steps and evaluations count versions.
    Servers with tables begin like this in the papers: `mifa` and `ia2sgd` with `first="next"`, `ace` and `aced` with
    `first="all"`.

    Args:
        clock: the protocol, for example `free_running(concurrency=N, durations=...)` or `synchronous(cohort=n)`.
        first: end of the first server step. `"complete"`: the step of the protocol by which every client has arrived
            once. `"next"`: the step after it, whose updates count, too. `"all"`: time 0, with one run of every client
            from x_0 that takes no time; then the protocol begins from x_1.

    References:
        Gu et al., "Fast federated learning in the presence of arbitrary device unavailability", NeurIPS 2021; Wang et
        al., "Dual-delayed asynchronous SGD for arbitrarily heterogeneous data", 2024; Chang et al., "Mitigating
        participation imbalance bias in asynchronous federated learning", 2025. The rules follow the authors' code.
    """

    clock: Clock
    first: Literal["complete", "next", "all"] = static(default="complete", kw_only=True)

    delivers = ByOptions(
        Delivery.STALE | Delivery.CONTINUOUS | Delivery.SEVERAL,
        lambda clock: (clock.clock.delivers & ~Delivery.REPLIES) | Delivery.SEVERAL,
    )
    order_free = ByOptions(False, lambda clock: clock.clock.order_free)
    takes_all = ByOptions(False, lambda clock: clock.first == "all" and clock.clock.takes_all)

    def check(self, num_clients: int) -> None:
        if not isinstance(self.clock, Clock):
            raise TypeError(f"{self.name}: clock is {self.clock!r}; expected a clock such as free_running(...)")
        if isinstance(self.clock, warm_up):
            raise ValueError(f"{self.name}: clock is a warm_up; expected its protocol. Give the protocol itself")
        if foreign := self.clock.delivers & ~_TAKES:
            words = ", ".join(str(flag.name).lower().replace("_", " ") for flag in foreign)
            raise ValueError(
                f"{self.name}: the arrivals of {self.clock.name} are {words}; expected a clock such as free_running, "
                "synchronous or bernoulli. Give one of those"
            )
        if getattr(self.clock, "max_staleness", None) is not None:
            raise ValueError(
                f"{self.name}: max_staleness={self.clock.max_staleness} of {self.clock.name} would count the steps "  # type: ignore[attr-defined]
                "before the first version; expected a protocol without a bound. Give max_staleness=None"
            )
        check_options(self.clock, num_clients)
        self.clock.check(num_clients)

    def prepare(self, counts: np.ndarray, size: Callable[[], tuple[int, int]]) -> warm_up:
        return dataclasses.replace(self, clock=self.clock.prepare(counts, size))

    def capacity(self, num_clients: int) -> int:
        return max(num_clients, self.clock.capacity(num_clients))

    def in_flight(self, num_clients: int) -> int:
        return self.clock.in_flight(num_clients)

    def ring_slots(self, num_clients: int) -> int:
        return self.clock.ring_slots(num_clients)

    def init(self, key: Key, num_clients: int) -> State:
        inner = first_state(self.clock, key, num_clients)
        early = num_clients if self.first == "all" else 0
        starts = inner.starts._replace(count=inner.starts.count + early, refused=jnp.int32(0))
        return State(inner, starts, jnp.int32(-1 if early else 0), jnp.bool_(True))

    def next(self, state: State, workload: Workload) -> tuple[State, ServerStep]:
        """Advances the protocol by one step, or up to the first version."""
        clients, begins = workload.num_clients, state.begins
        size, early = self.capacity(clients), self.first == "all"
        steps = workload.steps  # the runs of the protocol are counted after those at time 0
        later = Workload(steps[:, 1:], clients) if early and steps.ndim == 2 and steps.shape[1] > 1 else workload

        def advance(carry: tuple[Any, ServerStep, Array, Array, Array]) -> tuple[Any, ServerStep, Array, Array, Array]:
            before, gathered, refused, count, _ = carry
            inner, step = self.clock.next(before, later)
            entered, replaced = _entered(gathered, step.complete(), clients, begins)
            decides = gathered if self.first == "next" else entered
            ends = ~begins | jnp.all(decides.mask[:clients]) | (count + 1 >= _MOST * clients)
            return inner, entered, refused + replaced, count + 1, ends

        first = _at_once(workload, size)
        first = first._replace(mask=first.mask & begins & early)
        carry = (state.inner, first, jnp.int32(0), jnp.int32(0), begins & early)
        inner, step, refused, count, _ = jax.lax.while_loop(lambda carry: ~carry[4], advance, carry)
        shift = jnp.where(begins, -1 if early else count - 1, state.shift)
        more, earlier = clients if early else 0, state.starts
        starts = inner.starts._replace(
            count=inner.starts.count + more,
            refused=refused + earlier.refused + inner.starts.refused - state.inner.starts.refused,
            fault=jax.tree.map(
                lambda old, new: jnp.where(earlier.fault.code > 0, old, new), earlier.fault, inner.starts.fault
            ),
        )
        arrived = step.mask[:clients]
        code = jnp.where(begins & ~jnp.all(arrived), FaultCode.SILENT, FaultCode.NONE)
        starts = first_fault(starts, code, client=jnp.argmin(arrived), run=count, time=step.time)
        ahead = jnp.where(begins, 0, 1)
        runs = step.runs._replace(run=step.runs.run + ahead * early, run_id=step.runs.run_id + ahead * more)
        runs = _shifted(runs, jnp.where(begins, jnp.iinfo(jnp.int32).max, shift))  # all before x_1 train from x_0
        return State(inner, starts, shift.astype(jnp.int32), jnp.bool_(False)), step._replace(runs=runs)

    def held(self, state: State) -> list[Array]:
        return [jnp.maximum(version - state.shift, 0) for version in self.clock.held(state.inner)]

    @property
    def in_flight_runs(self) -> Any:
        """Function of the state that returns the runs in flight, if the protocol can be advanced during training."""
        inner: Any = self.clock.in_flight_runs  # type: ignore[attr-defined]  # raises AttributeError if it cannot
        early = self.first == "all"

        def found(state: State) -> InFlight:
            flight = inner(state.inner)
            runs = flight.runs._replace(run=flight.runs.run + early)
            return flight._replace(runs=_shifted(runs, state.shift))

        return found

    def online_ring_slots(self, num_clients: int) -> int:
        """Returns the number of model versions that must be kept if runs are trained at their arrival."""
        return int(self.clock.online_ring_slots(num_clients))  # type: ignore[attr-defined]


def _at_once(workload: Workload, size: int) -> ServerStep:
    """Returns one run of every client from x_0 that takes no time, in a step of `size` entries."""
    entries = jnp.arange(size, dtype=jnp.int32)
    client, zero = jnp.minimum(entries, workload.num_clients - 1), jnp.zeros_like(entries)
    steps, now = jax.vmap(workload.local_steps)(client, zero).astype(jnp.int32), jnp.zeros(size, jnp.float64)
    runs = Runs(client, zero, client, zero, steps, now, now, zero)
    return ServerStep(jnp.float64(0), entries < workload.num_clients, runs).complete()


def _entered(gathered: ServerStep, step: ServerStep, clients: int, by_client: Array) -> tuple[ServerStep, Array]:
    """Enters the arrivals of a step into another one; `by_client`: in the place of their client, the last one of each.

    Returns:
        The step, and the number of arrivals that were replaced.
    """
    size, client = len(gathered.mask), step.runs.client
    entries = jnp.arange(len(step.mask), dtype=jnp.int32)
    last = jnp.full(clients, -1, jnp.int32).at[jnp.where(step.mask, client, clients)].max(entries, mode="drop")
    enters = step.mask & (~by_client | (last[client] == entries))
    places = jnp.where(by_client, client, entries)
    replaced = jnp.where(by_client, jnp.sum(step.mask & (~enters | gathered.mask[places])), 0).astype(jnp.int32)
    columns = {name: getattr(step, name) for name in ("mask", "runs", "multiplicity", "kind")}
    known = {name: getattr(gathered, name) for name in columns}
    places = jnp.where(enters, places, size)
    columns = jax.tree.map(lambda old, new: old.at[places].set(new, mode="drop"), known, columns)
    return gathered._replace(time=step.time, **columns), replaced


def _shifted(runs: Runs, shift: Array) -> Runs:
    """Returns runs with the numbers of the versions that count."""
    runs = runs.complete()
    return runs._replace(
        version=jnp.maximum(runs.version - shift, 0), reference=jnp.maximum(jnp.asarray(runs.reference) - shift, 0)
    )
