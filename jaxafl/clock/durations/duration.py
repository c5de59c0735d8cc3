"""Durations of local runs, which compose with + and ×, and are divided by numbers.

A duration inherits from `Duration`; its options are its fields (see `jaxafl.options`). `prepare` and `draw` are traced
by JAX in float64, and times are in simulated seconds. Random numbers in [0, 1) come from `jaxafl.device.keys`:
`uniform(per_run(key, run.client, run.run), jnp.float64)` for every run, with `per_client(key, run.client)` once for a
client.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.device import float64_on_cpu
from jaxafl.device.keys import Key, Purpose, jax_key, per_client, per_run, purpose_key, seed_key, uniform
from jaxafl.options import Number, Part, UserError, number, static
from jaxafl.options.user_code import traced_method

Array = jax.Array
Per: TypeAlias = Literal["client", "run", "step"]
Times: TypeAlias = tuple[np.ndarray, np.ndarray]
POINTS = 4096  # equally likely values that represent a distribution
P = TypeVar("P")


class Run(NamedTuple):
    """One run of one client, the argument of a duration."""

    client: Array  # int32, client index
    run: Array  # int32, index among the client's runs
    local_steps: Array  # int32, number of local steps
    longest: Array  # float64, seconds of the longest run that started earlier, without hangs; it may only add time
    now: Array | float = np.nan  # float64, start of the run in simulated seconds; NaN if unknown


class Draw(NamedTuple):
    """Duration of a run in simulated seconds."""

    work: Array  # float64, working time
    hang: Array  # float64, idle time


def worked(time: Array) -> Draw:
    """Returns a duration without hang."""
    return Draw(time, jnp.zeros_like(time))


def prepared_for(num_clients: int, duration: Any, key: Key) -> Any:
    """Returns what `prepare` makes of one key per term; a term added on the right keeps the draws of the others."""
    keys = [jax_key(purpose_key(key, Purpose.DURATION, index)) for index in range(duration.terms)]
    return duration.prepare(keys, num_clients)


def share_of(key: Array, client: Array, run: Array | None = None) -> Array:
    """Draws a number in [0, 1), float64, for a client or for one of its runs."""
    return uniform(per_client(key, client) if run is None else per_run(key, client, run), jnp.float64)


def of_client(numbers: Any, client: Array) -> Array:
    """Returns a client's entry of an option that is a number or one per client, in float64."""
    values = jnp.float64(numbers)
    return values[client] if values.ndim else values


def draw_of(duration: Any, prepared: Any, run: Run) -> Draw:
    """Returns the `draw` of a duration; raises `ValueError` unless it is a `Draw` of two numbers."""
    with traced_method(f"the duration {duration.name}", "draw", "the keys of `prepare`"):
        drawn = duration.draw(prepared, run)
    if not isinstance(drawn, Draw) or {*map(jnp.shape, drawn)} != {jnp.shape(run.client)}:
        raise UserError(
            f"the duration {duration.name}: draw(prepared, run) must return jaxafl.clock.Draw(work, hang), two numbers "
            f"in seconds, as jaxafl.clock.worked(seconds) makes them; it returned {drawn!r:.200}"
        )
    return drawn


def by_steps(seconds: Callable[[int], np.ndarray], samples: Sequence[int]) -> tuple[np.ndarray, np.ndarray, bool]:
    """Returns the latency of runs, their time per local step, and if they last latency + local steps · time per step.

    Args:
        seconds: function from local steps to the seconds of runs, float64 [...].
        samples: numbers of local steps, besides 0 and 1, that are compared.
    """
    latency = seconds(0)
    with np.errstate(invalid="ignore"):  # infinite durations
        per_step = seconds(1) - latency
        close = (np.allclose(seconds(k) - latency, k * per_step, rtol=1e-6, equal_nan=True) for k in samples)
        return latency, per_step, all(close)


def reads(duration: Any, num_clients: int) -> set[str]:
    """Finds the fields of `Run` on which the draws of a duration depend.

    Args:
        duration: the duration.
        num_clients: N.
    """

    def draw(run: Run) -> Draw:
        return draw_of(duration, prepared_for(num_clients, duration, seed_key(0)), run)

    with float64_on_cpu():
        whole: Any = jax.ShapeDtypeStruct((), jnp.int32)
        seconds: Any = jax.ShapeDtypeStruct((), jnp.float64)
        traced = jax.make_jaxpr(draw)(Run(whole, whole, whole, seconds, seconds)).jaxpr
    used = {id(one) for equation in traced.eqns for one in equation.invars} | {*map(id, traced.outvars)}
    return {name for name, one in zip(Run._fields, traced.invars, strict=True) if id(one) in used}


class ByOptions:
    """Descriptor for an attribute of a part (`Clock.delivers`, `Duration.terms`) that depends on its options."""

    def __init__(self, default: Any, of: Callable[[Any], Any]) -> None:
        """Takes the value with default options, which the class has, and the value of an instance."""
        self.default = default
        self.of = of

    def __get__(self, part: Any, owner: type) -> Any:
        return self.default if part is None else self.of(part)


def with_size(part: P, size: Callable[[], tuple[int, int]]) -> P:
    """Returns a clock or duration with its durations for runs that send `size()` bytes, up and down."""
    changes = {}
    for field in dataclasses.fields(part):  # type: ignore[arg-type]
        old = getattr(part, field.name)
        if isinstance(old, Duration) and (new := old.prepare_size(size)) is not old:
            changes[field.name] = new
    return dataclasses.replace(part, **changes) if changes else part  # type: ignore[type-var]


class Duration(Part):
    """Base of durations, with the operators + and × (a plain number stands for a constant).

    Attributes:
        terms: number of independent draws, each with a separate random stream, numbered from the left.
        pause: simulated seconds per server step in which no client computes.
        waits: True if runs wait for times at which their client is available.

    Examples:
        >>> import jaxafl as afl
        >>> durations = 1 + 2 * afl.clock.constant(0.1, per="step")  # seconds of a run
        >>> durations
        constant(value=1) + constant(value=2) * constant(value=0.1, per='step')
        >>> clock = afl.clock.free_running(concurrency=2, durations=durations)
        >>> afl.clock.schedule(clock, num_clients=3, local_steps=10, server_steps=4).time.tolist()
        [3.0, 3.0, 6.0, 6.0]
    """

    __array_ufunc__ = None  # an array on the left leaves the operation to the duration

    terms: ClassVar[int] = 1
    pause: ClassVar[float] = 0.0
    waits: ClassVar[bool] = False

    def check(self, num_clients: int) -> None:
        """Raises `ValueError` for options that contradict each other; single options are checked before."""

    prepare_size = with_size

    def transport(self) -> Any:
        """Returns the transfers of one schedule over a link that runs share, or `None` without one.

        Raises:
            ValueError: transfers of all clients are within a duration that is not a sum.
        """
        for field in dataclasses.fields(self):
            part = getattr(self, field.name)
            if isinstance(part, Duration) and (part.pause > self.pause or part.transport() is not None):
                raise UserError(
                    f"{self!r:.100}: link(shared=...) and mac_network serve all runs, and can only be added to other "
                    "durations: other + link(shared=...). Or give link(up=...), or mac_network(freeze=False)"
                )
        return None

    def prepare(self, keys: Sequence[Array], num_clients: int) -> Any:
        """Draws or reads values that are fixed per client, and returns them as a pytree.

        Args:
            keys: one key per term, for `jax.random` and for `jaxafl.device.keys`. `jax.random.fold_in(key, client)` is
                a key of one client, `jax_key(per_run(key, client, run))` a key of one run.
            num_clients: N.
        """
        return tuple(keys)

    def draw(self, prepared: Any, run: Run) -> Draw:
        """Draws the duration of one run."""
        raise NotImplementedError(f"the duration {self.name} has no draw(prepared, run)")

    def step_times(self, num_clients: int, seed: int = 0) -> Times:
        """Computes the seconds of a run that do not depend on its local steps, and the seconds per local step.

        Args:
            num_clients: N.
            seed: seed of the run, for draws per client.

        Returns:
            Two float64 arrays [N, R] of equally likely values. A single distribution drawn per run or step gives the
            midpoints of R = 4096 equal parts of its distribution function, also if it is constant. Recorded durations
            give the recorded runs. Others give R = 4096 draws, or R = 1 if no client's values vary from run to run.

        Raises:
            ValueError: recorded durations are part of a sum or product. Or a duration depends on the start of a run,
                on earlier or other runs, or on local steps other than linearly.
        """
        if self.transport() is not None:
            raise UserError(f"the expectations of {self!r:.100} depend on the transfers of others: give a normaliser")
        read = reads(self, num_clients)
        for field, words in (("now", "when a run starts"), ("longest", "the longest run before it")):
            if field in read:
                raise UserError(f"the expectations of {self!r:.100} depend on {words} (Run.{field}): give a normaliser")
        with float64_on_cpu():
            latency, per_step = self._sample(num_clients, seed, 2)
            # if the times of only some clients vary, all clients are sampled
            if np.array_equal(*latency.T) and np.array_equal(*per_step.T):
                return latency[:, :1], per_step[:, :1]
            latency, per_step = self._sample(num_clients, seed, POINTS)
        if not (np.isfinite(latency) & np.isfinite(per_step)).all():
            raise UserError(
                f"the expectations of {self!r:.100}, a sum or product with recorded durations, are unknown: give a "
                "normaliser"
            )
        return latency, per_step

    def _sample(self, num_clients: int, seed: int, runs: int) -> Times:
        """Draws the values of `step_times` for the first `runs` runs of every client."""
        prepared = prepared_for(num_clients, self, seed_key(seed))

        def lasting(client: Array, run: Array, steps: int) -> Array:
            return sum(draw_of(self, prepared, Run(client, run, jnp.int32(steps), jnp.float64(0))))  # type: ignore[return-value]

        grid = jax.vmap(jax.vmap(lasting, (None, 0, None)), (0, None, None))
        clients = jnp.arange(num_clients, dtype=jnp.int32)
        order = jnp.arange(runs, dtype=jnp.int32)
        latency, per_step, fits = by_steps(lambda steps: np.asarray(grid(clients, order, steps)), (2,))
        if not fits:
            raise UserError(f"{self!r:.100} is not latency + local steps · time per step: give a normaliser")
        return latency, per_step

    def __add__(self, other: Any) -> Duration:
        return Sum(self, _as_duration(other))

    def __radd__(self, other: Any) -> Duration:
        return Sum(_as_duration(other), self)

    def __mul__(self, other: Any) -> Duration:
        return Product(self, _as_duration(other))

    def __rmul__(self, other: Any) -> Duration:
        return Product(_as_duration(other), self)

    def __truediv__(self, number: Any) -> Duration:
        if isinstance(number, int | float | np.number) and not isinstance(number, bool) and number:
            return self * (1 / float(number))
        return NotImplemented


class Hours(Duration):
    """Base of durations that wait for a client's hours; as `hours=` of a clock, it is not drawn outside of them.

    A subclass defines `until`, and `prepare`, which returns what `until` reads, each leaf [N].
    """

    waits = True

    def until(self, numpy: Any, prepared: Any, now: Any) -> Any:
        """Returns the seconds until the hours begin, 0 within them, with the functions of NumPy or of JAX."""

    def hours_of(self, seed: int, num_clients: int) -> Callable[[float], np.ndarray]:
        """Returns a function now -> seconds until each client's hours begin, float64 [N], for hours of a clock."""
        with float64_on_cpu():
            drawn = prepared_for(num_clients, self, purpose_key(seed_key(seed), Purpose.HOURS))
            prepared = jax.tree.map(np.asarray, drawn)
        return functools.partial(self.until, np, prepared)

    def draw(self, prepared: Any, run: Run) -> Draw:
        own = jax.tree.map(lambda column: jnp.asarray(column)[run.client], prepared)
        wait = self.until(jnp, own, run.now)
        return Draw(jnp.zeros_like(wait), wait)


class Pair(Duration):
    """Base of durations that are composed of two."""

    left: Duration
    right: Duration

    terms = ByOptions(2, lambda pair: pair.left.terms + pair.right.terms)
    waits = ByOptions(False, lambda pair: pair.left.waits or pair.right.waits)

    def check(self, num_clients: int) -> None:
        self.left.check(num_clients)
        self.right.check(num_clients)

    def prepare(self, keys: Sequence[Array], num_clients: int) -> Any:
        cut = self.left.terms
        return self.left.prepare(keys[:cut], num_clients), self.right.prepare(keys[cut:], num_clients)


class Sum(Pair):
    """The sum of two durations."""

    pause = ByOptions(0.0, lambda pair: pair.left.pause + pair.right.pause)

    def __repr__(self) -> str:
        return f"{self.left} + {self.right}"

    def transport(self) -> Any:
        left, right = self.left.transport(), self.right.transport()
        if left is not None and right is not None:
            raise UserError(f"{self!r:.100}: expected at most one link(shared=...), got several. Leave one out")
        return right if left is None else left

    def draw(self, prepared: Any, run: Run) -> Draw:
        left = draw_of(self.left, prepared[0], run)
        right = draw_of(self.right, prepared[1], run)
        return Draw(left.work + right.work, left.hang + right.hang)


class Product(Pair):
    """The product of two durations: a time and a dimensionless factor."""

    def __repr__(self) -> str:
        return " * ".join(f"({side})" if isinstance(side, Sum) else f"{side}" for side in (self.left, self.right))

    def check(self, num_clients: int) -> None:
        if self.waits:
            raise ValueError(
                f"{self}: a duration whose waits depend on the time at which a run starts (as device_trace with "
                "availability, until the device is ready) can be added to, not multiplied: its work would not lie in "
                "the times for which it waits"
            )
        super().check(num_clients)

    def draw(self, prepared: Any, run: Run) -> Draw:
        left = draw_of(self.left, prepared[0], run)
        right = draw_of(self.right, prepared[1], run)
        work = left.work * right.work
        hang = (left.work + left.hang) * (right.work + right.hang) - work
        return Draw(work, jnp.where(jnp.isinf(work), 0, hang))  # inf - inf would be NaN


class Distribution(Duration):
    """Base of durations with independent draws, computed by inverting a distribution function at a uniform number.

    Options are numbers, or arrays [N] with one number per client. `per` is the unit of a draw: one per client, one per
    run, or one per run as a time per local step, which the run's number of local steps multiplies.

    Attributes:
        per: unit of a draw; an option of distributions that support several units.
    """

    per = "run"

    def quantile(self, u: Array) -> Array:
        """Returns the seconds below which a fraction `u` of the draws lies, for one client's options."""
        raise NotImplementedError(f"the distribution {self.name} has no quantile(u)")

    def draw(self, prepared: Any, run: Run) -> Draw:
        (key,) = prepared
        own = jax.tree.map(lambda one: of_client(one, run.client), self)
        time = own.quantile(share_of(key, run.client, None if self.per == "client" else run.run))
        return worked(time * run.local_steps if self.per == "step" else time)

    def step_times(self, num_clients: int, seed: int = 0) -> Times:
        if self.per == "client" or type(self).draw is not Distribution.draw:
            return super().step_times(num_clients, seed)
        with float64_on_cpu():
            every = jax.tree.map(lambda one: jnp.broadcast_to(jnp.float64(one), num_clients)[:, None], self)
            shares = (jnp.arange(POINTS, dtype=jnp.float64) + 0.5) / POINTS
            drawn = np.asarray(every.quantile(shares[None, :]))
        return (np.zeros_like(drawn), drawn) if self.per == "step" else (drawn, np.zeros_like(drawn))


class constant(Distribution):
    """Constant time.

    Args:
        value: time in seconds (per local step with `per="step"`), at least 0; a number or an array [N], one per client.
            With infinity a run never arrives.
        per: unit of the value. `"run"` or `"client"`: seconds per run. `"step"`: seconds per local step, multiplied by
            the run's number of local steps.
    """

    value: Number = number(least=0, per_client=True, infinite=True)
    per: Per = static(default="run")

    def quantile(self, u: Array) -> Array:
        return 0 * u + self.value


def _as_duration(value: Any) -> Duration:
    return value if isinstance(value, Duration) else constant(value)
