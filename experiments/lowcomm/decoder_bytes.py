"""The decoder on Shakespeare's plays against the bytes between regions; the runs are those of `decoder`."""

from __future__ import annotations

import dataclasses

from experiments.lowcomm import decoder
from experiments.lowcomm.decoder import NAMES, PERPLEXITY, SENT
from experiments.suite import main

EXPERIMENT = dataclasses.replace(
    decoder.EXPERIMENT,
    title="Low-communication training: the decoder against bytes between regions",
    measures={
        name: one for name, one in decoder.EXPERIMENT.measures.items() if name == PERPLEXITY or name.startswith(SENT)
    },
    claims=(),
    curve=("loss", NAMES[SENT]),
)

if __name__ == "__main__":
    main(EXPERIMENT)
