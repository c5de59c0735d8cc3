"""Published workloads on an accelerator: pfl's CIFAR-10 benchmark beside pfl itself, and FADAS's Table 1."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

HERE = pathlib.Path(__file__).parent
PFL = {"PEERS_CLIENTS": "1000", "PEERS_RATE": "0.1", "PEERS_EVERY": "500"}  # 1000 × 50 images, 50 a round
ROUNDS = 1500  # published


def pfl(seconds_left: Callable[[float, str], bool], small: bool) -> Iterator[dict[str, Any]]:
    """Seconds of 1500 rounds of pfl's CIFAR-10 benchmark from some of them: jaxafl, and pfl in 1 and 5 processes."""
    for system, processes in (("jaxafl", 1), ("pfl", 1), ("pfl", 5)):
        if not seconds_left(5 if small else 25, f"{system}, {processes} processes"):
            return
        rounds = 10 if small else 100 if system == "jaxafl" else 50
        script = ["peers.py", "--child"] if system == "jaxafl" else ["peers_torch.py", "pfl"]
        command = [sys.executable, str(HERE / script[0]), script[1], "fedavg", "pfl_cnn", str(50 * rounds)]
        made = []
        for rank in range(processes):
            environment = os.environ | PFL
            if processes > 1:
                addresses = ",".join(f"127.0.0.1:{29500 + index}" for index in range(processes))
                environment |= {"PFL_WORKER_RANK": str(rank), "PFL_WORKER_ADDRESSES": addresses}
            to = subprocess.DEVNULL if rank else subprocess.PIPE  # a full pipe that nobody reads blocks
            made.append(subprocess.Popen(command, env=environment, stdout=to, stderr=to))
        timer = threading.Timer(60, lambda made=made: [one.kill() for one in made])
        timer.start()
        out, error = made[0].communicate()
        timer.cancel()
        for one in made[1:]:
            one.kill()
        row: dict[str, Any] = {"system": system, "processes": processes}
        if made[0].returncode:
            yield row | {"error": error.decode()[-300:]}
            continue
        found = json.loads(out.decode().strip().splitlines()[-1])
        per_round = found["seconds"] / found["updates"] * 50
        accuracy = found["accuracy"][-1] if found["accuracy"] else None
        yield row | {
            "seconds of 1500 rounds": per_round * ROUNDS,
            "compiling s": found.get("compiling"),
            "at": accuracy,
        }


def table1(seconds_left: Callable[[float, str], bool], small: bool) -> Iterator[dict[str, Any]]:
    """FADAS's Table 1, CIFAR-10, Dir(0.1), large delays, as published (500 steps, ResNet-18), one seed, in bfloat16.

    The last evaluations of a run that the time ends are a row too.
    """
    import jaxafl as afl

    sys.path.insert(0, str(HERE.parents[1]))
    from experiments.fadas.setting import METHODS, cell_of
    from experiments.fadas.table1 import EXPERIMENT

    class InTime(afl.callbacks.Callback):
        def chunk(self, chunk: afl.callbacks.Chunk) -> str | None:
            return None if seconds_left(10, method) else "its time is over"

    column = "CIFAR-10, Dir(0.1), large"
    for method in ("FADAS", "FedBuff", "FADAS_da"):
        if not seconds_left(5 if small else 150, method):
            return
        cell = cell_of(METHODS, method, column, "smoke" if small else "paper")
        sim, begun = dataclasses.replace(cell.make(), precision="bfloat16"), time.perf_counter()
        folder = pathlib.Path(tempfile.gettempdir()) / "jaxafl_table1" / method  # a second call goes on
        how: dict[str, Any] = {"checkpoint_every": "2min", "callbacks": [InTime()], "progress": True}
        result = sim.run(cell.lengths()[0], eval_every=10, folder=folder, **how)
        result.to_netcdf(f"{folder}.nc")
        last = 100 * np.asarray(result.accuracy)[-5:]
        row = {"method": method, "server steps": int(result.eval_step[-1]), "last 5 evaluations %": float(last.mean())}
        published = next(iter(EXPERIMENT.published.values()))[column][method]
        row |= {"std": float(last.std()), "published": str(published)}
        yield row | {"seconds": time.perf_counter() - begun}
