"""Measures sweeps on several devices and by workers, and whether a sweep whose workers are killed ends as it should.

python experiments/benchmarks/executors.py rates                  # some minutes on two cores
python experiments/benchmarks/executors.py runs                   # likewise
python experiments/benchmarks/executors.py workers                # likewise
python experiments/benchmarks/executors.py kills 1000 50 DIR      # members, kills, an empty folder
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import os
import random
import resource
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Iterable
from typing import Any

import jax
import optax
from engine import images

import jaxafl as afl


def went_on(failed: Iterable[Any]) -> None:
    """Raises `ArithmeticError` if any run has failed: it then did less than what is measured."""
    if any(failed):
        raise ArithmeticError("a run of the benchmark has failed: its parameters stopped being finite")


def simulation(hidden: int, samples: int = 5000) -> afl.Simulation:
    """20 of 100 clients in flight, random 28×28 images."""
    client = afl.Client(optax.sgd, learning_rate=0.01, steps=5, batch_size=10)
    clock = afl.clock.free_running(concurrency=20, durations=afl.clock.uniform(1, 5))
    model = afl.models.mlp(10, hidden=(hidden,))
    return afl.Simulation(
        images(100, samples // 100), model, client, afl.server.fedasync(0.1, staleness="constant"), clock
    )


def rates(steps: int, pairs: int) -> None:
    """Updates per second of eight members: one after another, in threads of one device, and on all of a process, in
    turn."""
    models = {f"MLP 784-{hidden}-10": simulation(hidden) for hidden in (32, 128)}
    for name in ("cnn_small", "cnn_defedavg"):
        models[name] = dataclasses.replace(simulation(8), model=getattr(afl.models, name)(10))
    ways = {"one after another": 1, "in threads": None, "on all devices": len(jax.devices())}
    for name, sim in models.items():
        length = steps if name.startswith("MLP") else steps // 20
        found: dict[str, list[float]] = {way: [] for way in ways}
        for pair in range(-1, pairs):  # compiled before the first
            for way, devices in ways.items():
                begun = time.perf_counter()
                result = afl.sweep(sim, {"seed": range(8)}, length, eval_every=length, devices=devices)
                if pair >= 0:
                    found[way].append(8 * length / (time.perf_counter() - begun))
                went_on(result["failed_step"].values >= 0)
        print(name)
        for way in list(ways)[1:]:
            show({1: found["one after another"], 2: found[way]}, f"({way})")


def runs(seconds: float, pairs: int) -> None:
    """Updates per second of one run that all devices of a process share, against one of them, and of whole runs on
    each, in turn."""
    devices = len(jax.devices())

    def alone(sim: afl.Simulation, steps: int, count: int) -> float:
        result = sim.run(steps, eval_every=steps, devices=count)
        went_on([result.attrs["failed_step"] >= 0])
        return sim.clock.arrivals(100) * steps / result.attrs["run_seconds"]

    def whole(sim: afl.Simulation, steps: int) -> float:
        result = afl.sweep(sim, {"seed": range(devices)}, steps, eval_every=steps, devices=devices)
        went_on(result["failed_step"].values >= 0)
        return sim.clock.arrivals(100) * steps * devices / float(result["run_seconds"].max())

    models = {f"MLP 784-{hidden}-10": afl.models.mlp(10, hidden=(hidden,)) for hidden in (32, 128)}
    models["cnn_defedavg"] = afl.models.cnn_defedavg(10)
    flying = afl.clock.free_running(concurrency=20, buffer=5, durations=afl.clock.uniform(1, 5))
    methods: dict[str, tuple[afl.server.Server, afl.clock.Clock]] = {
        "FedAvg, 8 clients a round": (afl.server.fedavg(), afl.clock.synchronous(cohort=8)),
        "FedBuff, M = 5, 20 in flight": (afl.server.fedbuff(staleness="none"), flying),
    }
    for (name, model), (method, (server, clock)) in itertools.product(models.items(), methods.items()):
        sim = dataclasses.replace(simulation(128), model=model, server=server, clock=clock)
        alone(sim, 20, 1)
        steps = max(20, int(seconds * alone(sim, 20, 1) / clock.arrivals(100)))
        found: dict[str, list[float]] = {"one device": [], "one run, all devices": [], "whole runs, one on each": []}
        for number in range(pairs + 1):
            each = alone(sim, steps, 1), alone(sim, steps, devices), whole(sim, steps)
            for values, rate in zip(found.values(), each, strict=True):
                values += [rate] if number else []  # compiled once
        print(f"{name}, {method}, 5 local steps of 10 samples:", ", ".join(found))
        one, shared, apart = found.values()
        show({1: one, devices: shared}, "device(s)")
        show({0: apart, devices: shared}, "whole runs (0), or shared by as many devices")


def workers(steps: int, pairs: int) -> None:
    """The same of one and of two workers with a core each, in turn: the time of a long sweep less that of a short one,
    as each has its programs compiled."""
    sim, axes, short = simulation(128), {"seed": range(8)}, steps // 6
    cores, pools, found = sorted(os.sched_getaffinity(0)), {}, dict[int, list[float]]({1: [], 2: []})
    for count in found:
        os.sched_setaffinity(0, cores[:count])
        pools[count] = afl.process_pool(count)()
        with tempfile.TemporaryDirectory() as folder:  # the workers begin
            afl.sweep(sim, axes, 10, executor=pools[count], folder=folder)
    for _ in range(pairs):
        for count, values in found.items():
            seconds = []
            for length in (short, steps):
                with tempfile.TemporaryDirectory() as folder:
                    begun, how = time.perf_counter(), {"eval_every": length, "checkpoint_every": length}
                    afl.sweep(sim, axes, length, executor=pools[count], folder=folder, **how)
                    seconds.append(time.perf_counter() - begun)
            values.append(8 * (steps - short) / (seconds[1] - seconds[0]))
    show(found, "worker(s) of one core")


def show(found: dict[int, list[float]], what: str) -> None:
    """The rates, and the ratio of those that were measured in turn."""
    for count, values in found.items():
        print(f"{count} {what}: {statistics.median(values):,.0f} updates/s ({min(values):,.0f} to {max(values):,.0f})")
    ratios = [several / one for one, several in zip(found[min(found)], found[max(found)], strict=True)]
    print(f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


def kills(members: int, count: int, folder: str) -> None:
    """A sweep by a pool of two workers that are killed at random, against an undisturbed one in this process."""
    sim, axes, how = simulation(4, 500), {"seed": range(members)}, {"eval_every": 10}
    pools: list[Any] = []
    make, ended, killed = afl.process_pool(2), threading.Event(), [0]

    def making() -> Any:
        pools.append(make())
        return pools[-1]

    def kill() -> None:
        draw = random.Random()
        while killed[0] < count and not ended.wait(draw.uniform(6, 11)):
            if workers := list((pools[-1]._processes or {}) if pools else ()):
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.kill(draw.choice(workers), signal.SIGKILL)
                    killed[0] += 1

    killer = threading.Thread(target=kill)
    killer.start()
    begun = time.perf_counter()
    found = None
    while found is None:  # the same call goes on after the death of a worker
        with contextlib.suppress(RuntimeError):
            found = afl.sweep(sim, axes, 20, executor=making, folder=folder, checkpoint_every=10, **how)
    seconds = time.perf_counter() - begun
    ended.set()
    killer.join()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{members} members in {seconds:.0f} s, {killed[0]} kills, {len(pools)} pools; the parent held {most:.0f} MiB"
    )
    expected = afl.sweep(sim, axes, 20, **how)
    names = [str(name) for name in expected.variables if not str(name).endswith("_seconds")]
    differing = [name for name in names if found[name].values.tobytes() != expected[name].values.tobytes()]
    print(f"variables that differ from the undisturbed sweep: {', '.join(differing) or 'none'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["rates", "runs", "workers", "kills"])
    parser.add_argument("rest", nargs="*")
    given = parser.parse_args()
    if given.what in ("rates", "runs"):
        jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)
        rates(2000, 5) if given.what == "rates" else runs(4.0, 5)
    elif given.what == "workers":
        workers(12_000, 3)
    else:
        kills(int(given.rest[0]), int(given.rest[1]), given.rest[2])


if __name__ == "__main__":
    main()
