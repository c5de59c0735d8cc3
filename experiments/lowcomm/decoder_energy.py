"""The decoder on Shakespeare's plays against the workers' energy; the runs are those of `decoder`."""

from __future__ import annotations

import dataclasses

from experiments.lowcomm import decoder
from experiments.lowcomm.decoder import ENERGY, NAMES, PERPLEXITY
from experiments.suite import main

EXPERIMENT = dataclasses.replace(
    decoder.EXPERIMENT,
    title="Low-communication training: the decoder against energy",
    measures={
        name: one for name, one in decoder.EXPERIMENT.measures.items() if name == PERPLEXITY or name.startswith(ENERGY)
    },
    claims=(),
    curve=("loss", NAMES[ENERGY]),
)

if __name__ == "__main__":
    main(EXPERIMENT)
