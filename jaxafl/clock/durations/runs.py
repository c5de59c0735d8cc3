"""`Run`, the argument of durations, and `Draw`, their result."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp

from jaxafl.device import float64_on_cpu
from jaxafl.device.dependence import inputs_read
from jaxafl.device.keys import Key, Purpose, jax_key, pack, purpose_key, unpack, words_of
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


def stream_keys(key: Key, duration: Any) -> list[Key]:
    """Derives one key per term; a term added on the right does not change the draws of the others."""
    return [purpose_key(key, Purpose.DURATION, index) for index in range(duration.terms)]


def prepared_of(duration: Any, keys: Sequence[Key], num_clients: int) -> Any:
    """Returns the packed result of a duration's `prepare`; a user-defined class gets keys for `jax.random`."""
    shipped = type(duration).__module__.startswith("jaxafl.")
    return pack(duration.prepare(keys if shipped else [jax_key(words_of(key)) for key in keys], num_clients))


def with_size(part: P, size: Callable[[], tuple[int, int]]) -> P:
    """Returns a clock or duration with its durations for runs that send `size()` bytes, up and down."""
    parts = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}  # type: ignore[arg-type]
    own = {name: old for name, old in parts.items() if hasattr(old, "prepare_size") and not isinstance(old, type)}
    changes = {name: old.prepare_size(size) for name, old in own.items()}
    changes = {name: new for name, new in changes.items() if new is not parts[name]}
    return dataclasses.replace(part, **changes) if changes else part  # type: ignore[type-var]


def worked(time: Array) -> Draw:
    """Returns a duration without hang."""
    return Draw(time, jnp.zeros_like(time))


def draw_of(duration: Any, prepared: Any, run: Run) -> Draw:
    """Returns the `draw` of a duration; raises `ValueError` unless it is a `Draw` of two numbers."""
    try:
        with traced_method(f"the duration {duration.name}", "draw", "the keys of `prepare`"):
            drawn = duration.draw(unpack(prepared), run)
    except AttributeError as error:
        if isinstance(error.obj, Run):
            known = ", ".join(Run._fields)
            raise UserError(
                f"the duration {duration.name} reads run.{error.name}, and all that is known of a run when it starts "
                f"is {known}"
            ) from error
        raise
    if not isinstance(drawn, Draw) or any(jnp.shape(part) != jnp.shape(run.client) for part in drawn):
        raise UserError(
            f"the duration {duration.name}: draw(prepared, run) must return jaxafl.clock.Draw(work, hang), two numbers "
            f"in seconds, as jaxafl.clock.worked(seconds) makes them; it returned {drawn!r:.200}"
        )
    return drawn


def reads(duration: Any, num_clients: int) -> dict[str, tuple[bool, bool]]:
    """Finds the fields of `Run` on which the work and the hang of a run depend, by tracing `draw`.

    Returns two bools per field: True if the work depends on it, and True if the hang does.

    Args:
        duration: the duration.
        num_clients: N.
    """

    def draw(key: Key, run: Run) -> Draw:
        rest = duration.without_shared()
        return draw_of(rest, prepared_of(rest, stream_keys(key, duration), num_clients), run)

    with float64_on_cpu():
        kinds = (jnp.uint32, jnp.int32, jnp.float64)
        word, integer, real = (cast(Array, jax.ShapeDtypeStruct((), kind)) for kind in kinds)
        jaxpr = jax.make_jaxpr(draw)((word, word), Run(integer, integer, integer, real, real)).jaxpr
    work, hang = (inputs_read(jaxpr, wanted)[2:] for wanted in ((True, False), (False, True)))
    return dict(zip(Run._fields, zip(work, hang, strict=True), strict=True))
