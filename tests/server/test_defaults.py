"""Defaults are those of the papers."""

from __future__ import annotations

import warnings
from typing import Any

import jax.numpy as jnp
import pytest

import jaxafl as afl
from jaxafl import server
from tests.problems import classifier


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
    with pytest.warns(UserWarning, match=rf"{made.name} .*buffer=M"):
        classifier(server=made, clock=free()).check()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        classifier(server=made, clock=free(buffer=2)).check()
        classifier(server=server.fedasync(), clock=free()).check()
        classifier(server=made, clock=afl.clock.synchronous(cohort=1)).check()
