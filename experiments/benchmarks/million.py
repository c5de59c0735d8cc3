"""Measures what a million clients take: python experiments/benchmarks/million.py [CLIENTS]"""

from __future__ import annotations

import argparse
import pathlib
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import jaxafl as afl
from jaxafl import data, plot


def memory(what: str) -> int:
    """Bytes that the process holds (VmRSS), or held at most (VmHWM)."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(what))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clients", nargs="?", type=int, default=10**6)
    clients = parser.parse_args().clients
    folder = pathlib.Path(tempfile.mkdtemp())

    def timed(what: str, make: Callable[[], Any]) -> Any:
        """Prints the seconds, and by how much the memory of the process was larger meanwhile than before (Linux)."""
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # the largest is counted from here on
        before, begun = memory("VmRSS"), time.perf_counter()
        made = make()
        seconds = time.perf_counter() - begun
        print(f"{what:44} {seconds:7.2f} s {(memory('VmHWM') - before) / clients:8.0f} B a client", flush=True)
        return made

    rng = np.random.default_rng(0)
    samples = 4 * clients
    x, y = rng.normal(size=(samples, 2)).astype(np.float32), rng.integers(0, 10, samples).astype(np.int32)
    owners = np.concatenate([np.arange(clients), rng.integers(0, clients, samples - clients)])
    lazy = timed("synthetic, lazy", lambda: data.synthetic(1, 1, clients=clients, lazy=True, max_size=100))
    stored = timed("from_arrays", lambda: data.from_arrays(x, y, owners, x_test=x[:100], y_test=y[:100]))
    timed("a part held out", lambda: stored.with_validation(0.5))
    for name, of in (("lazy", lazy), ("stored", stored)):
        statistics = timed(f"statistics, {name}", of.statistics)
        timed(f"their table, {name}", lambda found=statistics: str(found))
        timed(f"their figure, {name}", lambda found=statistics: data.heat_map(found, folder / "heat_map.png"))
        for concurrency in (100, 10_000):
            times = afl.clock.lognormal(0.0, 1.0, per="client")
            clock = afl.clock.free_running(concurrency=concurrency, buffer=10, durations=times)
            client, model = afl.Client(learning_rate=0.01, steps=2, batch_size=2), afl.models.logistic(num_classes=10)
            sim = afl.Simulation(of, model, client, afl.server.fedbuff(staleness="none"), clock)
            for which in ("the first time", "again"):
                what = f"300 steps, M_c = {concurrency:,}, {name}, {which}"
                result = timed(what, lambda sim=sim: sim.run(300, save=str(folder / "result.nc")))
    for name in ("accuracy_vs_bytes", "accuracy_vs_time", "staleness_histogram", "timeline"):
        timed(f"figure {name}", lambda name=name: getattr(plot, name)(result, path=folder / "figure.png"))
    steps = np.arange(clients) % 3 + 1
    client, times = afl.Client(learning_rate=0.01, steps=steps, batch_size=2), afl.clock.constant(1.0 + steps)
    clock = afl.clock.free_running(concurrency=100, buffer=10, durations=times)
    own = afl.Simulation(lazy, afl.models.logistic(num_classes=10), client, afl.server.fedbuff(staleness="none"), clock)
    timed("steps and durations of each client", lambda: own.run(300))
    pooled = data.Dataset("samples", x, y, x[:100], y[:100], 10, data.as_is())
    for partition in (data.iid(clients), data.shards(2, clients), data.classes_per_client(2, clients),
                      data.dirichlet_equal(10.0, clients), data.lognormal_sizes(clients)):  # fmt: skip
        timed(f"partition {partition.name}", lambda partition=partition: pooled.partition(partition))


if __name__ == "__main__":
    main()
