"""The noise of a simulation, of which a schedule computes the privacy."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

How = Literal["participation", "sampled", "tree"]


class Mechanism(NamedTuple):
    """Noise of a simulation, and what it lacks for a claim of privacy.

    Attributes:
        noise_multiplier: z, standard deviation of the noise over the clipping norm, a number or [N]; `None` without.
        at: `"server"` for noise in the sum of updates, `"client"` for noise in every update.
        kept: True if every server step uses the last update of every client again.
        drawn: True if server steps draw their clients. Otherwise clients arrive at any time.
        refused: reason why participations or weights depend on data; empty if they do not.
    """

    noise_multiplier: Any = None
    at: str = "server"
    kept: bool = False
    drawn: bool = True
    refused: str = ""
