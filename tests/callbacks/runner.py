"""A process that is killed: `python -m tests.callbacks.runner KIND FOLDER OUTPUT`, KIND planned, online or sweep."""

from __future__ import annotations

import sys
from typing import Any

import jaxafl as afl
from tests.callbacks.conftest import simulation

STEPS, EVERY = 60, 6


def run(kind: str, folder: str | None) -> Any:
    """The whole run; `folder`: with checkpoints."""
    how: dict[str, Any] = {"eval_every": EVERY}
    kept = {} if folder is None else {"folder": folder, "checkpoint_every": 5}
    if kind == "sweep":
        return afl.sweep(simulation(), {"seed": [0, 1, 2]}, STEPS, **how, **kept)
    return simulation(kind).run(STEPS, **how, **kept)


if __name__ == "__main__":
    print("begins", flush=True)
    afl.save(run(sys.argv[1], sys.argv[2]), sys.argv[3])
