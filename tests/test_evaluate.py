"""How many samples are evaluated at once changes nothing but speed."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax
import pytest
import xarray as xr

import jaxafl as afl
from jaxafl.device import compilation
from jaxafl.engine import evaluate
from jaxafl.models import Model

TEST, VALIDATION = 1234, 60  # the test set is no multiple of a batch, nor its rest of a piece


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The sizes of each set of each evaluation that is compiled."""
    sizes: list[tuple[int, int]] = []
    choose = evaluate._sizes
    monkeypatch.setattr(evaluate, "_sizes", lambda *given: sizes.append(choose(*given)) or sizes[-1])
    return sizes


def evaluated(model: Model | None = None) -> xr.Dataset:
    rng, count = np.random.default_rng(0), TEST + 200
    x, y = rng.random((count, 8, 8, 1)).astype(np.float32), rng.integers(0, 10, count)
    data = afl.data.from_arrays(x[TEST:], y[TEST:], np.arange(200) % 4, x_test=x[:TEST], y_test=y[:TEST])
    client = afl.Client(optax.sgd, learning_rate=0.1, steps=1, batch_size=4)
    clock = afl.clock.free_running(concurrency=2, durations=afl.clock.uniform(1, 5))
    model = model or afl.models.mlp(10, hidden=(20,))
    compilation._programs.clear()
    held_out = data.with_validation(VALIDATION / 200)
    return afl.Simulation(held_out, model, client, afl.server.fedasync(), clock).run(2, diagnostics="per_client")


def assert_same(one: xr.Dataset, other: xr.Dataset) -> None:
    for name in ("loss", "accuracy", "validation_loss", "validation_accuracy", "client_loss", "client_accuracy"):
        np.testing.assert_allclose(one[name], other[name], rtol=1e-6, err_msg=name)


@pytest.mark.slow
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="batches are evaluated in pieces on CPUs only")
def test_evaluating_a_batch_in_pieces_changes_no_result(chosen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where results of a whole one leave the cache of a CPU."""
    whole = evaluated()
    monkeypatch.setattr(evaluate, "CACHE", 1000)
    pieces = evaluated()
    assert chosen == [(500, 500), (VALIDATION, VALIDATION), (500, 50), (VALIDATION, 50)]
    assert_same(pieces, whole)


@pytest.mark.slow
@pytest.mark.parametrize("memory", (None, 2**40, 2**20, 1))
def test_evaluation_batches_on_an_accelerator_fit_an_eighth_of_its_memory(memory, chosen, monkeypatch):
    """As many samples as an eighth of the memory holds, and about as many in each batch."""
    expected = {None: 412, 2**40: TEST, 2**20: 247, 1: 1}[memory]
    whole = evaluated()
    monkeypatch.setattr(evaluate, "available_bytes", lambda: memory)
    with monkeypatch.context() as patch:
        patch.setattr("jaxafl.device.hardware._as_accelerator", True)
        assert_same(evaluated(), whole)
    assert chosen[-2] == (expected, expected)
