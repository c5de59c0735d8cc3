"""Contract of servers: the base class `Server`, and the records `Arrivals`, `Needs` and `Outcome`.

`init` and `update` are traced by JAX. Updates Δ_i = x_i^K - x_s point downhill: servers ADD them (a gradient is -Δ).
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int32, Num, PyTree

from jaxafl import clock as protocols
from jaxafl.client import Client
from jaxafl.clock.contract import STARTS, Clock, Delivery
from jaxafl.device import weighted_sum
from jaxafl.options import Number, Part
from jaxafl.server.scheduled import Scheduled

Array = jax.Array
Tree = Any  # a pytree of arrays
TICKS = Delivery.REPEATED | Delivery.EMPTY | Delivery.BY_CLIENT
"""Properties of arrivals at ticks (`bernoulli`): a run may arrive again, a step may have none, entry i is client i."""


class Arrivals(NamedTuple):
    """Updates consumed by one server step, in delivery order.

    A is the number that the clock promises, N if entry i is client i, else a power of two that holds the largest step.
    A step may have fewer than A arrivals. The other entries are padding: their `delta`, `staleness`, `samples`,
    `local_steps` and `loss` are 0, and their other fields are undefined.

    Attributes:
        mask: bool [A], True for arrivals, False for padding.
        client: int32 [A], client indices.
        multiplicity: int32 [A], the number of times each update counts (2 for a client drawn twice).
        kind: int32 [A], kinds of the arrivals, as indices into `Clock.kinds`.
        delta: updates Δ_i = x_i^K - x_s, each leaf [A, ...].
        base: start models x_s, each leaf [A, ...], if `Needs.base`; otherwise `None`.
        staleness: int32 [A], τ = t - s; 0 for a fresh update.
        samples: float [A], sample counts n_i of the clients.
        local_steps: int32 [A], executed local steps. For a server that replies they are epochs, if `Client` counts
            epochs.
        loss: float [A], mini-batch loss, averaged over the local steps.
        step: int32, index t of the server step.
        time: float, simulated seconds.
        key: PRNG key for `jax.random`, derived from seed and server step; replicated over devices.
        validation_gradient: function (parameters, B) -> gradient of the mean loss on B samples of the validation set,
            drawn independently, or on all if B is `None`; 0 for parameters that are not sent. If `Needs.validation`.
        columns: the numbers that the clock gives by name with `fleet.step(..., name=value)`, int32 or float32, each a
            scalar or [A]; empty for a server that replies.
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
    validation_gradient: Callable[[Tree, int | None], Tree] | None = None
    columns: Mapping[str, Array] = {}  # an empty pytree

    @property
    def models(self) -> Tree:
        """Client models x_i^K = x_s + Δ_i, each leaf [A, ...], if `Needs.base`."""
        return jax.tree.map(jnp.add, self.base, self.delta)


class Needs(NamedTuple):
    """Requirements of a server on the engine.

    Attributes:
        base: `update` reads the start models x_s (`Arrivals.base`), so they are kept until the update is consumed.
        replies: `update` returns the number of local steps of a client's next run (`Outcome.next_steps`). The clock
            then runs between the calls of the program, each of which makes up to 16 server steps.
        client_rows: parameter-sized rows per client in the server's state. They keep members of a sweep with different
            schedules from advancing together, and a client's last update then counts in every later step, also for its
            privacy.
        client_models: every client trains from a separate model, returned as `Outcome.client_params`, instead of a
            global version. `Arrivals.base` is this model. Clients must not start before the step that replaces it.
        empty_steps: `update` is called for steps without arrivals, too. Otherwise an empty step changes nothing.
        validation: `update` calls `Arrivals.validation_gradient`, so the data must have a validation set.
    """

    base: bool = False
    replies: bool = False
    client_rows: int = 0
    client_models: bool = False
    empty_steps: bool = False
    validation: bool = False


class Outcome(NamedTuple):
    """Result of one server step.

    Attributes:
        params: next model x_{t+1}.
        state: next server state, with the tree structure that `init` returned.
        info: diagnostics of this step, scalars or [A]. They become variables of the result; their names must be unique.
            Those of padding become 0. Scalars of a step that changes nothing become NaN; integers and counters, 0.
        next_steps: int32 [A], local steps of each client's next run, 1 or more, if `Needs.replies` and only then.
        client_params: models of the arrived clients, each leaf [A, ...], if `Needs.client_models`.
        weights: float [A], weights w_i of the arrivals in the next non-trainable model state (batch statistics),
            (kept · s_t + Σ_i w_i s_i) / (kept + Σ_i w_i). `None`: their multiplicity.
        kept: weight of the state s_t of the server's model in this mean.
        served: model that clients get which start from this version; `None`: `params`, which are also evaluated.
    """

    params: PyTree[Num[Array, "..."]]
    state: Any
    info: Mapping[str, Array] = types.MappingProxyType({})
    next_steps: Int32[Array, " A"] | None = None
    client_params: PyTree[Num[Array, "A ..."]] | None = None
    weights: Float[Array, " A"] | None = None
    kept: Float[Array, ""] | float = 0.0
    served: PyTree[Num[Array, "..."]] | None = None


class Server(Part):
    """Base of servers, which turn the arrivals of a step into the next model.

    A number of a server, such as `learning_rate`, may be an Optax schedule: a function of the server step t (traced
    int32, from 0). `init`, `update` and `applied_rate` see its value at t; `init` that at 0.

    Attributes:
        requires: properties that a clock's arrivals must have.
        accepts: further properties that they may have. The default accepts stale updates of complete runs, with any
            multiplicity.
        needs: requirements on the engine. A subclass inherits them, also if it overrides `update`.
        buffer: arrivals per server step M in the paper, the command line's default. If M > 1, a clock with one
            arrival per step triggers a warning.
        local: options of local training in the paper, the command line's defaults.
        single: True for servers that step for every arrival, which refuse clocks with several per server step.
        drops: True if the server may leave out an update that it receives. Corrections that sum updates refuse it.
        clocks: names of the compatible clocks of jaxafl, derived from `requires`, `accepts` and `single`.
        counters: names of diagnostics that are also summed over the run, as attributes `count_...` of the result.
        meanings: descriptions of diagnostics, by name, for the result.

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
        >>> sorted(half_buff.clocks)
        ['compass', 'every_buffer', 'free_running', 'harmonic', 'stale_rounds', 'synchronous', 'warm_up']
    """

    requires: ClassVar[Delivery] = Delivery.NONE
    accepts: ClassVar[Delivery] = STARTS | Delivery.AGED | Delivery.MULTIPLE
    needs: ClassVar[Needs] = Needs()
    derives = False
    buffer: ClassVar[int] = 1
    local: ClassVar[dict[str, Any]] = {}
    single: ClassVar[bool] = False
    drops: ClassVar[bool] = False
    bounded: ClassVar[Any] = False
    clocks: ClassVar[frozenset[str]] = frozenset()
    counters: ClassVar[tuple[str, ...]] = ()
    meanings: ClassVar[dict[str, str]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if {"update", "weigh", "discounted"} & vars(cls).keys():  # what was said of the class before does not hold
            cls.bounded = vars(cls).get("bounded", False)
        named = [one for one in vars(protocols).values() if isinstance(one, type) and issubclass(one, Clock)]
        complete = [clock for clock in named if clock.steps is not Clock.steps]
        cls.clocks = frozenset(clock.name for clock in complete if not unfit(cls, clock))

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in dataclasses.fields(self):
            value, bounds = getattr(self, field.name), field.metadata.get("bounds")
            number = bounds and not (bounds.static or bounds.per_client)
            if number and callable(value) and not isinstance(value, Scheduled):
                object.__setattr__(self, field.name, Scheduled(value))

    @property
    def schedules(self) -> dict[str, Scheduled]:
        """The options that are schedules of server steps, by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Scheduled)}

    def at_step(self, step: Array | int) -> Self:
        """Returns the server with the values of its schedules at server step `step`."""
        schedules = self.schedules
        return dataclasses.replace(self, **{name: one(step) for name, one in schedules.items()}) if schedules else self

    def check(self, clock: Clock, client: Client, num_clients: int) -> None:
        """Raises `ValueError` for options that contradict each other, the clock or the client.

        The range of each single option is checked before this call.
        """

    def prepare(self, clock: Clock, client: Client, counts: np.ndarray, seed: int) -> tuple[Server, Client]:
        """Returns the server and the local training of a run, for example with tables of the clock or a scaled rate.

        Args:
            clock, client: clock and local training of the simulation.
            counts: int [N], sample counts n_i of the clients.
            seed: seed of the run.
        """
        return self, client

    def applied_rate(self, state: Any) -> Number | None:
        """Returns the learning rate of the step that produced `state`; `None` if unknown.

        It is recorded as `server_rate` if `update` reports no rate. The default is the option `learning_rate`.
        """
        return getattr(self, "learning_rate", None)

    def init(self, params: Tree, samples: Array) -> Any:
        """Returns the state before the first server step, a pytree. `samples`: float [N], sample counts n_i."""
        return ()

    def begun(self, state: Any) -> Any:
        """Returns the state with which a further phase begins, see `Simulation.init(start=)`.

        The clock of the new phase counts its server steps and rounds from 0. A server whose state refers to them
        overrides this method.
        """
        return state

    def update(self, params: Tree, state: Any, arrivals: Arrivals) -> Outcome:
        """Computes the next model from the arrivals of one step."""
        raise NotImplementedError(f"the server {self.name} has no update(params, state, arrivals)")


def unfit(server: type[Server] | Server, clock: type[Clock] | Clock) -> str:
    """Returns the reason why a server does not run on a clock; empty if it does."""
    missing = server.requires & ~clock.delivers
    if missing:
        return f"it needs arrivals that are {missing.words}"
    # servers may never reply; a step without arrivals changes nothing, see `Needs`
    harmless = Delivery.REPLIES | Delivery.EMPTY | (Delivery.NONE if server.single else Delivery.SEVERAL)
    foreign = clock.delivers & ~server.accepts & ~server.requires & ~harmless
    return f"it does not accept arrivals that are {foreign.words}" if foreign else ""


def counts(arrivals: Arrivals) -> Array:
    """Returns the multiplicity of each update, float [A]; 0 for padding."""
    return jnp.where(arrivals.mask, arrivals.multiplicity, 0).astype(arrivals.samples.dtype)


def shares(weights: Array) -> Array:
    """Divides weights by their sum, or by 1 if the sum is smaller; returns 0 for a step without arrivals."""
    return weights / jnp.maximum(jnp.sum(weights), 1)


def mean_delta(arrivals: Arrivals) -> Tree:
    """Computes (1/M) Σ Δ_i over the arrivals, with multiplicity; returns 0 for a step without arrivals."""
    return weighted_sum(shares(counts(arrivals)), arrivals.delta)


def stepped(params: Tree, rate: Number, direction: Tree) -> Tree:
    """Computes x + rate · direction, in the dtype of x."""
    return jax.tree.map(lambda x, d: x + jnp.asarray(rate, x.dtype) * d, params, direction)


def first_of(tree: Tree) -> Tree:
    """Returns the first entry of every leaf [A, ...], that of the only arrival of a server with `single`."""
    return jax.tree.map(lambda leaf: leaf[0], tree)


def norm(tree: Tree) -> Array:
    """Computes ‖tree‖₂ over all leaves as one vector."""
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)))
