"""AsyncFedED's hanging clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import jax.numpy as jnp

from jaxafl.checks import check_number
from jaxafl.clock.durations.duration import Composable, Draw, Run
from jaxafl.keys import Key, per_run, uniform
from jaxafl.pytrees import pytree


@pytree
class Suspension(Composable):
    """See `suspension`."""

    probability: Any

    terms = 2
    references: ClassVar[tuple[str, ...]] = ("wang2022asyncfeded",)

    def check(self, num_clients: int) -> None:
        check_number("suspension", "probability", self.probability, least=0, most=1)

    def prepare(self, keys: Sequence[Key], num_clients: int) -> Sequence[Key]:
        return tuple(keys)

    def draw(self, prepared: Sequence[Key], run: Run) -> Draw:
        hits = uniform(per_run(prepared[0], run.client, run.run), jnp.float64) < self.probability
        share = uniform(per_run(prepared[1], run.client, run.run), jnp.float64)
        return Draw(jnp.zeros_like(share), jnp.where(hits, share * run.longest, 0.0))


def suspension(probability: Any) -> Suspension:
    """With this probability a run hangs for an extra U(0, L) seconds, L the longest run so far, hangs excluded.

    Reading: "so far" means among all runs, of any client, that started before this one (in dispatch order), so the
    first run never hangs. Used as a term: `uniform(1, 5) + suspension(0.1)`.

    Args:
        probability: that a run hangs, in [0, 1].

    References:
        AsyncFedED (Wang et al., 2022), section 6.1.
    """
    return Suspension(probability)
