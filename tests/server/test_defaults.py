"""Defaults are those of the papers, and tables that differ from them say so."""

from __future__ import annotations

import warnings
from typing import Any

import jax.numpy as jnp
import pytest

import jaxafl as afl
from experiments.asyncfeded import setting as asyncfeded
from experiments.fadas import setting as fadas
from jaxafl import server
from jaxafl.server.fitting import check_parts

DATA = afl.data.synthetic(1.0, 1.0, clients=4, max_size=20)
CLIENT = afl.Client(learning_rate=0.1, steps=1)


def free(**options: Any) -> afl.clock.Clock:
    return afl.clock.free_running(concurrency=4, durations=afl.clock.uniform(1, 2), **options)


def test_updates_are_discounted_by_their_age() -> None:
    assert server.fedbuff() == server.fedbuff(staleness="polynomial") and server.fedbuff.buffer == 10
    assert server.fedopt().staleness == "polynomial" and server.fedasync().staleness == "polynomial"
    staleness = jnp.asarray([0.0, 3.0, 8.0])
    assert server.fedasync()._discount(staleness).tolist() == pytest.approx([1, 1 / 2, 1 / 3])
    assert server.fedasync(staleness="hinge")._discount(staleness).tolist() == pytest.approx([1, 1, 1 / 41])


def test_tables_of_other_papers_leave_the_discount_out() -> None:
    rows = {name: fadas.server_of(fadas.Method(name), 0.1) for name in ("FedBuff", "FedAsync")}
    constant = asyncfeded.server_of("FedAsync constant", asyncfeded.TASKS["FEMNIST"], 10)
    assert [one.staleness for one in (*rows.values(), constant)] == ["none", "constant", "constant"]


@pytest.mark.parametrize("made", [server.fedbuff(), server.fadas(), server.ca2fl(), server.fedopt()], ids=repr)
def test_a_server_that_buffers_says_so_where_it_gets_single_arrivals(made: Any) -> None:
    with pytest.warns(UserWarning, match=rf"{made.name} is made for a buffer .*free_running\(buffer=M\)"):
        check_parts(made, free(), CLIENT, DATA.counts)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_parts(made, free(buffer=2), CLIENT, DATA.counts)
        check_parts(server.fedasync(), free(), CLIENT, DATA.counts)
        check_parts(made, afl.clock.synchronous(cohort=1), CLIENT, DATA.counts)
