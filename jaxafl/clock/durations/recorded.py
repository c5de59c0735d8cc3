"""Durations from the user's array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxafl.checks import as_array, shown
from jaxafl.clock.durations.duration import Composable, Draw, Run, worked
from jaxafl.keys import Key
from jaxafl.pytrees import pytree, static


@pytree
class Recorded(Composable):
    """See `recorded`."""

    times: Any
    per: str = static(default="run")

    terms = 0

    def check(self, num_clients: int) -> None:
        times = np.asarray(self.times)
        if times.ndim != 2 or times.shape[0] != num_clients or times.shape[1] == 0:
            raise ValueError(
                f"recorded durations must be an array [client, run] with {num_clients} clients and at least one run "
                f"each, got shape {times.shape}"
            )
        if self.per not in ("run", "step"):
            raise ValueError(f"recorded durations: per must be 'run' or 'step', got {self.per!r}")
        bad = np.argwhere(~(np.isfinite(times) & (times >= 0)))
        if len(bad):
            client, run = bad[0]
            raise ValueError(
                f"recorded durations must be finite numbers >= 0; {len(bad)} are not, the first of them is "
                f"{times[client, run]} (client {client}, run {run})"
            )

    def prepare(self, keys: Sequence[Key], num_clients: int) -> Any:
        return jnp.asarray(self.times, jnp.float64)

    def draw(self, prepared: Any, run: Run) -> Draw:
        inside = run.run < prepared.shape[1]
        time = jnp.where(inside, prepared[run.client, jnp.minimum(run.run, prepared.shape[1] - 1)], jnp.nan)
        return worked(time * run.local_steps if self.per == "step" else time)


def recorded(times: Any, per: str = "run") -> Recorded:
    """Durations replayed from an array [client, run] in seconds (seconds per local step with `per="step"`).

    Runs are counted per client in the order they start. A schedule that needs a run past the last column is an error
    that says at which dispatch.

    Args:
        times: seconds >= 0, an array [client, run].
        per: `"run"`, or `"step"` for seconds per local step, multiplied by the run's number of local steps.

    Raises:
        ValueError: `times` has rows of different lengths.
        TypeError: it holds something else than numbers.
    """
    array = as_array("recorded durations", "times", times)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"recorded durations must be an array [client, run] of seconds, got {shown(times)}")
    return Recorded(array.astype(np.float64), per)
