"""Names that do not exist: the error says which do, and which was probably meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import jaxafl as afl
from tests.problems import classifier


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        (lambda sim: sim.train(2, eval_evry=1), "eval_every"),  # which nobody had looked at
        (lambda sim: sim.run(2, diagnostics="per_clients"), "per_client"),
        (lambda sim: sim.run(2, callbacks=afl.callbacks.StopAt(acuracy=0.5)), "accuracy"),
        (lambda sim: afl.sweep(sim, {"clock.buffr": [1]}, 2), "buffer"),
        (lambda sim: afl.compare({"fast": sim}, 1, {"fasst": 2}), "fast"),
        (lambda sim: afl.Simulation(sim.data, sim.model, sim.client, sim.server, clok=sim.clock), "clock"),
        (lambda sim: afl.Simulation(sim.data, sim.model, sim.client, "fedbuf", sim.clock), r"fedbuff\(\)"),
        (lambda sim: afl.Client(lr=0.1), "learning_rate"),
    ],
)
def test_wrong_names_are_refused_with_the_right_one(wrong: Callable[[Any], Any], meant: str) -> None:
    with pytest.raises((ValueError, TypeError), match=f"did you mean '{meant}'"):
        wrong(classifier())
