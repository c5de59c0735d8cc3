"""What a server is: the records that it exchanges with the engine.

A server inherits from `Server`; its options are its fields (see `jaxafl.options`). `init` and `update` are traced by
JAX. Updates Δ_i = x_i^K - x_s point downhill: servers ADD them (an Optax gradient is -Δ).
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32, Num, PyTree

from jaxafl.client import Client
from jaxafl.clock.contract import Clock, Delivery
from jaxafl.device import weighted_sum
from jaxafl.options import Number, Part
from jaxafl.options.promises import keeps_promise

Tree = Any  # a pytree of arrays


class Arrivals(NamedTuple):
    """The updates that one server step takes, in the order of delivery; A is the clock's capacity.

    A step may have fewer than A arrivals. The other entries are padding: `delta`, `staleness`, `samples`, `local_steps`
    and `loss` are 0 there, the rest means nothing.

    Attributes:
        mask: bool [A], whether the entry is an arrival.
        client: int32 [A], who arrived.
        multiplicity: int32 [A], how many times the update counts (a client drawn twice).
        kind: int32 [A], what the protocol says of the arrival (`Clock.kinds`).
        delta: Δ_i = x_i^K - x_s, each leaf [A, ...]; with `Needs.sums`, what `weighted_sum` and `mean_delta` take.
        base: x_s, each leaf [A, ...], if the server needs it (`Needs.base`), else `None`.
        staleness: int32 [A], τ = t - s; 0 for a fresh update.
        samples: float [A], n_i.
        local_steps: int32 [A], local steps made; of a server that replies, epochs where `Client` counts epochs.
        loss: float [A], mean over the local steps of the mini-batch loss.
        step: int32, t.
        time: float, simulated seconds.
        key: of this server step and the run's seed, for `jax.random`; the same on all devices.
    """

    mask: Bool[Array, " A"]
    client: Int32[Array, " A"]
    multiplicity: Int32[Array, " A"]
    kind: Int32[Array, " A"]
    delta: PyTree[Num[Array, "A ..."]]
    base: PyTree[Num[Array, "A ..."]] | None
    staleness: Int32[Array, " A"]
    samples: Float[Array, " A"]
    local_steps: Int32[Array, " A"]
    loss: Float[Array, " A"]
    step: Int32[Array, ""]
    time: Float[Array, ""]
    key: Any = None


class Needs(NamedTuple):
    """What a server needs of the engine.

    Attributes:
        base: it reads x_s (`Arrivals.base`), which is kept until the update is taken.
        replies: it answers with the number of local steps of a client's next run, so that the clock runs beside the
            training.
        client_rows: parameter-sized rows that its state keeps per client (the memory check names them).
        client_models: clients train from a model of their own, which it answers with (`Outcome.client_params`), not
            from a global version; `Arrivals.base` is that model.
        empty_steps: it steps also when nobody arrived; otherwise an empty step changes nothing.
        arrivals_here: on a clock whose entry i is client i, where several devices share a run, each shows it the
            arrivals of the clients whose `Rows` it holds, not all; what it makes of them it adds up by `Rows.psum`.
        sums: of `Arrivals.delta` it takes no more than `weighted_sum` (or `mean_delta`). Where several devices share a
            run, each keeps the updates that it has trained, and one sum of them is moved instead of all.
    """

    base: bool = False
    replies: bool = False
    client_rows: int = 0
    client_models: bool = False
    empty_steps: bool = False
    arrivals_here: bool = False
    sums: bool = False


class Outcome(NamedTuple):
    """What a server step gives.

    Attributes:
        params: x_{t+1}.
        state: the server's next state, of the structure that `init` gave.
        info: diagnostics of this step, scalars or [A]: variables of the result, by names that are not another's.
        next_steps: int32 [A], local steps of each client's next run, if the server replies (`Needs.replies`).
        client_params: each leaf [A, ...], the clients' own models, if they have any (`Needs.client_models`).
        weights: float [A], the shares of the arrivals in the next non-trainable model state (batch statistics), which
            is (kept · s_t + Σ_i w_i s_i) / (kept + Σ_i w_i) over the arrivals; `None`: their multiplicity.
        kept: the share of the state s_t of the server's model.
    """

    params: PyTree[Num[Array, "..."]]
    state: Any
    info: Mapping[str, Array] = types.MappingProxyType({})
    next_steps: Int32[Array, " A"] | None = None
    client_params: PyTree[Num[Array, "A ..."]] | None = None
    weights: Float[Array, " A"] | None = None
    kept: Float[Array, ""] | float = 0.0


class Server(Part):
    """Base of servers: what is done with the updates that arrive.

    Attributes:
        requires: what a clock must deliver.
        accepts: what else it may deliver; by default whatever needs no thought: stale updates, each once or with
            multiplicity, of whole runs. A class with an `update` of its own inherits no more than that, unless it
            is bound to a protocol (`requires`).
        needs: what it needs of the engine. Of those of a class whose `update` is overridden, `sums` is not inherited.
        buffer: M, the arrivals per server step of its paper, where it is made for several whenever they come: the
            command line takes it, and a clock that brings single arrivals is warned of.
        clocks: names of jaxafl's own protocols that fit; set by `requires` and `accepts`.
        counters: names of diagnostics whose sums are attributes of the result, `count_...`.
        meanings: name of a diagnostic -> what it is, for the result.

    Examples:
        >>> import jax
        >>> from jaxafl.options import Number, number
        >>> from jaxafl.server import Outcome, Server, mean_delta
        >>> class half_buff(Server):
        ...     learning_rate: Number = number(default=1.0, least=0)
        ...
        ...     def update(self, params, state, arrivals):
        ...         step = mean_delta(arrivals)
        ...         return Outcome(jax.tree.map(lambda x, d: x + self.learning_rate / 2 * d, params, step), state, {})
        >>> half_buff(learning_rate=0.5), sorted(half_buff.clocks)
        (half_buff(learning_rate=0.5), ['free_running', 'stale_rounds', 'synchronous'])
    """

    requires: ClassVar[Delivery] = Delivery.NONE
    accepts: ClassVar[Delivery] = Delivery.STALE | Delivery.CONTINUOUS | Delivery.AGED | Delivery.MULTIPLE
    buffer: ClassVar[int] = 1
    clocks: ClassVar[frozenset[str]] = frozenset()
    counters: ClassVar[tuple[str, ...]] = ()
    meanings: ClassVar[dict[str, str]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not cls.requires and not keeps_promise(cls, "accepts", "update"):
            cls.accepts &= Server.accepts
        if not keeps_promise(cls, "needs", "update"):
            cls.needs = InheritedNeeds(inspect.getattr_static(cls, "needs"))  # type: ignore[assignment, method-assign]
        shipped = (clock for clock in _descendants(Clock) if clock.__module__.startswith("jaxafl."))
        cls.clocks = frozenset(clock.name for clock in shipped if not unfit(cls, clock))

    @property
    def needs(self) -> Needs:
        """What it needs of the engine."""
        return Needs()

    def check(self, clock: Clock, client: Client, num_clients: int) -> None:
        """Raises `ValueError` for options that do not go together, or not with clock and client; each option by itself
        is checked before."""

    def prepare(self, clock: Clock, client: Client, counts: np.ndarray, seed: int) -> tuple[Server, Client]:
        """The server, and the local training, that run: with tables that depend on the clock, with a scaled rate.

        Args:
            clock, client: of the simulation.
            counts: int [N], n_i.
            seed: of the run.
        """
        return self, client

    def applied_rate(self, state: Any) -> Number | None:
        """The learning rate of the step that has left this state, for the result (`server_rate`), where `update` says
        none: the option `learning_rate`. `None`: it is not known."""
        return getattr(self, "learning_rate", None)

    def init(self, params: Tree, samples: Array) -> Any:
        """The state before the first server step, a pytree; samples: float [N], n_i."""
        return ()

    def update(self, params: Tree, state: Any, arrivals: Arrivals) -> Outcome:
        """The next model from the arrivals of one step."""
        raise NotImplementedError(f"the server {self.name} has no update(params, state, arrivals)")


def unfit(server: type[Server] | Server, clock: type[Clock] | Clock) -> str:
    """Why a server does not run on a clock; empty where it does."""
    missing = server.requires & ~clock.delivers
    if missing:
        return f"it needs arrivals that are {_words(missing)}"
    # that a server may reply does not oblige it
    foreign = clock.delivers & ~server.accepts & ~server.requires & ~Delivery.REPLIES
    return f"it does not accept arrivals that are {_words(foreign)}" if foreign else ""


def counts(arrivals: Arrivals) -> Array:
    """float [A]: how many times each update counts, 0 where there is no arrival."""
    return jnp.where(arrivals.mask, arrivals.multiplicity, 0).astype(arrivals.samples.dtype)


def shares(weights: Array) -> Array:
    """Weights divided by their sum; 0 where nobody arrived."""
    return weights / jnp.maximum(jnp.sum(weights), 1)


def mean_delta(arrivals: Arrivals) -> Tree:
    """(1/M) Σ Δ_i over the arrivals, with multiplicity; 0 where nobody arrived."""
    return weighted_sum(shares(counts(arrivals)), arrivals.delta)


def stepped(params: Tree, rate: Number, direction: Tree) -> Tree:
    """x + rate · direction."""
    return jax.tree.map(lambda x, d: x + rate * d, params, direction)


def norm(tree: Tree) -> Array:
    """‖tree‖₂ over all leaves as one vector."""
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)))


class InheritedNeeds(property):
    """`needs` of a class whose `update` is overridden: without the promise that no update is looked at by itself."""

    def __init__(self, said: Any) -> None:
        def needs(server: Server) -> Needs:
            of: Needs = said.__get__(server) if hasattr(said, "__get__") else said
            return of._replace(sums=False)

        super().__init__(needs, doc=Server.needs.__doc__)


def _descendants(cls: type) -> list[Any]:
    children: list[Any] = cls.__subclasses__()
    return [found for child in children for found in (child, *_descendants(child))]


def _words(delivery: Delivery) -> str:
    return ", ".join(str(flag.name).lower().replace("_", " ") for flag in delivery)
