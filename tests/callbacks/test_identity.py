"""What makes a run the run that it is."""

from __future__ import annotations

import optax

import jaxafl as afl
from jaxafl.callbacks.content import content
from jaxafl.callbacks.limits import ends_of


class Patience(afl.callbacks.Callback):
    def __init__(self, evaluations: int) -> None:
        self.evaluations, self.left = evaluations, evaluations

    def chunk(self, chunk: afl.callbacks.Chunk) -> bool:
        self.left -= 1
        return not self.left


class Longer(Patience):
    def chunk(self, chunk: afl.callbacks.Chunk) -> bool:
        return False


def test_a_callback_that_ends_runs_is_compared_by_its_arguments_and_its_source() -> None:
    used = Patience(2)
    used.left = 0  # state is no argument
    assert ends_of(used) == ends_of(Patience(2)) != ends_of(Patience(3))
    assert ends_of(Longer(2))["source"] != ends_of(Patience(2))["source"]
    assert ends_of(afl.callbacks.StopAt(loss=0.5)) == {"loss": 0.5}
    assert ends_of(afl.callbacks.StopAfter(simulated=2.0, wall=5.0)) == {"simulated": 2.0}
    assert not ends_of(afl.callbacks.Csv("log.csv")) and not ends_of(afl.callbacks.Callback())


def test_a_schedule_of_optax_is_told_apart_by_its_numbers() -> None:
    one, two = (content(afl.Client(optax.sgd, learning_rate=optax.linear_schedule(r, 0.0, 4), steps=1)) for r in (1, 2))
    assert one != two and one == content(afl.Client(optax.sgd, learning_rate=optax.linear_schedule(1, 0.0, 4), steps=1))
    assert content(afl.Client(optax.sgd(0.1), steps=1)) != content(afl.Client(optax.sgd(0.2), steps=1))
