"""What a server is: the records that it exchanges with the engine.

A server is a frozen dataclass of numbers (leaves, so that they can be swept) and options (static) with

    name             the algorithm
    clocks           names of the protocols it runs on
    keeps_start      whether it reads x_s (`Arrivals.start`), which must then be kept until the update is consumed
    replies_steps    whether it answers with the number of local steps of a client's next run (the clock then runs
    beside
                     the training)
    client_rows      parameter-sized rows kept per client, N × rows × parameters in all (checked against the memory)
    check(clock, num_clients)               raises `ValueError` for options that cannot work, before compilation
    init(params, num_clients) -> state      a pytree
    update(params, state, arrivals) -> Update

`init` and `update` are traced by JAX. Updates Δ_i = x_i^K - x_s point downhill: servers ADD them (an Optax gradient is
-Δ).
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from jaxafl.clock.contract import Clock

Array = jax.Array
Tree = Any


class Arrivals(NamedTuple):
    """The updates that one server step consumes, in the order of delivery; the leading axis A is the clock's
    capacity."""

    mask: Array  # bool [A]: whether the entry is an arrival
    client: Array  # int32 [A]
    multiplicity: Array  # int32 [A]: how many times the update counts
    kind: Array  # int32 [A]: what the protocol says of the arrival
    delta: Tree  # Δ_i = x_i^K - x_s, each leaf [A, ...]; 0 where masked
    start: Tree  # x_s, each leaf [A, ...], if the server keeps it, else None
    staleness: Array  # int32 [A]: τ = t - s, 0 for a fresh update
    samples: Array  # float [A]: n_i
    local_steps: Array  # int32 [A]: local steps made
    loss: Array  # float [A]: mean over the local steps of the mini-batch loss
    step: Array  # int32: t
    time: Array  # float: simulated seconds


class Update(NamedTuple):
    """What a server step gives."""

    params: Tree  # x_{t+1}
    state: Any
    info: dict[str, Array]  # diagnostics of this step: scalars, or [A]
    next_steps: Array | None = None  # int32 [A]: local steps of each client's next run, if the server replies with them


class Server(Protocol):
    """See the module docstring."""

    @property
    def name(self) -> str: ...
    @property
    def clocks(self) -> frozenset[str]: ...
    @property
    def keeps_start(self) -> bool: ...
    @property
    def replies_steps(self) -> bool: ...
    @property
    def client_rows(self) -> int: ...
    def check(self, clock: Clock, num_clients: int) -> None: ...
    def init(self, params: Tree, num_clients: int) -> Any: ...
    def update(self, params: Tree, state: Any, arrivals: Arrivals) -> Update: ...


def weighted_sum(weights: Array, rows: Tree) -> Tree:
    """Σ_a weights[a] rows[a], leaf by leaf."""
    return jax.tree.map(lambda leaf: jnp.tensordot(weights.astype(leaf.dtype), leaf, axes=1), rows)


def counts(arrivals: Arrivals) -> Array:
    """float [A]: how many times each update counts, 0 where there is no arrival."""
    return jnp.where(arrivals.mask, arrivals.multiplicity, 0).astype(arrivals.samples.dtype)


def mean_delta(arrivals: Arrivals) -> Tree:
    """(1/M) Σ Δ_i over the arrivals, with multiplicity; 0 where nobody arrived."""
    weights = counts(arrivals)
    return weighted_sum(weights / jnp.maximum(jnp.sum(weights), 1), arrivals.delta)


def norm(tree: Tree) -> Array:
    """‖tree‖₂ over all leaves as one vector."""
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)))
