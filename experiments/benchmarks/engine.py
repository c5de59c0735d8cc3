"""Measures the engine: updates per second, overhead, wave width, packing, sweeps; by hand, not a test.

    python experiments/benchmarks/engine.py                 # all rows, a few minutes on two cores
    python experiments/benchmarks/engine.py overhead sweep  # some of them

Machines are noisy: what is compared is measured in turn in the same process, and the median of the ratios is printed.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
import optax
from rich.console import Console
from rich.table import Table

import jaxafl as afl
from jaxafl.callbacks.hooks import Hook
from jaxafl.client import begin, local_step
from jaxafl.clock import schedule as compute_schedule
from jaxafl.device import compiled
from jaxafl.device.keys import Purpose, jax_key, purpose_key, seed_key
from jaxafl.engine.execution import Execution
from jaxafl.engine.lockstep import lockstep
from jaxafl.engine.loop import run_to_end
from jaxafl.engine.planned import planned
from jaxafl.engine.planner import make_plan
from jaxafl.engine.problem import Speed
from jaxafl.engine.state import example_batch

Row = tuple[str, str, str]
CLIENTS, CONCURRENCY = 100, 20


def images(clients: int = CLIENTS, samples: int = 50, shape: tuple[int, ...] = (28, 28, 1)) -> afl.data.FederatedData:
    """Random images: the speed does not depend on what they show, as long as training goes on."""
    rng = np.random.default_rng(0)
    count = clients * samples
    x = rng.integers(0, 256, (count, *shape), dtype=np.uint8)
    y = rng.integers(0, 10, count)
    owner, scaled = np.repeat(np.arange(clients), samples), afl.data.normalise(mean=0.5, std=0.29)
    return afl.data.from_arrays(x, y, owner, x_test=x[:100], y_test=y[:100], preprocessing=scaled)


def simulation(model: afl.models.Model, steps: int = 5, batch_size: int = 10) -> afl.Simulation:
    """FedAsync with 20 of 100 clients in flight."""
    return afl.Simulation(
        data=images(),
        model=model,
        client=afl.Client(optax.sgd, learning_rate=0.01, steps=steps, batch_size=batch_size),
        server=afl.server.fedasync(alpha=0.1, mix="delta", staleness="constant"),
        clock=afl.clock.free_running(concurrency=CONCURRENCY, durations=afl.clock.uniform(1, 5)),
    )


def bare_loop(sim: afl.Simulation, updates: int) -> tuple[Callable[[], Any], float]:
    """The same local training and the same mixing, one client after another, without clock, ring or store."""
    problem = sim.problem(0)
    apply = sim.model.bound(problem.device.frozen)
    init_key = jax_key(purpose_key(seed_key(0), Purpose.MODEL))
    params, model_state = sim.model.init(init_key, example_batch(sim.data.form))

    def run(client: Any, device: Any, params: Any, model_state: Any) -> Any:
        key = purpose_key(seed_key(0), Purpose.BATCH)

        def update(index: jax.Array, params: Any) -> Any:
            who = index % sim.data.num_clients
            lane = begin(client, params, model_state, key, who, index)
            step = functools.partial(
                local_step, client, apply, lambda *a: sim.data.fetch(device.arrays, *a), sim.client.batch_size
            )
            lane = jax.lax.fori_loop(0, sim.client.steps, lambda _, lane: step(device.counts[who], lane), lane)
            return jax.tree.map(lambda x, new: x + 0.1 * (new - x), params, lane.params)

        return jax.lax.fori_loop(0, updates, update, params)

    arguments = (problem.hyperparameters.client, problem.device, params, model_state)
    program, seconds = compiled(run, (), arguments)
    return lambda: jax.block_until_ready(program(*arguments)), seconds


def engine_loop(sim: afl.Simulation, updates: int, lanes: int = 1) -> tuple[Callable[[], Any], Execution]:
    """The engine on a plan that is ready: what a run costs after compilation, evaluation left out.

    A repetition goes on from the state that the last one left: the plan, and so the work, is the same, and the ring is
    not copied for the sake of the measurement.
    """
    driver = planned([sim.problem(0)], sim.schedule(updates), updates, Speed(lanes))

    def run() -> None:
        driver.advance(0, updates)
        jax.block_until_ready(driver.state)
        went_on(driver.failures())

    return run, driver


def went_on(failed: Iterable[Any]) -> None:
    """Raises `ArithmeticError` if any run has failed: it then did less than what is measured."""
    if any(failed):
        raise ArithmeticError("a run of the benchmark has failed: its parameters stopped being finite")


def seconds_of(*functions: Callable[[], Any], repeats: int = 5) -> list[list[float]]:
    """Seconds of each function, measured in turn after one warm-up."""
    for function in functions:
        function()
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats):
        for column, function in zip(times, functions, strict=True):
            begun = time.perf_counter()
            function()
            column.append(time.perf_counter() - begun)
    return times


def ratio(first: list[float], second: list[float]) -> str:
    """The median of the pairwise ratios, with the smallest and the largest."""
    ratios = sorted(a / b for a, b in zip(first, second, strict=True))
    return f"{statistics.median(ratios):.3f} ({ratios[0]:.3f}-{ratios[-1]:.3f})"


def mebibytes(program: Any) -> str:
    """Peak memory of a compiled program: arguments, temporaries and outputs that alias no argument."""
    memory = program.memory_analysis()
    total = memory.argument_size_in_bytes + memory.temp_size_in_bytes + memory.output_size_in_bytes
    return f"{(total - memory.alias_size_in_bytes) / 2**20:.0f} MiB"


def overhead() -> list[Row]:
    """Updates per second, and the engine against a bare loop of the same local training."""
    rows = []
    for name, model, updates in (
        ("CNN (cnn_defedavg)", afl.models.cnn_defedavg(), 60),
        ("MLP 784-128-10", afl.models.mlp(10, hidden=(128,)), 3000),
    ):
        sim = simulation(model)
        bare, bare_compile = bare_loop(sim, updates)
        engine, driver = engine_loop(sim, updates)
        engine_times, bare_times = seconds_of(engine, bare, repeats=15)
        rate = updates / statistics.median(engine_times)
        rows.append((f"{name}: client updates per second", f"{rate:,.0f}", "5 steps of batch 10, FedAsync, M_c = 20"))
        rows.append((f"{name}: engine / bare loop", ratio(engine_times, bare_times), "target for the CNN <= 1.10"))
        compiling = (f"{driver.compile_seconds:.1f} s", f"with evaluation; bare loop {bare_compile:.1f} s")
        rows.append((f"{name}: compile time of the engine", *compiling))
        slots = f"{make_plan(sim.schedule(updates), keep_base=False).slots} ring slots"
        rows.append((f"{name}: peak memory of the engine's program", mebibytes(driver.compiled), slots))
    return rows


def width() -> list[Row]:
    """Lanes in use and speed against L."""
    sim = simulation(afl.models.mlp(10, hidden=(32,)))
    updates = 2000
    rows = []
    loops = [engine_loop(sim, updates, lanes) for lanes in (1, 4, 8, 16)]
    times = seconds_of(*(loop for loop, _ in loops), repeats=3)
    for lanes, column in zip((1, 4, 8, 16), times, strict=True):
        plan = make_plan(sim.schedule(updates), lanes=lanes, keep_base=False)
        speed = f"{updates / statistics.median(column):,.0f} updates/s (looped lanes)"
        rows.append((f"mean width at L = {lanes}", f"{plan.mean_width:.1f}", speed))
    for concurrency, durations, name in (
        (1000, afl.clock.uniform(1, 5), "uniform(1,5)"),
        (1000, afl.clock.exponential(1.0), "exponential(1)"),
    ):
        clock = afl.clock.free_running(concurrency=concurrency, durations=durations)
        plan = make_plan(compute_schedule(clock, 10_000, 1, 20_000, 0), lanes=512, keep_base=False)
        rows.append(
            (f"mean width at L = 512, M_c = 1000, {name}", f"{plan.mean_width:.0f}", "of the plan; no training")
        )
    return rows


def packing() -> list[Row]:
    """Executed / needed local steps with lognormal numbers of local steps."""
    rng = np.random.default_rng(0)
    steps = np.maximum(1, (np.exp(rng.normal(4, 2, 1000)) + 50) // 10).astype(np.int32)
    rows = []
    for name, clock in (
        ("free running, M_c = 100", afl.clock.free_running(concurrency=100, durations=afl.clock.uniform(1, 5))),
        ("synchronous, n = 100", afl.clock.synchronous(cohort=100, durations=afl.clock.uniform(1, 5))),
    ):
        schedule = compute_schedule(clock, 1000, steps, 2000 if "free" in name else 50, 0)
        naive = _waves_of_sixteen(schedule)
        for lanes in (4, 16):
            plan = make_plan(schedule, lanes=lanes, keep_base=False)
            executed = f"{plan.executed(lanes) / plan.needed:.2f}"
            rows.append((f"executed / needed, {name}, {lanes} lanes", executed, f"waves of 16, masked: {naive:.2f}"))
    return rows


def _waves_of_sixteen(schedule: Any) -> float:
    steps = schedule.local_steps[schedule.mask]
    waves = [steps[index : index + 16] for index in range(0, len(steps), 16)]
    return float(sum(wave.max() * len(wave) for wave in waves) / steps.sum())


def sweep() -> list[Row]:
    """Eight seeds as a sweep against eight runs."""
    sim = simulation(afl.models.mlp(10, hidden=(32,)))
    updates, seeds = 1000, range(8)

    def separate() -> None:
        for seed in seeds:
            sim.run(updates, eval_every=updates, seed=seed)

    def together() -> None:
        afl.sweep(sim, {"seed": seeds}, updates, eval_every=updates)

    together_now = []

    def advance_all() -> None:
        schedules = [sim.schedule(updates, seed) for seed in seeds]
        driver = lockstep([sim.problem(seed) for seed in seeds], schedules, updates, Speed(8))
        run_to_end(driver, updates, updates, Hook(), time.perf_counter())
        together_now.append(driver)

    rates, sweep_times, lock_times = seconds_of(separate, together, advance_all, repeats=3)
    buffered = afl.clock.free_running(concurrency=20, buffer=5, durations=afl.clock.uniform(1, 5))
    shared_sim = afl.Simulation(sim.data, sim.model, sim.client, afl.server.fedbuff(staleness="none"), buffered)
    axis = {"server.learning_rate": [0.1 * (1 + index) for index in range(8)]}

    def shared_plan() -> None:
        afl.sweep(shared_sim, axis, 200, eval_every=200)

    def shared_separate() -> None:
        for value in axis["server.learning_rate"]:
            one = dataclasses.replace(shared_sim, server=afl.server.fedbuff(value, staleness="none"))
            one.run(200, eval_every=200)

    shared_times, apart_times = seconds_of(shared_plan, shared_separate, repeats=3)
    first = together_now[0]
    went_on(first.failures())
    return [
        ("sweep of 8 seeds / 8 runs (MLP)", ratio(sweep_times, rates), "own plans, compiled programs ready"),
        ("the same in lockstep / 8 runs", ratio(lock_times, rates), "what an accelerator runs; here on this device"),
        ("sweep of 8 server rates / 8 runs (MLP, FedBuff)", ratio(shared_times, apart_times), "one plan, one vmap"),
        (
            "lockstep: compile time",
            f"{first.compile_seconds:.1f} s",
            f"peak {mebibytes(first.compiled)}",
        ),
    ]


def together() -> list[Row]:
    """Eight members advanced together against one after another, execution alone: where `sweep` changes over."""
    rows = []
    buffered = afl.clock.free_running(concurrency=CONCURRENCY, buffer=5, durations=afl.clock.uniform(1, 5))
    for name, model, updates in (
        ("logistic", afl.models.logistic(10), 300),
        ("MLP 784-32-10", afl.models.mlp(10, hidden=(32,)), 200),
        ("MLP 784-64-10", afl.models.mlp(10, hidden=(64,)), 200),
        ("MLP 784-128-10", afl.models.mlp(10, hidden=(128,)), 150),
        ("MLP 784-256-10", afl.models.mlp(10, hidden=(256,)), 80),
        ("cnn_small", afl.models.cnn_small(), 30),
        ("cnn_defedavg", afl.models.cnn_defedavg(), 10),
    ):
        base = dataclasses.replace(simulation(model), clock=buffered)
        members = [
            dataclasses.replace(base, server=afl.server.fedbuff(0.1 * (1 + index), staleness="none"))
            for index in range(8)
        ]
        schedules = [base.schedule(updates, seed) for seed in range(8)]
        drivers = [
            [planned([member.problem(0)], schedules[0], updates, Speed()) for member in members],
            [planned([member.problem(0) for member in members], schedules[0], updates, Speed())],
            [planned([members[0].problem(seed)], schedules[seed], updates, Speed()) for seed in range(8)],
            [lockstep([members[0].problem(seed) for seed in range(8)], schedules, updates, Speed())],
        ]

        def advance(group: list[Execution], updates: int = updates) -> None:
            for driver in group:
                driver.advance(0, driver.row_of(updates))
                went_on(driver.failures())

        apart, one_plan, seeds, own_plans = seconds_of(*(functools.partial(advance, group) for group in drivers))
        size = sum(leaf.size for leaf in jax.tree.leaves(drivers[0][0].state.model.params))
        rows.append((f"{name}: one plan, together / apart", ratio(one_plan, apart), f"{size:,} parameters"))
        rows.append((f"{name}: own plans, lockstep / apart", ratio(own_plans, seeds), f"{size:,} parameters"))
    return rows


SECTIONS = {
    "overhead": overhead,
    "width": width,
    "packing": packing,
    "sweep": sweep,
    "together": together,
}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", help=f"any of {', '.join(SECTIONS)}; all by default")
    chosen = parser.parse_args().sections or list(SECTIONS)
    table = Table("what", "measured", "how", title=f"{jax.default_backend()}, jax {jax.__version__}")
    for name in chosen:
        for row in SECTIONS[name]():
            table.add_row(*row)
        table.add_section()
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
