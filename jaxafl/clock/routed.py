"""Tasks that queue at the clients they are sent to: the clock of Generalized AsyncSGD."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.clock import selection, trees
from jaxafl.clock.contract import Delivery, FaultCode, Runs
from jaxafl.clock.durations.duration import Duration
from jaxafl.clock.durations.link import shared_link
from jaxafl.clock.event_loop import Event, State, Verdict
from jaxafl.clock.events import Events
from jaxafl.clock.trees import put
from jaxafl.device.keys import Key
from jaxafl.options import Number, UserError, number, static

Array = jax.Array
_ROUNDING = 1e-6


class Rules(NamedTuple):
    """State of the protocol."""

    free: Array  # float64 [N], time at which the client has done all tasks sent so far
    routes: Array  # probabilities as a tree, see `trees.weights_of`


class routed(Events):
    """Clock with m tasks in circulation: each arrival is a server step, which sends one new task to a drawn client.

    A client works off its tasks one after another, in the order in which they were sent. A task carries the model that
    was newest when it was sent, so it ages in the queue. Its run is `started` when the client begins to train, and runs
    are numbered in the order of sending. At time 0 the m tasks are dealt by the same draw. With ties all arrivals of
    an instant are delivered, in client order, before new tasks are sent.

    Args:
        tasks: number of tasks m, at least 1; a client may have several. `None` is N.
        durations: duration of a run in simulated seconds, without the time in the queue.
        probabilities: probabilities p_i > 0 that a task is sent to client i, one per client, with sum 1; `None` is 1/N.

    References:
        Leconte, Jonckheere, Samsonov & Moulines, "Queuing dynamics of asynchronous federated learning", AISTATS 2024.
        The rule follows the abstract.
    """

    tasks: int | None = static(default=None, kw_only=True)
    durations: Duration = dataclasses.field(kw_only=True)
    probabilities: Number | None = number(default=None, above=0, most=1, per_client=True, kw_only=True)

    references: ClassVar[tuple[str, ...]] = ("leconte2024",)
    delivers: ClassVar[Delivery] = Events.delivers | Delivery.QUEUED
    takes_all: ClassVar[bool] = True

    def check(self, num_clients: int) -> None:
        super().check(num_clients)
        total = self.table(num_clients).sum()
        if abs(total - 1) > _ROUNDING:
            raise UserError(
                f"{self.name}: probabilities have the sum {total:.6g} over {num_clients} clients; expected 1. "
                "Divide them by their sum"
            )
        if self.durations.pause or shared_link(self.durations) is not None:
            raise UserError(
                f"{self.name}: transfers that stop all clients, or share a link, do not fit queues of tasks; expected "
                "durations without them. Give mac_network(freeze=False), or link(up=...)"
            )

    def table(self, num_clients: int) -> np.ndarray:
        """Returns the probabilities p_i, float64 [N]."""
        given = 1 / num_clients if self.probabilities is None else self.probabilities
        return np.broadcast_to(np.asarray(given, np.float64), (num_clients,))

    def capacity(self, num_clients: int) -> int:
        return 1

    def in_flight(self, num_clients: int) -> int:
        return self.tasks or num_clients

    def begin(self, key: Key, num_clients: int) -> Rules:
        given = 1.0 if self.probabilities is None else jnp.asarray(self.probabilities, jnp.float64)
        return Rules(jnp.zeros(num_clients), trees.weights_of(jnp.broadcast_to(given, (num_clients,))))

    def arrives(self, rules: Rules, event: Event) -> Verdict:
        return Verdict(rules, jnp.bool_(True))

    def choose(self, state: State, num_clients: int) -> tuple[Array, Array]:
        client = selection.weighted_client(state.start_key, state.starts.count, state.rules.routes, num_clients)
        return client, jnp.int32(FaultCode.NONE)

    def begins(self, state: State, client: Array) -> Array:
        return jnp.maximum(state.now, state.rules.free[client])

    def begun(self, rules: Rules, run: Runs, where: Array) -> Rules:
        return rules._replace(free=put(rules.free, run.client, run.arrived, where))
