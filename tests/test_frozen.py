"""A model's frozen arrays: one copy for all clients, the same results as if they were constants of the model."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import pytest

import jaxafl as afl
from jaxafl.engine import check
from jaxafl.engine.problem import Shapes
from jaxafl.engine.state import initial
from jaxafl.models.model import Batch, Model, Outputs
from tests.problems import classifier, points

BASE = np.random.default_rng(0).normal(size=(60, 16)).astype(np.float32)


def head(key: Any, batch: Batch) -> tuple[Any, Any]:
    return {"head": 0.1 * jax.random.normal(key, (16, 10))}, {}


def outputs(params: Any, batch: Batch, base: Any) -> Outputs:
    return afl.models.softmax_cross_entropy(jax.nn.relu(batch.x @ base) @ params["head"], batch)


FROZEN = Model(
    "frozen", head, lambda params, state, batch, key, train, base: (outputs(params, batch, base), state), frozen=BASE
)
CONSTANT = Model("constant", head, lambda params, state, batch, key, train: (outputs(params, batch, BASE), state))


def simulation(model: Model = FROZEN, **parts: Any) -> afl.Simulation:
    clock = afl.clock.free_running(concurrency=6, buffer=2, durations=afl.clock.uniform(1, 5))
    return classifier(**{"data": points(8), "model": model, "clock": clock} | parts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lanes", "server"), [(1, None), (4, None), (1, afl.server.asyncfeded(kappa=0.5, max_steps=8))]
)
def test_results_are_those_of_a_constant_base(lanes: int, server: Any) -> None:
    clock = afl.clock.free_running(concurrency=4, durations=afl.clock.uniform(1, 5))
    parts = {"server": server, "clock": clock} if server else {}
    how = {
        "eval_every": 4,
        "diagnostics": "gradient_norm",
        "observe": lambda params: params,
        "lanes": lanes,
        "chunk": lanes,
    }
    frozen, constant = (simulation(model, **parts).run(8, **how) for model in (FROZEN, CONSTANT))
    for name in ("observe_head", "accuracy", "loss", "gradient_norm_squared"):
        np.testing.assert_allclose(frozen[name], constant[name], rtol=1e-5, atol=1e-6, err_msg=name)
    assert np.abs(np.diff(frozen.observe_head, axis=0)).max() > 0


@pytest.mark.slow
def test_sweeps_share_the_base() -> None:
    axes = {"server.learning_rate": [0.5, 1.0], "seed": [0, 1]}
    grid = afl.sweep(simulation(), axes, server_steps=4, eval_every=4)
    alone = simulation().run(4, eval_every=4, seed=1)
    np.testing.assert_allclose(grid.loss.sel({"server.learning_rate": 1.0, "seed": 1}), alone.loss, rtol=1e-5)


def test_nothing_that_is_kept_per_version_client_or_update_holds_the_base() -> None:
    problem = simulation(server=afl.server.ca2fl()).problem(seed=0)
    program = problem.program(Shapes(lanes=2, ring=7, store=8))
    build = functools.partial(initial, program)
    state = jax.eval_shape(build, problem.hyperparameters, problem.device, problem.key)
    assert not any(leaf.shape[-2:] == BASE.shape for leaf in jax.tree.leaves(state))
    assert problem.device.frozen.shape == BASE.shape


@pytest.mark.slow
def test_memory_check_counts_the_base(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "available_bytes", lambda *_: 1000)
    with pytest.raises(MemoryError, match="the model's frozen arrays"):
        simulation().run(2)
