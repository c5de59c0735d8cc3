"""One run, as durations see it, and what they draw for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from jaxafl.device import cpu
from jaxafl.device.dependence import inputs_read
from jaxafl.device.key_leaves import pack, unpack
from jaxafl.device.keys import Key, Purpose, jax_key, purpose_key, words_of
from jaxafl.options import UserError

Array = jax.Array


class Run(NamedTuple):
    """Arguments of a duration: one run of one client."""

    client: Array  # int32, whose run
    run: Array  # int32, index among the runs of this client
    local_steps: Array  # int32, local steps that the run makes
    longest: Array  # float64, the longest run that started before this one, hangs excluded, in seconds
    now: Array | float = math.nan  # float64, simulated seconds at which it starts; NaN where nobody said


class Draw(NamedTuple):
    """A duration in simulated seconds."""

    work: Array  # float64, time worked
    hang: Array  # float64, time hung (not doing anything)


def stream_keys(key: Key, duration: Any) -> list[Key]:
    """One key per term: adding a term on the right leaves the draws of the others as they were."""
    return [purpose_key(key, Purpose.DURATION, index) for index in range(duration.terms)]


def prepared_of(duration: Any, keys: Sequence[Key], num_clients: int) -> Any:
    """Returns the packed result of a duration's `prepare`; a user's own class gets keys that `jax.random` takes."""
    own = type(duration).__module__.startswith("jaxafl.")
    return pack(duration.prepare(keys if own else [jax_key(words_of(key)) for key in keys], num_clients))


def worked(time: Array) -> Draw:
    """A duration without any hang."""
    return Draw(time, jnp.zeros_like(time))


def draw_of(duration: Any, prepared: Any, run: Run) -> Draw:
    """Returns the `draw` of a duration; raises `ValueError` if that is no `Draw` of two numbers."""
    try:
        made = duration.draw(unpack(prepared), run)
    except AttributeError as error:
        if isinstance(error.obj, Run):
            known = ", ".join(Run._fields)
            raise UserError(
                f"the duration {duration.name} reads run.{error.name}, and all that is known of a run when it starts "
                f"is {known}"
            ) from error
        raise
    if not isinstance(made, Draw) or any(jnp.shape(part) != jnp.shape(run.client) for part in made):
        raise UserError(
            f"the duration {duration.name}: draw(prepared, run) must return jaxafl.clock.Draw(work, hang), two numbers "
            f"in seconds, as jaxafl.clock.worked(seconds) makes them; it returned {made!r:.200}"
        )
    return made


def reads(duration: Any, num_clients: int) -> dict[str, tuple[bool, bool]]:
    """For every field of `Run`, whether the work of a run depends on it, and whether its hang does; by tracing `draw`.

    Args:
        duration: the duration.
        num_clients: N.
    """

    def draw(key: Key, run: Run) -> Draw:
        return draw_of(duration, prepared_of(duration, stream_keys(key, duration), num_clients), run)

    with jax.enable_x64(True), jax.default_device(cpu()):
        kinds = (jnp.uint32, jnp.int32, jnp.float64)
        word, whole, real = (cast(Array, jax.ShapeDtypeStruct((), kind)) for kind in kinds)
        jaxpr = jax.make_jaxpr(draw)((word, word), Run(whole, whole, whole, real, real)).jaxpr
    work, hang = (inputs_read(jaxpr, wanted)[2:] for wanted in ((True, False), (False, True)))
    return dict(zip(Run._fields, zip(work, hang, strict=True), strict=True))
