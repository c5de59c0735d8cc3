"""FADAS, Figure 1: the size of the buffer, against rounds."""

from __future__ import annotations

from experiments.fadas.figure1_buffer import buffers
from experiments.suite import main

EXPERIMENT = buffers(title="the buffer M, against rounds", along="eval_step")

if __name__ == "__main__":
    main(EXPERIMENT)
