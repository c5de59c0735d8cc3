"""Memory does not grow with the number of server steps, and too little of it is an error that says what is needed."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jaxafl import server
from jaxafl.clock import free_running, uniform
from jaxafl.engine import check
from jaxafl.models import from_functions
from jaxafl.simulation import Simulation
from tests.problems import descent, quadratic

PARAMETERS = 250_000  # a megabyte


def simulation(clock: Any, the_server: Any) -> Simulation:
    def loss(params: Any, batch: Any, key: Any) -> Any:
        return jnp.sum(params["w"][: batch.x.shape[1]] * batch.x, axis=1)

    model = from_functions(lambda key, batch: {"w": jnp.zeros(PARAMETERS)}, loss)
    return descent(data=quadratic(num_clients=60).data, model=model, server=the_server, clock=clock)


def free(concurrency: int) -> Any:
    return free_running(concurrency=concurrency, durations=uniform(1, 5))


@pytest.mark.parametrize("the_server", [server.fedbuff(), server.asyncfeded()], ids=repr)
def test_a_ring_larger_than_the_memory(the_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "available_bytes", lambda *_: 32 * 2**20)
    with pytest.raises(MemoryError, match=r"ring of \d+ versions"):
        simulation(free(50), the_server).run(200)
    assert np.isfinite(simulation(free(3), the_server).run(2).loss).all()  # which fits


@pytest.mark.slow
def test_memory_does_not_grow_with_the_steps() -> None:
    """500 versions of a megabyte, of which few are in flight."""
    resource = pytest.importorskip("resource")
    simulation(free(4), server.fedbuff()).run(20, eval_every=20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    simulation(free(4), server.fedbuff()).run(500, eval_every=500)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150 * 2**10  # KiB


def test_the_memory_of_this_machine_is_known() -> None:
    available = check.available_bytes()
    assert available is not None and 2**28 < available < 2**50
