"""Measures the clock alone, in some minutes: python experiments/benchmarks/clock.py

Every figure is the median of three; the machine's own rates stand above the table.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from machine import machine
from rich.console import Console
from rich.table import Table

from jaxafl import clock as clocks
from jaxafl.clock import Draw, Duration, Run, schedule, worked
from jaxafl.device.keys import per_run, uniform

EVENTS, REPEATS = 20_000, 3


class own(Duration):
    """A duration as a user writes one: traced, of several elementary functions."""

    def draw(self, prepared: Any, run: Run) -> Draw:
        share = uniform(per_run(prepared[0], run.client, run.run), jnp.float64)
        return worked(jnp.where(share < 0.1, 50.0, 1.0) * (1 + jnp.sin(run.client) ** 2) - jnp.log1p(-share))


def main() -> None:
    print(machine(), flush=True)
    console = Console(width=150)
    console.print(rates())
    console.print(protocols())


def protocols() -> Table:
    """Events per second of CPU time of protocols in which all N clients train."""
    durations = clocks.uniform(1, 5)
    per_step = clocks.uniform(1, 5, per="client") * clocks.uniform(0.5, 1.5, per="step")
    sizes = (10**3, 10**5)
    table = Table("protocol", *(f"N = {size:,}" for size in sizes), title="events per second, all clients in training")
    made: dict[str, Callable[[int], tuple[clocks.Clock, int]]] = {
        "free_running": lambda size: (clocks.free_running(concurrency=size, durations=durations), size),
        "ringleader": lambda size: (clocks.ringleader(durations=durations), size),
        "warm_up(free_running)": lambda size: (
            clocks.warm_up(clocks.free_running(concurrency=size, durations=durations)),
            size,
        ),
        "rounds_until_all": lambda size: (clocks.rounds_until_all(durations=durations), size),
        "every_buffer, B = 10": lambda size: (clocks.every_buffer(durations=durations, buffers=10), size // 10),
        "harmonic": lambda size: (clocks.harmonic(durations=durations), 1),
        "routed": lambda size: (clocks.routed(durations=durations), size),
        "compass": lambda size: (clocks.compass(durations=per_step, min_steps=5, max_steps=30), size),
    }
    for name, build in made.items():
        cells = []
        for size in sizes:
            clock, steps = build(size)
            schedule(clock, size, 5, steps)  # compiles
            begun = time.process_time()
            found = schedule(clock, size, 5, steps, seed=1)
            spent = time.process_time() - begun
            unused = (found.runs_refused, found.runs_stopped, found.runs_lost)
            events = len(found.of_arrivals("client")) + sum(int(count[-1]) for count in unused)
            cells.append(f"{events / spent:,.0f}")
        table.add_row(name, *cells)
    return table


def rates() -> Table:
    """Events per second."""
    per_step = clocks.uniform(1, 5, per="client") * clocks.constant(0.1, per="step") + clocks.suspension(0.1)
    durations = {
        "uniform": clocks.uniform(1, 5),
        "lognormal": clocks.lognormal(0.0, 1.0),
        "three_tier": clocks.three_tier(),
        "per client and step, suspended": per_step,
        "a user's own": own(),
    }
    sizes = {"M_c = 20, N = 100": (20, 100), "10³, 10⁵": (1000, 10**5), "10³, 10⁶": (1000, 10**6)}
    table = Table("durations", *sizes, "compiled in, s", title="starts per second, each with the arrival before it")
    for name, duration in durations.items():
        cells, compiling = [], []
        for concurrency, clients in sizes.values():
            clock = clocks.free_running(concurrency=concurrency, buffer=10, durations=duration)
            run = functools.partial(schedule, clock, clients, 5, EVENTS // 10)
            begun = time.perf_counter()
            run(seed=0)
            first = time.perf_counter() - begun
            times = []
            for seed in range(REPEATS):
                begun = time.perf_counter()
                starts = run(seed=seed).runs_started
                times.append((time.perf_counter() - begun) / starts)
            cells.append(f"{1 / statistics.median(times):,.0f}")
            compiling.append(first - statistics.median(times) * starts)
        table.add_row(name, *cells, f"{min(compiling):.1f} to {max(compiling):.1f}")
    return table


if __name__ == "__main__":
    main()
