"""Measures the package on an accelerator, the most important first; every part ends within its seconds.

    python experiments/benchmarks/accelerator.py DIR                    # all parts that DIR has not
    python experiments/benchmarks/accelerator.py DIR --part engine fadas
    python experiments/benchmarks/accelerator.py DIR --small            # tries itself, on a CPU in some minutes

A part writes its numbers into DIR/PART.json, what it has not come to too; DIR/report.md is made of all that are there.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import published
from engine import bare_loop, engine_loop, images, seconds_of, simulation, timed
from machine import machine, product_rate
from models import IMAGES, measure, programs, random_batches

import jaxafl as afl

Row = dict[str, Any]
ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTS = ["tests/server/test_by_hand.py", "tests/test_invariance.py", "tests/test_evaluate.py", "tests/test_sweep.py",
         "tests/models/test_bfloat16.py", "tests/server/test_conformance.py",
         "tests/callbacks/test_checkpoint.py"]  # fmt: skip
PRECISIONS: tuple[afl.models.Precision, ...] = ("float32", "tf32", "bfloat16")


class Clock:
    """What is left of the time of a part."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds
        self.missed: list[str] = []

    def has(self, seconds: float, name: str) -> bool:
        """Whether so many seconds are left for what is called so."""
        if time.monotonic() + seconds < self.end:
            return True
        self.missed.append(name)
        return False


def tests(clock: Clock, small: bool) -> Iterator[Row]:
    """Servers, clocks and invariances, with products in float32; and what is marked for GPUs."""
    chosen = TESTS[:1] if small else TESTS
    environment = os.environ | {"JAX_DEFAULT_MATMUL_PRECISION": "float32", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    marked = "not slow and not data and not tfds and not browser"
    command = [sys.executable, "-m", "pytest", "-o", "addopts=", "-v", "-m", marked, "-n", "8", *chosen]
    begun = time.monotonic()
    made = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        out, _ = made.communicate(timeout=max(30.0, clock.end - begun - 20))
    except subprocess.TimeoutExpired:
        made.send_signal(signal.SIGINT)
        out, _ = made.communicate()
    (_folder / "tests.log").write_text(out)
    failed = sorted({f"FAILED {line.split()[-1]}" for line in out.splitlines() if " FAILED " in line})
    passed = sum(" PASSED " in line for line in out.splitlines())
    yield {"what": " ".join(chosen), "passed": passed, "failed": len(failed), "seconds": time.monotonic() - begun}
    yield from ({"what": line} for line in failed[:50])


def engine(clock: Clock, small: bool) -> Iterator[Row]:
    """Updates per second of FedAsync against the number of lanes, and the engine against a bare loop at one lane."""
    models = {"mlp": afl.models.mlp(10, hidden=(128,)), "cnn_defedavg": afl.models.cnn_defedavg()}
    if not small:
        models |= {"resnet18": afl.models.resnet18()}
    for name, model in models.items():
        for lanes in (1, 4) if small else (1, 8, 32, 128, 512):
            if not clock.has(15 if not small else 5, f"{name}, {lanes} lanes"):
                return
            sim, updates = wide(model, name, max(2 * lanes, 20)), 4 * max(lanes, 20)
            begun = time.perf_counter()
            try:
                engine = engine_loop(sim, updates, lanes)
                engine()
                first = time.perf_counter() - begun
                bare = [bare_loop(model, updates)] if lanes == 1 and name not in IMAGES else []
                times = seconds_of(engine, *bare, repeats=3)
            except MemoryError as error:
                yield {"model": name, "lanes": lanes, "error": str(error)[:200]}
                break
            row = {"model": name, "lanes": lanes, "updates/s": updates / statistics.median(times[0]), "first s": first}
            if bare:
                row["engine / bare"] = statistics.median(a / b for a, b in zip(*times, strict=True))
            yield row


def wide(model: afl.models.Model, name: str, in_flight: int) -> afl.Simulation:
    """FedAsync with so many of four times as many clients in flight."""
    sim, data = simulation(model), images(max(100, 4 * in_flight), 20, IMAGES.get(name, (28, 28, 1)))
    clock = afl.clock.free_running(concurrency=in_flight, durations=afl.clock.uniform(1, 5))
    return dataclasses.replace(sim, data=data, clock=clock)


def sweeps(clock: Clock, small: bool) -> Iterator[Row]:
    """Updates per second of members that share a plan, and of members with plans of their own in lockstep."""
    buffered = afl.clock.free_running(concurrency=20, buffer=5, durations=afl.clock.uniform(1, 5))
    for name, model in (("mlp", afl.models.mlp(10, hidden=(128,))), ("cnn_defedavg", afl.models.cnn_defedavg())):
        sim, steps = (
            dataclasses.replace(simulation(model), clock=buffered, server=afl.server.fedbuff(0.1, staleness="none")),
            20,
        )
        for members in (2, 4) if small else (1, 16, 128):
            if not clock.has(12 if not small else 5, f"{name}, {members} members"):
                return
            axes = {
                "shared": {"server.learning_rate": np.linspace(0.1, 1.0, members).tolist()},
                "seeds": {"seed": range(members)},
            }
            for kind, axis in axes.items():
                (times,) = seconds_of(
                    timed(functools.partial(afl.sweep, sim, axis, steps, eval_every=steps)), repeats=3
                )
                rate = steps * 5 * members / statistics.median(times)
                yield {"model": name, "members": members, "kind": kind, "updates/s": rate}


def models(clock: Clock, small: bool) -> Iterator[Row]:
    """A client step of every convolutional model: two convolutions, clients at once, precisions."""
    clients, steps = (2, 2) if small else (16, 4)
    for name in ["cnn_small"] if small else ["cnn_small", "cnn_defedavg", "resnet20", "resnet18"]:
        for precision in _there()[1 - small :]:
            if not clock.has(8 if not small else 5, f"{name}, {precision}"):
                return
            batches = random_batches(IMAGES[name], clients, steps, 20)
            chunks = [1, clients]
            model = getattr(afl.models, name)(10).at(precision)
            with jax.default_matmul_precision("float32" if precision == "float32" else None):
                found = list(programs(model, batches, chunks, skip_lax=small))
            for program, times in zip(found, measure(found, 3), strict=True):
                row = {"model": name, "precision": precision, "convolution": program.convolution}
                step = 1e3 * statistics.median(times) / clients / steps
                yield row | {"chunk": program.chunk, "ms a client step": step, "temporaries MiB": program.mebibytes}


def _there() -> list[afl.models.Precision]:
    return [one for one in PRECISIONS if one != "tf32" or jax.default_backend() == "gpu"]


def fadas(clock: Clock, small: bool) -> Iterator[Row]:
    """FADAS's CIFAR-10 at its scale: ResNet-18, 50 clients, 25 in flight, M = 5, two epochs of batch 50. Seconds of
    500 server steps, and the share of the device's rate of products in that precision; evaluation apart."""
    clients, samples = (10, 20) if small else (50, 1000)
    data = images(clients, samples, (32, 32, 3))
    model = afl.models.cnn_small() if small else afl.models.resnet18()
    client = afl.Client(optax.sgd, learning_rate=0.01, epochs=1 if small else 2, batch_size=10 if small else 50)
    tiers = afl.clock.three_tier("large")
    clock_ = afl.clock.free_running(concurrency=clients // 2, buffer=clients // 10 or 1, durations=tiers)
    for precision in _there()[::-1]:
        for lanes in (None, 4) if precision == "tf32" else (None,):
            if not clock.has(5 if small else 15, f"{precision}, {lanes} lanes"):
                return
            sim = afl.Simulation(data, model, client, afl.server.fadas(1e-3), clock_, precision)
            steps = 4 if small else 10
            (times,) = seconds_of(engine_loop(sim, steps, lanes), repeats=1)
            local_steps = sim.schedule(steps).of_arrivals("local_steps").sum()
            flop = 3 * 2 * 0.5558e9 * 50 * local_steps  # products of ResNet-18, forward and twice that backward
            row = {"precision": precision, "lanes": str(lanes), "seconds of 500 steps": times[0] / steps * 500}
            yield row | ({} if small else {"share of the rate of products": flop / times[0] / rate_in(precision)})


def rate_in(precision: afl.models.Precision) -> float:
    """Floating-point operations per second of a product of two 8192 × 8192 matrices."""
    side, kind = 8192, jnp.bfloat16 if precision == "bfloat16" else jnp.float32
    with jax.default_matmul_precision({"float32": "float32", "tf32": "tensorfloat32"}.get(precision)):
        return product_rate(side, kind)


def first_run(clock: Clock, small: bool) -> Iterator[Row]:
    """Seconds to compile with two cores, as on Colab, and updates/s of FedAsync with 8 lanes, by XLA's options."""
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    for options in ("", "--xla_gpu_autotune_level=0", "--xla_gpu_enable_triton_gemm=false"):
        for name in ("mlp",) if small else ("mlp", "cnn_defedavg"):
            if not clock.has(5 if small else 30, f"{name} {options}"):
                return
            command = ["taskset", "-c", "0,1", sys.executable, __file__, str(_folder), "--first-run", name]
            made = subprocess.run(command, env=environment | {"XLA_FLAGS": options}, stdout=subprocess.PIPE, check=True)
            yield {"model": name, "options": options} | json.loads(made.stdout.splitlines()[-1])


def first_run_of(name: str) -> Row:
    """A row of `first_run`, in its process."""
    model = afl.models.mlp(10, hidden=(128,)) if name == "mlp" else afl.models.cnn_defedavg()
    run, begun = engine_loop(wide(model, name, 20), 400, 8), time.perf_counter()
    run()
    first = time.perf_counter() - begun
    (times,) = seconds_of(run, repeats=3)
    return {"first s": first, "updates/s": 400 / statistics.median(times)}


def profile(clock: Clock, small: bool) -> Iterator[Row]:
    """A trace of the engine with an MLP, for XProf, beside the report."""
    run = engine_loop(simulation(afl.models.mlp(10, hidden=(128,))), 200, 1 if small else 16)
    run()
    with jax.profiler.trace(str(_folder / "trace")):
        run()
    yield {"trace": str(_folder / "trace")}


def pfl(clock: Clock, small: bool) -> Iterator[Row]:
    """pfl's CIFAR-10 benchmark (1000 clients of 50 images, 50 a round, batch 10, one epoch): seconds of 1500 rounds."""
    yield from published.pfl(clock.has, small)


def table1(clock: Clock, small: bool) -> Iterator[Row]:
    """FADAS's Table 1, CIFAR-10, Dir(0.1), large delays, as published: ResNet-18, 500 steps, one seed, bfloat16."""
    yield from published.table1(clock.has, small)


PARTS: dict[str, Callable[[Clock, bool], Iterator[Row]]] = {
    "tests": tests, "engine": engine, "fadas": fadas, "pfl": pfl, "models": models, "sweeps": sweeps,
    "first_run": first_run, "table1": table1, "profile": profile,
}  # fmt: skip
SECONDS = {"tests": 150, "engine": 110, "fadas": 55, "pfl": 110, "models": 50, "sweeps": 45, "first_run": 200,
           "table1": 560, "profile": 60}  # fmt: skip


_folder = pathlib.Path()


def report(folder: pathlib.Path) -> str:
    """All parts that are there, as tables."""
    text = []
    for name in PARTS:
        if not (path := folder / f"{name}.json").exists():
            continue
        part = json.loads(path.read_text())
        text += [f"## {name}", "", str(PARTS[name].__doc__), "", f"{part['device']}; {part['machine']}", ""]
        columns = list(dict.fromkeys(column for row in part["rows"] for column in row))
        text += [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
        text += [f"| {' | '.join(_shown(row.get(column, '')) for column in columns)} |" for row in part["rows"]]
        text += ["", f"Not come to: {', '.join(part['missed'])}." if part["missed"] else "", ""]
    return "\n".join(text)


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main() -> None:
    global _folder
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--part", nargs="*", choices=list(PARTS))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--seconds", type=float, default=1.0, help="times the seconds of every part")
    parser.add_argument("--first-run", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.first_run:
        print(json.dumps(first_run_of(given.first_run)))
        return
    _folder = given.folder / "small" if given.small else given.folder  # a part that has its file is not run again
    _folder.mkdir(parents=True, exist_ok=True)
    device = jax.devices()[0]
    for name in given.part or PARTS:
        path = _folder / f"{name}.json"
        if path.exists():
            continue
        clock, rows, begun = Clock(SECONDS[name] * given.seconds), list[Row](), time.monotonic()
        found = {"device": f"{device.device_kind}, jax {jax.__version__}", "machine": machine(), "rows": rows}
        try:
            for row in PARTS[name](clock, given.small):
                rows.append(row)
                print(name, row, flush=True)
        except Exception as error:  # the other parts go on, and what was measured stays
            rows.append({"error": f"{type(error).__name__}: {error}"[:500]})
            print(name, rows[-1], flush=True)
        path.write_text(json.dumps(found | {"missed": clock.missed, "seconds": time.monotonic() - begun}, indent=1))
        (_folder / "report.md").write_text(report(_folder))


if __name__ == "__main__":
    main()
