"""What a server is: the records that it exchanges with the engine.

A server is a frozen dataclass (`jaxafl.pytrees.pytree`) of numbers (leaves, so that they can be swept) and options
(static) with

    name                                         the algorithm
    clocks                                       names of the protocols it runs on
    needs                                        what it needs of the engine: `Needs`
    check(clock, client, num_clients)            raises `ValueError` for options that cannot work, before compilation
    init(params, samples) -> state               a pytree; samples: float [N], n_i
    update(params, state, arrivals) -> Update    the next model from the `Arrivals` of one step

and, where there is something to cite,

    references                                   what `Simulation.citation` names: a tuple of keys of
                                                 `jaxafl.references.BIBTEX`, or of BibTeX entries

`init` and `update` are traced by JAX. Updates Δ_i = x_i^K - x_s point downhill: servers ADD them (an Optax gradient is
-Δ).
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxafl.client import LocalTraining
from jaxafl.clock.contract import Clock

Array = jax.Array
Tree = Any


class Arrivals(NamedTuple):
    """The updates that one server step consumes, in the order of delivery; the leading axis A is the clock's capacity.

    A step may have fewer than A arrivals. The other entries are padding: `delta`, `staleness`, `samples`, `local_steps`
    and `loss` are 0 there, the rest means nothing.

    Attributes:
        mask: bool [A], whether the entry is an arrival.
        client: int32 [A], who arrived.
        multiplicity: int32 [A], how many times the update counts (a client drawn twice).
        kind: int32 [A], what the protocol says of the arrival (`help(jaxafl.clock.ServerStep)`).
        delta: Δ_i = x_i^K - x_s, each leaf [A, ...].
        start: x_s, each leaf [A, ...], if the server needs it (`Needs`), else `None`.
        staleness: int32 [A], τ = t - s; 0 for a fresh update.
        samples: float [A], n_i.
        local_steps: int32 [A], local steps made.
        loss: float [A], mean over the local steps of the mini-batch loss.
        step: int32, t.
        time: float, simulated seconds.
    """

    mask: Array
    client: Array
    multiplicity: Array
    kind: Array
    delta: Tree
    start: Tree
    staleness: Array
    samples: Array
    local_steps: Array
    loss: Array
    step: Array
    time: Array


class Needs(NamedTuple):
    """What a server needs of the engine.

    Attributes:
        start: it reads x_s (`Arrivals.start`), which is kept until the update is consumed.
        replies_steps: it answers with the number of local steps of a client's next run, so that the clock runs beside
            the training.
        client_rows: parameter-sized rows that its state keeps per client (the memory check names them).
        client_models: clients train from a model of their own, which it answers with (`Update.client_params`), not from
            a global version; `Arrivals.start` is that model.
        acts_when_empty: it steps also when nobody arrived; otherwise an empty step changes nothing.
        local_rate: factor of the clients' learning rate.
        prepares: it has `prepare(clock, local_steps, num_clients, seed)`, which returns it with tables that depend on
            the clock.
    """

    start: bool = False
    replies_steps: bool = False
    client_rows: int = 0
    client_models: bool = False
    acts_when_empty: bool = False
    prepares: bool = False
    local_rate: float = 1.0


class Update(NamedTuple):
    """What a server step gives.

    Attributes:
        params: x_{t+1}.
        state: the server's next state, of the structure that `init` gave.
        info: diagnostics of this step, scalars or [A]; each becomes a variable of the result.
        next_steps: int32 [A], local steps of each client's next run, if the server replies with them
            (`Needs.replies_steps`).
        client_params: each leaf [A, ...], the clients' own models, if they have any (`Needs.client_models`).
    """

    params: Tree
    state: Any
    info: dict[str, Array]
    next_steps: Array | None = None
    client_params: Tree = None


class Server(Protocol):
    """What every server has; `help(jaxafl.server.contract)` says what each member is."""

    @property
    def name(self) -> str: ...
    @property
    def clocks(self) -> frozenset[str]: ...
    @property
    def needs(self) -> Needs: ...
    def check(self, clock: Clock, client: LocalTraining, num_clients: int) -> None: ...
    def init(self, params: Tree, samples: Array) -> Any: ...
    def update(self, params: Tree, state: Any, arrivals: Arrivals) -> Update: ...


def check_gradients(server: str, client: LocalTraining, *, full_batch: bool) -> None:
    """Raises `ValueError` unless a run is one gradient: Δ = -∇f(x_s).

    Args:
        server: the algorithm.
        client: local training.
        full_batch: whether the gradient must be that of all the client's data.
    """
    changes = ("proximal", "run_decay", "step_schedule", "run_schedule", "rate_schedule", "patience")
    plain = all(getattr(client, option) is None for option in changes)
    rate = client.hyperparameters.get("learning_rate")
    one = client.steps == 1 or (client.epochs == 1 and client.batch_size is None)
    if client.optimizer is not optax.sgd or set(client.hyperparameters) != {"learning_rate"} or not plain or not one:
        raise ValueError(
            f"{server} takes one gradient from every run: give Client(optax.sgd, learning_rate=1.0, steps=1"
            f"{', batch_size=None' if full_batch else ''}); the rate is the server's learning_rate"
        )
    if float(np.asarray(rate)) != 1.0:
        raise ValueError(f"{server} has no local rate: give Client(learning_rate=1.0), not {rate}")
    if full_batch and client.batch_size is not None:
        raise ValueError(f"{server} takes full gradients: give Client(batch_size=None), not {client.batch_size}")


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


def rows_of(params: Tree, count: int) -> Tree:
    """Zeros: one row of the shape of the parameters for each of `count` clients."""
    return jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype), params)


def replace_rows(rows: Tree, mask: Array, new: Tree) -> Tree:
    """Rows [N, ...] replaced by new ones [N, ...] where `mask` [N]: on clocks whose entry i is client i."""
    return jax.tree.map(lambda a, b: jnp.where(mask.reshape(-1, *(1,) * (a.ndim - 1)), b, a), rows, new)
