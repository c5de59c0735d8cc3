"""Compiles the engine's programs for accelerators that are not there, and reads what the compiler made of them.

    pip install "jax[cuda13]"   # for an NVIDIA H200, or "jax[tpu]" for a TPU v5e; no driver and no device is needed
    python experiments/benchmarks/programs.py h200 --models mlp cnn_defedavg --lanes 1 16 64

For each program: memory per lane, the kernels and copies of a pass of each loop, whether the length of the loop is
known (else the host waits for the end of every pass to decide on the next), and what the host launches in a pass: XLA
joins the kernels between loops to CUDA graphs, each of which is launched as one. For a local step of all lanes: its
arithmetic and bytes, and the time that these and its kernels take: the larger of bytes / bandwidth and operations /
rate of float32 products, and 2.5 µs a kernel on a GPU, as if each were launched by itself. With

    XLA_FLAGS="--xla_gpu_enable_command_buffer=+WHILE --xla_gpu_graph_min_graph_size=1"

loops are parts of graphs too, and the host decides on none.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import math
import os
import pathlib
import re
import tempfile
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import topologies
from rich.console import Console
from rich.table import Table

import jaxafl as afl
from jaxafl.client import Lane, begin, local_step
from jaxafl.device import products
from jaxafl.engine.execution import Execution
from jaxafl.engine.lockstep import lockstep
from jaxafl.engine.online import online
from jaxafl.engine.planned import planned
from jaxafl.engine.problem import Speed
from jaxafl.engine.state import example_batch

TARGETS = ("h200", "v5e", "here")
_H200 = """
gpu_device_info {
  threads_per_block_limit: 1024  threads_per_warp: 32  shared_memory_per_block: 49152  shared_memory_per_core: 233472
  threads_per_core_limit: 2048  core_count: 132  fpus_per_core: 128  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535  block_dim_limit_z: 65535  memory_bandwidth: 4800000000000  l2_cache_size: 52428800
  clock_rate_ghz: 1.98  device_memory_size: 151397597184  shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 feature_extension: ACCELERATED_FEATURES }
  registers_per_core_limit: 65536  registers_per_block_limit: 65536  driver_version: "13.0.0"
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 patch: 0 }
runtime_version { major: 12 minor: 8 patch: 0 }
device_description_str: "NVIDIA H200 141GB HBM3e"
"""
LAUNCHED = {"fusion", "custom-call", "copy", "dot", "convolution", "sort", "scatter", "reduce", "dynamic-update-slice"}
WIDTHS = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "f32": 4, "s32": 4, "u32": 4, "f64": 8, "s64": 8, "u64": 8}
MODELS: dict[str, tuple[Callable[[], afl.models.Model], tuple[int, ...]]] = {
    "mlp": (lambda: afl.models.mlp(10), (28, 28, 1)),
    "cnn_defedavg": (lambda: afl.models.cnn_defedavg(10), (28, 28, 1)),
    "cnn_asyncfeded": (lambda: afl.models.cnn_asyncfeded(62), (28, 28, 1)),
    "resnet18": (lambda: afl.models.resnet18(10), (32, 32, 3)),
}
# By the vendors: float32 product operations (of a TPU, in six passes of bfloat16) and bytes of memory per second,
# seconds of a launch.
RATES = {"h200": (67e12, 4.8e12, 2.5e-6), "v5e": (33e12, 0.82e12, 1e-6)}
KINDS = ("alone", "synchronous", "shared", "lockstep", "online")
_MEMBERS, _STEPS = 8, 40
Made = tuple[Callable[..., Any], tuple[Any, ...], bool]


@dataclasses.dataclass(frozen=True)
class Loop:
    """A loop of a program: how deep it lies, its passes (`None`: unknown), and what one launches and copies."""

    depth: int
    passes: int | None
    launches: int
    copied: int


def loops_of(text: str) -> list[Loop]:
    """The loops of the text of a compiled program, the outer ones first."""
    bodies = {}
    for part in re.split(r"\n(?=(?:ENTRY )?%?[\w.\-]+ \(.*\) -> .* \{)", text):
        if name := re.match(r"(?:ENTRY )?%?([\w.\-]+) ", part):
            bodies[name[1]] = part
    found: list[Loop] = []

    def within(body: str, depth: int) -> None:
        for line in re.findall(r".* while\(.*", body):
            inner = bodies.get(match[1] if (match := re.search(r"body=%?([\w.\-]+)", line)) else "", "")
            known = re.search(r'known_trip_count":\{"n":"(\d+)"', line)
            called = "".join(
                bodies.get(name, "") for name in re.findall(r"(?:calls|to_apply)=%?(command_buffer[\w.\-]*)", inner)
            )
            kinds = re.findall(r"= .*? ([a-z\-]+)\(", inner + called)
            copied = sum(_bytes(shape) for shape in re.findall(r"= (\S+) copy\(", inner))
            launches = sum(kind in LAUNCHED for kind in kinds)
            found.append(Loop(depth, int(known[1]) if known else None, launches, copied))
            within(inner, depth + 1)

    within(next((body for name, body in bodies.items() if f"ENTRY %{name}" in text or f"ENTRY {name}" in text), ""), 0)
    return found


def host_launches(thunks: str) -> list[int]:
    """Of each loop, in the order of `loops_of`, what the host launches in a pass: graphs, and kernels outside of
    them, and nothing where the loop is in a graph itself. The text is XLA's own, of what a GPU executes."""
    found: list[int] = []
    path: list[tuple[str, int]] = []  # what a line is a part of, and which loop that is
    condition = False
    for line in thunks.splitlines():
        condition = line.strip() == "condition:" or (condition and line.strip() != "body:")
        if condition or not (one := re.match(r"( *)\d+: k(\w+)", line)):
            continue
        del path[len(one[1]) // 4 :]
        if path and path[-1][0] == "While" != one[2] and all(kind != "CommandBuffer" for kind, _ in path):
            found[path[-1][1]] += 1
        path.append((one[2], len(found)))
        found += [0] * (one[2] == "While")
    return found


def _bytes(shape: str) -> int:
    found = re.findall(r"(\w+)\[([\d,]*)\]", shape)
    return sum(WIDTHS.get(kind, 4) * math.prod(int(n) for n in sides.split(",") if n) for kind, sides in found)


@functools.cache  # which keeps the model that its programs are traced with
def simulation(name: str, kind: str) -> afl.Simulation:
    """FADAS with 25 of 100 clients in flight and M = 5, FedAvg with rounds of 25, or AsyncFedED with the clock beside
    the training."""
    make, shape = MODELS[name]
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (1000, *shape), dtype=np.uint8), rng.integers(0, 10, 1000)
    data = afl.data.from_arrays(x, y, np.repeat(np.arange(100), 10), x_test=x[:100], y_test=y[:100])
    client = afl.Client(optax.sgd, learning_rate=0.01, steps=5, batch_size=10)
    times = afl.clock.uniform(1, 5, per="client") * afl.clock.constant(0.1, per="step")
    if kind == "online":
        clock = afl.clock.free_running(concurrency=25, durations=times)
        return afl.Simulation(data, make(), client, afl.server.asyncfeded(base_rate=1.0, kappa=0.05), clock)
    if kind == "synchronous":
        return afl.Simulation(
            data, make(), client, afl.server.fedavg(), afl.clock.synchronous(cohort=25, durations=times)
        )
    clock = afl.clock.free_running(concurrency=25, buffer=5, durations=times)
    return afl.Simulation(data, make(), client, afl.server.fadas(0.01), clock)


@contextlib.contextmanager
def as_on_an_accelerator() -> Iterator[list[Made]]:
    """Programs are made as for an accelerator, not compiled, and listed with their arguments."""
    made: list[Made] = []

    def compile_(self: Execution, function: Any, constant: Any) -> Execution:
        arguments = (*constant, self.state, *[np.int32(0)] * 3)
        made.append((functools.partial(function, self.program), arguments, jax.config.read("jax_enable_x64")))
        return self

    with traced_for("gpu"), mock.patch.object(Execution, "compile", compile_):
        yield made


def traced_for(platform: str) -> Any:
    """Functions are traced as where JAX's default backend is this one."""
    return mock.patch.object(jax, "default_backend", lambda: platform)


def program(name: str, kind: str, lanes: int) -> Made:
    """The function that takes server steps, its arguments, and whether it is compiled with 64-bit types."""
    sim, speed = simulation(name, kind), Speed(lanes, lanes)
    with as_on_an_accelerator() as made:
        if kind == "online":
            online(sim.problem(0), _STEPS, speed)
        elif kind == "lockstep":
            problems, schedules = zip(
                *((sim.problem(seed), sim.schedule(_STEPS, seed)) for seed in range(_MEMBERS)), strict=True
            )
            lockstep(problems, schedules, _STEPS, Speed(lanes))
        else:
            rates = np.linspace(0.01, 0.1, _MEMBERS).tolist() if kind == "shared" else ()
            members = [dataclasses.replace(sim, server=afl.server.fadas(rate)) for rate in rates] or [sim]
            planned([member.problem(0) for member in members], sim.schedule(_STEPS), _STEPS, speed)
    return made[-1]


def compiled_for(
    target: str, function: Callable[..., Any], arguments: tuple[Any, ...], wide: bool = False, dump: str = ""
) -> Any:
    """The program for a device that is not there; `"here"`: for the one that is. The state is donated. What XLA made on
    the way is written to a folder, if one is given."""
    made = jax.jit(function, donate_argnums=len(arguments) - 4)
    if target == "here":
        with jax.enable_x64(wide), traced_for("gpu"):
            return made.lower(*arguments).compile()
    mesh = jax.sharding.Mesh(np.array(_devices(target)[:1]), ("device",))
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), arguments)
    with jax.enable_x64(wide), traced_for("tpu" if target == "v5e" else "gpu"):
        return made.lower(*shapes).compile({"xla_dump_to": dump} if dump else {})


def local_step_of(target: str, name: str, lanes: int) -> tuple[float, float]:
    """Floating-point operations of the products of a local step of all lanes, and bytes that what it launches reads and
    writes."""
    sim = simulation(name, "alone")
    problem, apply = sim.problem(0), sim.model.bound(None)

    def made(who: jax.Array) -> Lane:
        model = sim.model.init(jax.random.key(0), example_batch(sim.data.form))
        return begin(problem.hyperparameters.client, *model, problem.key, who, who)

    def steps(group: Lane, client: afl.Client, device: Any) -> Lane:
        def one(lane: Lane) -> Lane:
            fetch = functools.partial(sim.data.fetch, device.arrays)
            return local_step(client, apply, fetch, 10, device.counts[lane.client], lane)

        return jax.vmap(one)(group)

    group = jax.eval_shape(jax.vmap(made), jnp.arange(lanes, dtype=jnp.int32))
    arguments = (group, problem.hyperparameters.client, problem.device)
    operations = sum(products(jax.make_jaxpr(steps)(*arguments).jaxpr))
    text = compiled_for(target, steps, arguments).as_text()
    entry = text[text.index("ENTRY ") :]
    sizes = {name: _bytes(shape) for name, shape in re.findall(r"%([\w.\-]+) = (\(.*?\)|\S+) [a-z\-]+\(", entry)}
    launched = re.findall(r"%([\w.\-]+) = (?:\(.*?\)|\S+) ([a-z\-]+)\((.*?)\)", entry)
    read = sum(
        sizes.get(one, 0) for _, kind, of in launched if kind in LAUNCHED for one in re.findall(r"%([\w.\-]+)", of)
    )
    return float(operations), float(read + sum(sizes[name] for name, kind, _ in launched if kind in LAUNCHED))


@functools.cache
def _devices(target: str) -> list[Any]:
    if target == "h200":
        found = topologies.get_topology_desc(platform="cuda", target_config=_H200, topology="1x1x1")
    else:
        found = topologies.get_topology_desc("v5e:2x2", platform="tpu")
    jax.config.update("jax_platforms", "cpu")  # everything that really runs
    return list(found.devices)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--models", nargs="*", default=["mlp", "cnn_defedavg"], choices=list(MODELS))
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=KINDS)
    parser.add_argument("--lanes", nargs="*", type=int, default=[16])
    given = parser.parse_args()
    if given.target != "here":
        _devices(given.target)
    columns = (
        "program",
        "temporaries, MiB a lane",
        "each loop, from the outermost: passes; kernels, MB copied and what the host launches in a pass",
    )
    table = Table(*columns, title=f"{given.target}, jax {jax.__version__}")
    for name in given.models:
        for kind in given.kinds:
            for lanes in given.lanes:
                with tempfile.TemporaryDirectory() as folder:
                    made = compiled_for(given.target, *program(name, kind, lanes), dump=folder)
                    thunks = [file.read_text() for file in pathlib.Path(folder).glob("*after_thunk_passes.txt")]
                loops = loops_of(made.as_text())
                hosted = host_launches(thunks[0]) if thunks else ["?"] * len(loops)
                shown = [
                    f"{'  ' * loop.depth}{loop.passes or 'unknown'}; {loop.launches}, {loop.copied / 1e6:.2f}, {host}"
                    for loop, host in zip(loops, hosted, strict=True)
                ]
                memory = made.memory_analysis().temp_size_in_bytes / 2**20 / lanes
                if given.target in RATES and kind == "alone":
                    operations, moved = local_step_of(given.target, name, lanes)
                    rate, bandwidth, launch = RATES[given.target]
                    work, waiting = max(operations / rate, moved / bandwidth), max(loops, key=_depth).launches * launch
                    shown[-1] += f"\nlocal step: {operations / 1e6:.0f} MFLOP, {moved / 1e6:.1f} MB"
                    shown[-1] += f" ({operations / moved:.1f} a byte); {1e6 * work:.0f} + {1e6 * waiting:.0f} µs"
                table.add_row(f"{name}, {kind}, {lanes} lanes", f"{memory:.2f}", "\n".join(shown))
    Console(width=140).print(table)


def _depth(loop: Loop) -> tuple[int, int]:
    return loop.depth, loop.launches


if __name__ == "__main__":
    main()
