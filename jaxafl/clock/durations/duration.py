"""Durations of local runs: distributions that compose with + and ×.

A duration is a frozen dataclass (`jaxafl.pytrees.pytree`) that inherits from `Composable`, which adds + and ×, with

    terms                          the number of independent draws it makes: each has its own random stream, numbered
                                   from the left
    check(num_clients)             raises `ValueError` for numbers that cannot be durations, before compilation
    prepare(keys, num_clients)     what is drawn or looked up once per client, a pytree, computed once; `keys`: one per
                                   term
    draw(prepared, run) -> Draw    the duration of one run: `Run` -> `Draw`

`prepare` and `draw` are traced by JAX in float64. Times are in simulated seconds. Random numbers in [0, 1) come from
`jaxafl.keys`: `uniform(per_run(key, run.client, run.run), jnp.float64)` for every run, with `per_client(key,
run.client)` once for a client.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from jaxafl.checks import shown
from jaxafl.keys import Key, Purpose, purpose_key
from jaxafl.pytrees import pytree

Array = jax.Array


class Run(NamedTuple):
    """What a duration may depend on: one run of one client.

    Attributes:
        client: int32, whose run.
        run: int32, index among the runs of this client.
        local_steps: int32, local steps that the run makes.
        longest: float64, the longest run that started before this one, hangs excluded, in seconds.
        now: float64, simulated seconds at which it starts; NaN where nobody said.
    """

    client: Array
    run: Array
    local_steps: Array
    longest: Array
    now: Array | float = math.nan


class Draw(NamedTuple):
    """A duration in simulated seconds.

    Attributes:
        work: float64, time worked.
        hang: float64, time hung (not doing anything).
    """

    work: Array
    hang: Array


class Duration(Protocol):
    """What every duration has; `help(jaxafl.clock.durations.duration)` says what each member is."""

    @property
    def terms(self) -> int: ...
    def check(self, num_clients: int) -> None: ...
    def prepare(self, keys: Sequence[Key], num_clients: int) -> Any: ...
    def draw(self, prepared: Any, run: Run) -> Draw: ...
    def __add__(self, other: Any) -> Any: ...
    def __mul__(self, other: Any) -> Any: ...


def stream_keys(key: Key, duration: Duration) -> list[Key]:
    """One key per term: adding a term on the right leaves the draws of the others as they were."""
    return [purpose_key(key, Purpose.DURATION, index) for index in range(duration.terms)]


class Composable:
    """The operators + and × of durations (a plain number stands for a constant); every duration inherits from it."""

    __array_ufunc__ = None  # an array on the left leaves the operation to the duration

    @property
    def frozen(self) -> float:
        """Seconds that every server step adds to the clock, in which no client computes."""
        return 0.0

    @property
    def depends_on_start(self) -> bool:
        """Whether a run's duration depends on when it starts (`Run.now`)."""
        return False

    def __add__(self, other: Any) -> Sum:
        return Sum(self, _as_duration(other))

    def __radd__(self, other: Any) -> Sum:
        return Sum(_as_duration(other), self)

    def __mul__(self, other: Any) -> Product:
        return Product(self, _as_duration(other))

    def __rmul__(self, other: Any) -> Product:
        return Product(_as_duration(other), self)


@pytree
class Sum(Composable):
    """The sum of two durations."""

    left: Any
    right: Any

    @property
    def terms(self) -> int:
        return self.left.terms + self.right.terms

    @property
    def frozen(self) -> float:
        return self.left.frozen + self.right.frozen

    @property
    def depends_on_start(self) -> bool:
        return self.left.depends_on_start or self.right.depends_on_start

    def check(self, num_clients: int) -> None:
        if self.frozen and self.depends_on_start:
            raise ValueError(
                "availability (device_trace) needs to know when runs start, which transfers that stop everyone "
                "(mac_network) shift: give mac_network(freeze=False)"
            )
        self.left.check(num_clients)
        self.right.check(num_clients)

    def prepare(self, keys: Sequence[Key], num_clients: int) -> Any:
        cut = self.left.terms
        return self.left.prepare(keys[:cut], num_clients), self.right.prepare(keys[cut:], num_clients)

    def draw(self, prepared: Any, run: Run) -> Draw:
        left, right = self.left.draw(prepared[0], run), self.right.draw(prepared[1], run)
        return Draw(left.work + right.work, left.hang + right.hang)


@pytree
class Product(Composable):
    """The product of two durations: a time and a dimensionless factor."""

    left: Any
    right: Any

    @property
    def terms(self) -> int:
        return self.left.terms + self.right.terms

    def check(self, num_clients: int) -> None:
        if self.left.frozen or self.right.frozen:
            raise ValueError(
                "a duration with transfers that stop everyone (mac_network) can be added to, not multiplied"
            )
        if self.left.depends_on_start or self.right.depends_on_start:
            raise ValueError(
                "a duration that waits until a device is available (device_trace) can be added to, not multiplied: "
                "its work would not lie in the times at which the device is"
            )
        self.left.check(num_clients)
        self.right.check(num_clients)

    def prepare(self, keys: Sequence[Key], num_clients: int) -> Any:
        cut = self.left.terms
        return self.left.prepare(keys[:cut], num_clients), self.right.prepare(keys[cut:], num_clients)

    def draw(self, prepared: Any, run: Run) -> Draw:
        left, right = self.left.draw(prepared[0], run), self.right.draw(prepared[1], run)
        work = left.work * right.work
        return Draw(work, (left.work + left.hang) * (right.work + right.hang) - work)


def worked(time: Array) -> Draw:
    """A duration without any hang."""
    return Draw(time, jnp.zeros_like(time))


def _as_duration(value: Any) -> Any:
    if hasattr(value, "draw"):
        return value
    from jaxafl.clock.durations.distributions import constant

    try:
        return constant(value)
    except TypeError:
        raise TypeError(
            "a duration is added to, or multiplied by, a duration, a number or one number per client, "
            f"got {shown(value)}"
        ) from None
