"""What compiled programs must never do: wait for the host, or copy the ring, the updates or the rows of all clients."""

from __future__ import annotations

import functools
import importlib.util
import pathlib
import re
import sys
import types

import jax
import numpy as np
import pytest

import jaxafl as afl
from jaxafl.device import equations
from jaxafl.engine.planned import planned
from jaxafl.engine.problem import Speed
from jaxafl.engine.state import State

PATH = pathlib.Path(__file__).parents[1] / "experiments" / "benchmarks" / "programs.py"
LANES = 4


@functools.cache
def benchmark() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_of_programs", PATH)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compiled(kind):
    function, arguments, wide = benchmark().program("mlp", kind, LANES)
    return benchmark().compiled_for("here", function, arguments, wide), arguments[-4]


def num_bytes(tree):
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["alone", "synchronous", "shared", "lockstep", "online"])
def test_a_program_stays_on_the_device_and_copies_no_buffer(kind):
    """As it is made for an accelerator: rows are gathered and scattered, lanes advance under one `vmap`."""
    program, state = compiled(kind)
    text = program.as_text()
    assert isinstance(state, State)
    assert not re.search(r"callback|infeed|outfeed|\b(send|recv)\(", text)
    assert program.memory_analysis().alias_size_in_bytes >= num_bytes((state.ring, state.store, state.server))
    largest = max(leaf.nbytes for leaf in jax.tree.leaves(state.model.params))
    kept = jax.tree.leaves((state.ring, state.store))
    buffers = {leaf.shape for leaf in kept if leaf.nbytes > largest}
    assert buffers
    copied = {tuple(map(int, shape.split(","))) for shape in re.findall(r"= f32\[([\d,]+)\]\S* copy\(", text)}
    assert not copied & buffers
    if kind != "online":  # where lengths are part of the schedule: the host never decides on a local step
        loops = [loop for loop in benchmark().loops_of(text) if loop.passes != 2]  # XLA's own, of records
        assert sum(loop.passes == 5 for loop in loops) == 1
        assert [loop.depth for loop in loops if loop.passes is None] == ([0] if kind == "synchronous" else [0, 2])
        assert next(loop for loop in loops if loop.depth == 1).passes in range(5, 11)  # server steps, or rows


@pytest.mark.slow
@pytest.mark.parametrize(
    "kept",
    [
        {"upload": afl.upload.error_feedback(afl.upload.top_k(count=2))},
        {"correction": afl.correction.scaffold()},
        {"correction": afl.correction.feddyn(0.1)},
    ],
    ids=["error_feedback", "scaffold", "feddyn"],
)
@pytest.mark.parametrize("lanes", [1, 4])
def test_rows_of_clients_are_changed_in_place(kept, lanes):
    """With one lane XLA read them in what wrote them, and copied all of them for every run: 90 times the time."""
    rng = np.random.default_rng(0)
    data = afl.data.from_arrays(rng.random((200, 30)), np.arange(200) % 2, np.arange(200) // 2, test_fraction=0.5)
    client = afl.Client(learning_rate=0.1, steps=2, batch_size=1, **kept)
    clock = afl.clock.free_running(concurrency=8, buffer=4, durations=afl.clock.uniform(1, 5))
    sim = afl.Simulation(data, afl.models.mlp(2, hidden=(20,)), client, afl.server.fedbuff(), clock)
    execution = planned([sim.problem(0)], sim.schedule(10), 10, Speed(lanes))
    shapes = {leaf.shape[1:] for leaf in jax.tree.leaves(execution.state.memory.tree)}
    text = execution.compiled.as_text()
    copied = {tuple(map(int, shape.split(","))) for shape in re.findall(r"= f32\[([\d,]+)\]\S* copy\(", text)}
    assert (100, 30, 20) in shapes
    assert not copied & (shapes | {(1, *shape) for shape in shapes})


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "alone",
        "shared",
        "lockstep",
        "online",
    ],
)
def test_rows_that_are_written_are_distinct(kind):
    """And it is said, else a GPU sorts them where only deterministic operations are allowed."""
    function, arguments, wide = benchmark().program("mlp", kind, LANES)
    with jax.enable_x64(wide), benchmark().traced_for("gpu"):
        traced = jax.jit(function).trace(*arguments).jaxpr
    scatters = [equation for equation in equations(traced.jaxpr) if equation.primitive.name == "scatter"]
    of_rows = [one for one in scatters if one.invars[0].aval.ndim > 1 and one.invars[2].aval.ndim > 1]
    assert len(of_rows) >= 6  # of the updates, one for each leaf
    assert all(one.params["unique_indices"] for one in of_rows)
