"""Measures the engine: updates per second, overhead beside a bare loop, lanes, sweeps; by hand, not a test.

    python experiments/benchmarks/engine.py                 # all rows, a few minutes on two cores
    python experiments/benchmarks/engine.py overhead sweep  # some of them

Only public calls are used, so that the script measures other commits too: PYTHONPATH=OTHER python ... Machines are
noisy: what is compared is measured in turn in the same process, and the median of the ratios is printed.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console
from rich.table import Table

import jaxafl as afl

Row = tuple[str, str, str]
Timed = Callable[[], float]
"""Runs something, and returns its seconds."""
CLIENTS, CONCURRENCY, SAMPLES = 100, 20, 50


def pictures(clients: int, samples: int, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Returns random images: the speed does not depend on what they show, as long as training goes on."""
    rng = np.random.default_rng(0)
    count = clients * samples
    return rng.integers(0, 256, (count, *shape), dtype=np.uint8), rng.integers(0, 10, count)


def images(
    clients: int = CLIENTS, samples: int = SAMPLES, shape: tuple[int, ...] = (28, 28, 1)
) -> afl.data.FederatedData:
    x, y = pictures(clients, samples, shape)
    owner, scaled = np.repeat(np.arange(clients), samples), afl.data.normalise(mean=0.5, std=0.29)
    return afl.data.from_arrays(x, y, owner, x_test=x[:100], y_test=y[:100], preprocessing=scaled)


def simulation(model: afl.models.Model, steps: int = 5, batch_size: int = 10) -> afl.Simulation:
    """Returns FedAsync with 20 of 100 clients in flight."""
    return afl.Simulation(
        data=images(),
        model=model,
        client=afl.Client(optax.sgd, learning_rate=0.01, steps=steps, batch_size=batch_size),
        server=afl.server.fedasync(alpha=0.1, mix="delta", staleness="constant"),
        clock=afl.clock.free_running(concurrency=CONCURRENCY, durations=afl.clock.uniform(1, 5)),
    )


def bare_loop(model: afl.models.Model, updates: int, steps: int = 5, batch_size: int = 10) -> Timed:
    """Returns the same local training and mixing, one client after another, without clock, ring or store."""
    x, y = pictures(CLIENTS, SAMPLES, (28, 28, 1))
    x, y = jnp.asarray(x.reshape(CLIENTS, SAMPLES, 28, 28, 1)), jnp.asarray(y.reshape(CLIENTS, SAMPLES))
    mask = jnp.ones(batch_size, bool)

    def batch_of(key: Any, who: Any) -> afl.models.Batch:
        rows = jax.random.randint(key, (batch_size,), 0, SAMPLES)
        return afl.models.Batch((x[who, rows] / 255.0 - 0.5) / 0.29, y[who, rows], mask)

    params, state = model.init(jax.random.key(0), batch_of(jax.random.key(0), 0))

    def update(index: Any, params: Any) -> Any:
        keys = jax.random.split(jax.random.fold_in(jax.random.key(1), index), steps)

        def step(k: Any, local: Any) -> Any:
            def loss(params: Any) -> Any:
                outputs, _ = model.apply(params, state, batch_of(keys[k], index % CLIENTS), keys[k], True)
                return jnp.mean(outputs.loss)

            return jax.tree.map(lambda p, g: p - 0.01 * g, local, jax.grad(loss)(local))

        local = jax.lax.fori_loop(0, steps, step, params)
        return jax.tree.map(lambda p, new: p + 0.1 * (new - p), params, local)

    program = jax.jit(lambda params: jax.lax.fori_loop(0, updates, update, params))
    return timed(lambda: jax.block_until_ready(program(params)))


def timed(function: Callable[[], Any]) -> Timed:
    """Returns a function that returns its wall time."""

    def run() -> float:
        begun = time.perf_counter()
        function()
        return time.perf_counter() - begun

    return run


def engine_loop(sim: afl.Simulation, steps: int, lanes: int | None = None) -> Timed:
    """Returns a run whose seconds are those of the device loop: without compilation and preparation."""

    def run() -> float:
        result = sim.run(steps, eval_every=steps, lanes=lanes)
        if result.attrs["failed_step"] >= 0:  # it then did less than what is measured
            raise ArithmeticError("a run of the benchmark has failed: its parameters stopped being finite")
        return float(result.attrs["run_seconds"])

    return run


def seconds_of(*functions: Timed, repeats: int = 5) -> list[list[float]]:
    """Returns the seconds of each function, measured in turn after one warm-up."""
    for function in functions:
        function()
    rows = [[function() for function in functions] for _ in range(repeats)]
    return [list(column) for column in zip(*rows, strict=True)]


def ratio(first: list[float], second: list[float]) -> str:
    """Returns the median of the pairwise ratios, with the smallest and the largest."""
    ratios = sorted(a / b for a, b in zip(first, second, strict=True))
    return f"{statistics.median(ratios):.3f} ({ratios[0]:.3f}-{ratios[-1]:.3f})"


def overhead() -> list[Row]:
    """Updates per second, and the engine against a bare loop of the same local training."""
    rows = []
    for name, model, updates in (
        ("CNN (cnn_defedavg)", afl.models.cnn_defedavg(), 60),
        ("MLP 784-128-10", afl.models.mlp(10, hidden=(128,)), 3000),
    ):
        sim = simulation(model)
        first = sim.run(updates, eval_every=updates).attrs
        compiling = sum(float(first[f"{part}_seconds"]) for part in ("prepare", "compile"))
        engine_times, bare_times = seconds_of(engine_loop(sim, updates), bare_loop(model, updates), repeats=15)
        rate = updates / statistics.median(engine_times)
        rows.append((f"{name}: client updates per second", f"{rate:,.0f}", "5 steps of batch 10, FedAsync, M_c = 20"))
        rows.append((f"{name}: engine / bare loop", ratio(engine_times, bare_times), "target for the CNN <= 1.10"))
        rows.append((f"{name}: before the first step", f"{compiling:.1f} s", "schedule, plan and compilation"))
    return rows


def lanes() -> list[Row]:
    """Speed against L."""
    sim, updates = simulation(afl.models.mlp(10, hidden=(32,))), 2000
    widths = (1, 4, 8, 16)
    times = seconds_of(*(engine_loop(sim, updates, width) for width in widths), repeats=3)
    return [
        (f"L = {width}: client updates per second", f"{updates / statistics.median(column):,.0f}", "MLP 784-32-10")
        for width, column in zip(widths, times, strict=True)
    ]


def replies() -> list[Row]:
    """Microseconds of a server step if the server replies, beside one that does not."""
    rows = []
    for name, model in (("logistic", afl.models.logistic(10)), ("MLP 784-128-10", afl.models.mlp(10, hidden=(128,)))):
        planned = simulation(model)
        replying = dataclasses.replace(planned, server=afl.server.asyncfeded(kappa=0.0))
        both = seconds_of(engine_loop(replying, 1000), engine_loop(planned, 1000), repeats=5)
        step = f"{1e3 * statistics.median(both[0]):,.0f} µs"
        rows.append((f"{name}: a step of AsyncFedED / of FedAsync", ratio(*both), f"{step} a step of AsyncFedED"))
    return rows


def sweep() -> list[Row]:
    """Eight members as a sweep against eight runs."""
    sim, seeds = simulation(afl.models.mlp(10, hidden=(32,))), range(8)
    buffered = afl.clock.free_running(concurrency=20, buffer=5, durations=afl.clock.uniform(1, 5))
    shared = dataclasses.replace(sim, server=afl.server.fedbuff(staleness="none"), clock=buffered)
    rates = [0.1 * (1 + index) for index in seeds]

    def apart() -> None:
        for rate in rates:
            dataclasses.replace(shared, server=afl.server.fedbuff(rate, staleness="none")).run(200, eval_every=200)

    several = seconds_of(
        timed(lambda: afl.sweep(sim, {"seed": seeds}, 1000, eval_every=1000)),
        timed(lambda: [sim.run(1000, eval_every=1000, seed=seed) for seed in seeds]),
        timed(lambda: afl.sweep(shared, {"server.learning_rate": rates}, 200, eval_every=200)),
        timed(apart),
        repeats=3,
    )
    return [
        ("sweep of 8 seeds / 8 runs (MLP)", ratio(*several[:2]), "schedules of their own, programs ready"),
        ("sweep of 8 server rates / 8 runs (MLP, FedBuff)", ratio(*several[2:]), "one schedule"),
    ]


SECTIONS = {"overhead": overhead, "lanes": lanes, "replies": replies, "sweep": sweep}


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
