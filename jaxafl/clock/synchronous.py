"""Rounds in which the server waits for everyone: the clock of FedAvg."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.checks import check_flag, check_whole
from jaxafl.clock import selection
from jaxafl.clock.checks import check_concurrency, check_durations
from jaxafl.clock.contract import Fault, ServerStep, Workload
from jaxafl.clock.durations import Duration, Run, stream_keys
from jaxafl.keys import Key, Purpose, purpose_key, threefry, uniform
from jaxafl.pytrees import pytree, static

Array = jax.Array


class State(NamedTuple):
    """The clock between two rounds."""

    now: Array
    version: Array
    dispatches: Array
    runs: Array
    longest: Array
    fault: Fault
    prepared: Any
    start_key: Key


@pytree
class Synchronous:
    """See `synchronous`."""

    durations: Any
    sets: Any = None
    cohort: int | None = static(default=None)
    replacement: bool = static(default=False)

    name: ClassVar[str] = "synchronous"

    def check(self, num_clients: int) -> None:
        check_flag("synchronous", "replacement", self.replacement)
        if self.cohort is not None:
            if self.replacement:
                check_whole("synchronous", "cohort", self.cohort)
            else:
                check_concurrency("synchronous", "cohort", self.cohort, num_clients)
        elif self.replacement:
            raise ValueError("replacement=True needs a cohort size: cohort=n")
        if self.sets is not None:
            self._check_sets(np.asarray(self.sets), num_clients)
        check_durations("synchronous", self.durations, num_clients)

    def capacity(self, num_clients: int) -> int:
        return num_clients if self.cohort is None else self.cohort

    def in_flight(self, num_clients: int) -> int:
        return self.capacity(num_clients)

    def ring_slots(self, num_clients: int) -> int:
        return 2  # the version that the cohort trains from, and the one being written

    def init(self, key: Key, num_clients: int) -> State:
        none = jnp.int32(0)
        return State(
            now=jnp.float64(0),
            version=none,
            dispatches=none,
            runs=jnp.zeros(num_clients, jnp.int32),
            longest=jnp.float64(0),
            fault=Fault(none, none, none, none, none),
            prepared=self.durations.prepare(stream_keys(key, self.durations), num_clients),
            start_key=purpose_key(key, Purpose.START),
        )

    def next(self, state: State, workload: Workload) -> tuple[State, ServerStep]:
        """One round: draw the cohort, wait for its slowest client."""
        size = self.capacity(workload.num_clients)
        drawn, missing = self._draw(state, workload.num_clients, size)
        client = jnp.sort(drawn)
        mask, multiplicity = jnp.ones(size, bool), jnp.ones(size, jnp.int32)
        if self.replacement:  # a client drawn twice trains once and counts twice
            mask = jnp.concatenate([mask[:1], client[1:] != client[:-1]])
            multiplicity = jnp.sum(client[:, None] == client[None, :], axis=1, dtype=jnp.int32)
        run = state.runs[client]
        local_steps = jax.vmap(workload.local_steps)(client, run).astype(jnp.int32)
        duration, work = self._durations(state, client, run, local_steps)
        invalid = mask & ~(jnp.isfinite(duration) & (duration >= 0))
        dispatch = state.dispatches + jnp.cumsum(mask, dtype=jnp.int32) - 1
        code = jnp.where(jnp.isnan(duration), 1, 4).astype(jnp.int32)
        first = jnp.argmax(invalid)
        failed = jnp.where(missing, 5, jnp.where(jnp.any(invalid), code[first], 0)).astype(jnp.int32)
        fault = Fault(failed, dispatch[first], client[first], run[first], state.version)
        duration = jnp.where(mask & ~invalid, duration, 0)
        now = state.now + jnp.max(duration)
        version = jnp.full(size, state.version, jnp.int32)
        step = ServerStep(
            now, mask, client, run, dispatch, version, version, local_steps,
            jnp.full(size, state.now), state.now + duration, multiplicity, jnp.zeros(size, jnp.int32),
        )  # fmt: skip
        return state._replace(
            now=now,
            version=state.version + 1,
            dispatches=state.dispatches + jnp.sum(mask, dtype=jnp.int32),
            runs=state.runs.at[client].add(mask.astype(jnp.int32)),
            longest=jnp.maximum(state.longest, jnp.max(jnp.where(mask & ~invalid, work, 0))),
            fault=jax.tree.map(lambda new, old: jnp.where(state.fault.code == 0, new, old), fault, state.fault),
        ), step

    def fault(self, state: State) -> Fault:
        return state.fault

    def _draw(self, state: State, num_clients: int, size: int) -> tuple[Array, Array]:
        """The clients of a round (repeats only with replacement), and whether the recorded sets have run out."""
        present = jnp.bool_(False)
        if self.sets is not None:
            sets = jnp.asarray(self.sets, jnp.int32)
            return sets[jnp.minimum(state.version, sets.shape[0] - 1)], state.version >= sets.shape[0]
        if self.cohort is None or (size == num_clients and not self.replacement):
            return jnp.arange(size, dtype=jnp.int32), present
        draws = state.version * size + jnp.arange(size, dtype=jnp.int32)
        if self.replacement:
            shares = uniform(threefry(state.start_key, draws, 0), jnp.float64)
            return jnp.floor(shares * num_clients).astype(jnp.int32), present

        def pick(busy: Array, indexed: tuple[Array, Array]) -> tuple[Array, Array]:
            position, draw = indexed
            client = selection.idle_client(state.start_key, draw, busy, position, num_clients)
            return selection.insert(busy, client), client

        order = jnp.arange(size, dtype=jnp.int32)
        return jax.lax.scan(pick, selection.no_busy(size, num_clients), (order, draws))[1], present

    def _durations(self, state: State, client: Array, run: Array, local_steps: Array) -> tuple[Array, Array]:
        def draw(client: Array, run: Array, local_steps: Array, longest: Array) -> Any:
            return self.durations.draw(state.prepared, Run(client, run, local_steps, longest))

        nothing = jnp.full(client.shape, state.longest)
        work = jax.vmap(draw)(client, run, local_steps, nothing).work
        earlier = jnp.concatenate([nothing[:1], jax.lax.cummax(work)[:-1]])
        drawn = jax.vmap(draw)(client, run, local_steps, jnp.maximum(nothing, earlier))
        return drawn.work + drawn.hang, work

    def _check_sets(self, sets: np.ndarray, num_clients: int) -> None:
        size = self.capacity(num_clients)
        if sets.ndim != 2 or sets.shape[1] != size or sets.shape[0] == 0 or sets.dtype.kind not in "iu":
            raise ValueError(
                f"recorded sets must be an integer array [round, n] with n = {size} clients, got shape {sets.shape}"
            )
        outside = np.argwhere((sets < 0) | (sets >= num_clients))
        if len(outside):
            where, what = outside[0], sets[tuple(outside[0])]
            raise ValueError(f"recorded sets must name clients 0..{num_clients - 1}; round {where[0]} names {what}")
        if not self.replacement:
            ordered = np.sort(sets, axis=1)
            repeated = np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))
            if repeated.size:
                raise ValueError(
                    f"round {repeated[0]} of the recorded sets names a client twice, who would be busy; "
                    "with replacement=True a client drawn twice counts twice"
                )


def synchronous(*, cohort: int | None = None, durations: Duration, replacement: bool = False) -> Synchronous:
    """Rounds of n clients: all train from the newest version and the server waits for the slowest.

    Args:
        cohort: n, drawn uniformly without replacement in every round; `None` takes all clients.
        durations: how long a run takes, in simulated seconds; a round lasts as long as its slowest run.
        replacement: draw with replacement; a client drawn k times trains once and its update counts k times.

    References:
        McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017.
    """
    return Synchronous(durations, None, cohort, replacement)
