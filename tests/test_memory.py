"""Memory is known before compilation, and too little of it is an error that says how much is needed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxafl import server
from jaxafl.clock import free_running, synchronous, uniform
from jaxafl.device import check_memory, memory
from jaxafl.engine import execution, mesh, validate
from jaxafl.engine.state import State
from jaxafl.models import from_functions
from jaxafl.simulation import Simulation
from tests.problems import GD, quadratic

PARAMETERS = 250_000  # a megabyte


def large_model() -> Any:
    def loss(params: Any, batch: Any, key: Any) -> Any:
        return jnp.sum(params["w"][: batch.x.shape[1]] * batch.x, axis=1)

    return from_functions(lambda key, batch: {"w": jnp.zeros(PARAMETERS)}, loss)


def simulation(clock: Any, the_server: Any) -> Simulation:
    return Simulation(quadratic(num_clients=60).data, large_model(), GD, the_server, clock)


def free(concurrency: int) -> Any:
    return free_running(concurrency=concurrency, durations=uniform(1, 5))


def with_available(monkeypatch: pytest.MonkeyPatch, available: int) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda *_: available)

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("the training was compiled before the memory was checked")

    monkeypatch.setattr(mesh, "compiled", refuse)


def test_a_ring_larger_than_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with_available(monkeypatch, 32 * 2**20)
    with pytest.raises(
        MemoryError, match=r"needs at least 0\.\d+ GiB and the device has 0\.03 GiB: ring of \d+ versions"
    ):
        simulation(free(50), server.fedbuff()).run(200)


def test_the_ring_of_a_server_that_adapts_the_steps_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with_available(monkeypatch, 32 * 2**20)
    with pytest.raises(MemoryError, match=r"ring of 51 versions 0\.05 GiB"):
        simulation(free(50), server.asyncfeded()).run(200)


def test_the_listing_names_the_parts_largest_first() -> None:
    parts = {"ring": np.zeros(3 * 2**18), "rows per client": {"w": np.zeros(2**20)}}
    with pytest.raises(MemoryError) as caught:
        check_memory(parts, available=2**20)
    message = str(caught.value)
    assert "needs at least 0.01 GiB" in message
    assert message.index("rows per client 0.01 GiB") < message.index("ring 0.01 GiB")
    check_memory(parts, available=14 * 2**20)
    with pytest.raises(MemoryError):
        check_memory(parts, available=14 * 2**20 - 1)


def test_all_fields_of_the_state_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: dict[str, Any] = {}
    monkeypatch.setattr(validate, "check_memory", lambda parts, **_: counted.update(parts))
    simulation(free(2), server.fedbuff()).run(1, diagnostics="average")
    assert len(counted) == len(State._fields) + 2  # data and frozen arrays
    assert counted["the average of all versions"][0] is not None and counted["model"][0] is not None


@pytest.mark.slow
def test_a_run_that_fits_into_memory_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda *_: 32 * 2**20)
    result = simulation(synchronous(cohort=3, durations=uniform(1, 5)), server.fedavg()).run(2)
    assert np.isfinite(result.loss).all()


def test_unknown_memory_is_no_reason_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda *_: None)
    check_memory({"ring": np.zeros(2**20)})


def test_the_memory_of_this_machine_is_known() -> None:
    available = memory.available_bytes()
    assert available is not None and 2**28 < available < 2**50


@pytest.mark.parametrize(
    "concurrency", [pytest.param(1, marks=pytest.mark.slow), 10, pytest.param(50, marks=pytest.mark.slow)]
)
def test_the_ring_grows_with_the_clients_in_flight_only(concurrency: int) -> None:
    plan = simulation(free(concurrency), server.fedbuff()).plan(300)
    assert plan.slots <= concurrency + 1
    assert plan.rows <= concurrency + 1


@pytest.mark.slow
def test_a_device_that_runs_out_during_a_run_says_what_to_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 123 bytes.\nmany more lines"

    def fail(*arguments: Any) -> Any:
        raise jax.errors.JaxRuntimeError(said)

    compile_ = execution.Execution.compile

    def compiled(self: Any, *arguments: Any) -> Any:
        compile_(self, *arguments).compiled = fail
        return self

    monkeypatch.setattr(execution.Execution, "compile", compiled)
    with pytest.raises(MemoryError, match=r"lower lanes=4, chunk=2, micro_batch=7 \(RESOURCE.*123 bytes\.\)$"):
        Simulation(quadratic().data, quadratic().model, GD, server.fedbuff(), free(4)).run(3, lanes=4, chunk=2)
    said = "INTERNAL: something else"
    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        Simulation(quadratic().data, quadratic().model, GD, server.fedbuff(), free(4)).run(3)
