"""Defaults are those of the papers."""

from __future__ import annotations

import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxafl as afl
from jaxafl import server
from tests.problems import classifier, descent


def free(**options: Any) -> afl.clock.Clock:
    return afl.clock.free_running(concurrency=4, durations=afl.clock.uniform(1, 2), **options)


def test_updates_are_discounted_by_their_age() -> None:
    assert server.fedbuff() == server.fedbuff(staleness="polynomial") and server.fedbuff.buffer == 10
    assert server.fedopt().staleness == "polynomial" and server.fedasync().staleness == "polynomial"
    staleness = jnp.asarray([0.0, 3.0, 8.0])
    assert server.fedasync()._discount(staleness).tolist() == pytest.approx([1, 1 / 2, 1 / 3])
    assert server.fedasync(staleness="hinge")._discount(staleness).tolist() == pytest.approx([1, 1, 1 / 41])


@pytest.mark.parametrize("made", [server.fedbuff(), server.fadas(), server.ca2fl(), server.fedopt()], ids=repr)
def test_a_server_that_buffers_says_so_where_it_gets_single_arrivals(made: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(type(made), "name", f"{made.name}_here")  # a message appears once in a process
    with pytest.warns(UserWarning, match=rf"{made.name} .*buffer=M") as found:
        classifier(server=made, clock=free()).check()
    assert found[0].filename == __file__  # the user's line
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        classifier(server=made, clock=free(buffer=2)).check()
        classifier(server=server.fedasync(), clock=free()).check()
        classifier(server=made, clock=afl.clock.synchronous(cohort=1)).check()


def test_later_steps_of_fedasync_do_not_change_earlier_ones() -> None:
    """Also where a later one has more arrivals than all before."""
    durations = afl.clock.recorded(np.array([[5.0] * 2 + [0.3] * 99, [3.0, 9.0] + [0.3] * 99] * 3))
    sim = descent(server=server.fedasync(), clock=afl.clock.free_running(6, afl.clock.every(2.0), durations=durations))
    few, many = (sim.run(steps, eval_every=1) for steps in (3, 8))
    assert many.step_arrivals[:3].max() < many.step_arrivals.max()
    np.testing.assert_array_equal(few.loss, many.loss[:4])
