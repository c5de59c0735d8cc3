"""`Run`, the argument of durations, and `Draw`, their result."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from jaxafl.device import float64_on_cpu
from jaxafl.device.keys import Key, Purpose, jax_key, purpose_key, seed_key
from jaxafl.device.user_code import traced_method
from jaxafl.options import UserError

Array = jax.Array
P = TypeVar("P")


class Run(NamedTuple):
    """One run of one client, the argument of a duration."""

    client: Array  # int32, client index
    run: Array  # int32, index among the client's runs
    local_steps: Array  # int32, number of local steps
    longest: Array  # float64, longest of the runs that started earlier in seconds, hangs excluded
    now: Array | float = math.nan  # float64, start of the run in simulated seconds; NaN if unknown


class Draw(NamedTuple):
    """Duration of a run in simulated seconds."""

    work: Array  # float64, working time
    hang: Array  # float64, idle time


def stream_keys(key: Key, duration: Any) -> list[Array]:
    """Derives one key per term; a term added on the right does not change the draws of the others."""
    return [jax_key(purpose_key(key, Purpose.DURATION, index)) for index in range(duration.terms)]


def with_size(part: P, size: Callable[[], tuple[int, int]]) -> P:
    """Returns a clock or duration with its durations for runs that send `size()` bytes, up and down."""
    parts = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}  # type: ignore[arg-type]
    own = {name: old for name, old in parts.items() if hasattr(old, "prepare_size") and not isinstance(old, type)}
    changes = {name: new for name, old in own.items() if (new := old.prepare_size(size)) is not old}
    return dataclasses.replace(part, **changes) if changes else part  # type: ignore[type-var]


def worked(time: Array) -> Draw:
    """Returns a duration without hang."""
    return Draw(time, jnp.zeros_like(time))


def draw_of(duration: Any, prepared: Any, run: Run) -> Draw:
    """Returns the `draw` of a duration; raises `ValueError` unless it is a `Draw` of two numbers."""
    with traced_method(f"the duration {duration.name}", "draw", "the keys of `prepare`"):
        drawn = duration.draw(prepared, run)
    if not isinstance(drawn, Draw) or any(jnp.shape(part) != jnp.shape(run.client) for part in drawn):
        raise UserError(
            f"the duration {duration.name}: draw(prepared, run) must return jaxafl.clock.Draw(work, hang), two numbers "
            f"in seconds, as jaxafl.clock.worked(seconds) makes them; it returned {drawn!r:.200}"
        )
    return drawn


def reads(duration: Any, num_clients: int) -> set[str]:
    """Finds the fields of `Run` that `draw` of a duration reads.

    Args:
        duration: the duration.
        num_clients: N.
    """
    seen: set[str] = set()

    class Watched(Run):
        def __getattribute__(self, name: str) -> Any:
            seen.update({name} & {*Run._fields})
            return super().__getattribute__(name)

        def __iter__(self) -> Any:
            seen.update(Run._fields)
            return super().__iter__()

    def draw(client: Array, seconds: Array) -> None:
        rest = duration.without_shared()
        prepared = rest.prepare(stream_keys(seed_key(0), duration), num_clients)
        draw_of(rest, prepared, Watched(client, client, client, seconds, seconds))

    with float64_on_cpu():
        jax.eval_shape(draw, jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((), jnp.float64))
    return seen
