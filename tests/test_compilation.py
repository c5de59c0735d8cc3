"""A process may run any number of shapes: what was compiled for those that are no longer kept is gone."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import re
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen

import jaxafl as afl
from jaxafl.device import compilation, compiled, on_device
from tests.problems import classifier, descent, quadratic
from tests.variants import slow_but


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two programs are kept, and compiled fast."""
    monkeypatch.setattr(compilation, "_KEPT", 2)
    compilation._programs.clear()
    gc.collect()  # what other tests left behind would go while this one counts
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def others() -> int:
    """Compiled programs that the process holds besides those that are kept, whoever holds them."""
    return len(jax.devices()[0].client.live_executables()) - len(compilation._programs)


def test_parts_of_other_classes_have_other_structures() -> None:
    """JAX takes the program of one for the other now and then, where equal structures have other hashes."""
    parts = [afl.clock.uniform(0.5, 1.0), afl.clock.lognormal(0.5, 1.0), afl.clock.pareto(0.5, 1.0)]
    assert [a == b for a, b in itertools.combinations(map(jax.tree.structure, parts), 2)] == [False] * 3
    assert jax.tree.structure(parts[0]) == jax.tree.structure(afl.clock.uniform(1.0, 2.0))


def drawn(shift: int, x: jax.Array) -> jax.Array:
    return x + shift + jax.random.normal(jax.random.key(0), x.shape)


def test_a_program_belongs_to_the_options_of_jax_that_change_its_numbers() -> None:
    given = on_device((np.zeros(9, np.float32),))
    one, same = (compiled(drawn, (1,), given)[0] for _ in range(2))
    with jax.threefry_partitionable(False):
        other = compiled(drawn, (1,), given)[0]
        expected = np.asarray(drawn(1, *given))
    assert one is same and one is not other
    np.testing.assert_allclose(other(*given), expected, rtol=1e-6)
    assert not np.allclose(one(*given), expected)
    with jax.default_matmul_precision("highest"):
        assert compiled(drawn, (1,), given)[1] > 0


def test_a_run_in_traced_code_says_what_to_do() -> None:
    sim = _fresh(0)
    with pytest.raises(ValueError, match=r"in code that JAX traces, such as a function in jax\.jit; expected plain P"):
        jax.jit(lambda x: x + sim.run(2).loss.values[-1])(1.0)


def ever_more_clients(index: int) -> None:
    descent(data=quadratic(6 + index).data).run(5 + index, eval_every=2 + index)


def ever_more_members(index: int) -> None:
    rates = [0.1 * member for member in range(1, 3 + index)]
    afl.sweep(descent(), {"server.learning_rate": rates}, 3, eval_every=3)


def ever_more_samples(index: int) -> None:
    quadratic(4 + index).data.statistics()


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("run", slow_but([ever_more_clients, ever_more_samples, ever_more_members], ever_more_samples))
def test_runs_of_new_shapes_leave_nothing(run: Callable[[int], Any]) -> None:
    run(0)
    before = others()
    run(1)
    assert others() == before
    assert len(compilation._programs) <= 2


@pytest.mark.slow
def test_a_first_run_compiles_nothing_but_its_programs() -> None:
    """An operation outside of them takes some 10 ms to be compiled."""
    code = """
import jaxafl as afl
data, model = afl.data.synthetic(1, 1, clients=4), afl.models.logistic(10)
client = afl.Client(steps=2, batch_size=4, learning_rate=0.1)
clock = afl.clock.free_running(concurrency=2, durations=afl.clock.uniform(1, 2))
for server in (afl.server.fedasync(), afl.server.asyncfeded()):
    afl.Simulation(data, model, client, server, clock).run(2)
"""
    logged = dict(os.environ, JAX_LOG_COMPILES="1")
    said = subprocess.run([sys.executable, "-c", code], env=logged, capture_output=True, text=True, check=True).stderr
    found = set(re.findall(r"Compiling jit\((\w+)\)", said))
    clock, once = {"prepared_for", "_block", "_one", "_blocks", "stage"}, {"initial_members", "observe_members", "read"}
    assert {"advance", "several_steps"} < found <= clock | once | {"evaluate_members", "advance", "several_steps"}


def _grown(width: int, x: jax.Array, many: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jax.lax.fori_loop(0, 3, lambda _, x: jnp.tanh(x @ x[:, :width].T @ x), x), jnp.sin(many) + 1


@pytest.mark.skipif(
    jax.default_backend() != "cpu" or os.cpu_count() == 1, reason="threads are chosen on a CPU that has several"
)
@pytest.mark.parametrize(("side", "threads"), [(100, False), (1200, True)])
def test_programs_of_small_products_run_in_one_thread(side: int, threads: bool) -> None:
    program, _ = compiled(_grown, (side,), on_device((np.zeros((side, side), "f4"), np.zeros(10**6, "f4"))))
    assert ('"outer_dimension_partitions":["' in program.as_text()) == threads


def _fresh(seed: int, model: afl.models.Model | None = None) -> afl.Simulation:
    """A simulation of parts that are all made anew, of equal shapes for all seeds."""
    return classifier(
        data=afl.data.synthetic(clients=5, max_size=40, seed=seed).with_validation(0.2, seed),
        model=model or afl.models.from_linen(linen.Sequential([linen.Dense(4), linen.relu, linen.Dense(10)])),
        client=afl.Client(optax.sgd, learning_rate=0.1 + seed / 100, steps=2, batch_size=4),
        clock=afl.clock.free_running(concurrency=3, buffer=2, durations=afl.clock.uniform(1, 3 + seed / 100)),
    )


@pytest.mark.slow
def test_other_data_models_and_clocks_of_equal_shapes_compile_nothing_and_leave_nothing() -> None:
    _fresh(0).run(4, seed=0)
    gone, arrays = [], len(jax.live_arrays())
    with counted_compilations() as compilations:
        for seed in range(1, 4):
            simulation = _fresh(seed)
            simulation.run(4, seed=seed)
            gone += [weakref.ref(simulation.data), weakref.ref(simulation.model)]
    del simulation
    gc.collect()
    assert not compilations
    assert all(one() is None for one in gone)
    assert len(jax.live_arrays()) <= arrays


@pytest.mark.slow
def test_equal_shapes_of_another_function_are_another_program() -> None:
    """Programs are shared by what they compute, not by the name of a function."""
    losses = []
    for scale in (1.0, 3.0):

        def loss(params: Any, batch: Any, key: Any, scale: float = scale) -> Any:
            return scale * jnp.sum((batch.x @ params["w"]) ** 2, axis=1)

        model = afl.models.from_functions(lambda key, batch: {"w": jnp.ones((60, 2))}, loss)
        losses.append(_fresh(0, model).run(2).loss.values)
    np.testing.assert_allclose(losses[1][0], 3 * losses[0][0], rtol=1e-6)
    assert not np.allclose(losses[1], losses[0])


@contextlib.contextmanager
def counted_compilations() -> Iterator[list[str]]:
    """Names of the programs that are compiled within."""
    found: list[str] = []
    inside = [True]

    def seen(name: str, seconds: float, **how: Any) -> None:
        if inside and "backend_compile" in name:
            found.append(name)

    jax.monitoring.register_event_duration_secs_listener(seen)
    try:
        yield found
    finally:
        inside.clear()
