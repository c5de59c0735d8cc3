"""Runs the cells of a table in several processes on one device, and writes the table of those that end in time.

    python experiments/benchmarks/at_once.py experiments.throttle.mnist FOLDER --processes 15 --seconds 500
    python experiments/benchmarks/at_once.py ... --columns "no attack" NG          # these, in this order

A second call goes on. On an NVIDIA GPU, processes compute at the same time if MPS runs (`nvidia-cuda-mps-control -d`).
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import os
import pathlib
import subprocess
import sys
import time
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from experiments.suite import main, running


def run_cells(given: argparse.Namespace, experiment: Any) -> None:
    """Runs cells that no other process has claimed, one after another."""
    for column in given.columns:
        for method in experiment.methods:
            kept, cell = kept_in(given, experiment, method, column), experiment.cell(method, column, given.scale)
            if cell is None or (kept / "seconds").exists():
                continue
            try:
                pathlib.Path(f"{kept}.claim").mkdir(parents=True)
            except FileExistsError:
                continue
            begun = time.perf_counter()
            running._timed(cell, range(given.seeds), kept, None)
            print(f"ended: {column}, {method}: {time.perf_counter() - begun:.1f} s", flush=True)


def kept_in(given: argparse.Namespace, experiment: Any, method: str, column: str) -> pathlib.Path:
    """The folder of the runs of a cell."""
    place = pathlib.Path(running._plain(column)) / f"{running._plain(method)}_{given.seeds}"
    return given.folder / "runs" / experiment.family / given.scale / place


def start(given: argparse.Namespace, experiment: Any) -> None:
    """Starts the processes, ends them when the seconds are over, and writes the table of the cells that have ended."""
    begun = time.monotonic()
    for claim in given.folder.rglob("*.claim"):
        claim.rmdir()
    given.folder.mkdir(parents=True, exist_ok=True)
    os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.9 / given.processes:.3f}"  # evaluation takes a part of it
    made = []
    for number in range(given.processes):
        log = (given.folder / f"log_{number}.txt").open("w")
        made.append(subprocess.Popen([sys.executable, *sys.argv, "--work"], stdout=log, stderr=log))
    while any(one.poll() is None for one in made) and time.monotonic() < begun + given.seconds:
        time.sleep(0.5)
    failed = sum(one.poll() not in (None, 0) for one in made)
    for one in made:
        one.kill()
    said = f"; {failed} failed: see {given.folder}/log_*.txt" if failed else ""
    print(f"{given.processes} processes worked {time.monotonic() - begun:.1f} s{said}", flush=True)

    def cell(method: str, column: str, scale: str) -> Any:
        ended = (kept_in(given, experiment, method, column) / "seconds").exists()
        return experiment.cell(method, column, scale) if ended else None

    arguments = ["--scale", given.scale, "--seeds", str(given.seeds), "--folder", str(given.folder)]
    main(dataclasses.replace(experiment, cell=cell), [*arguments, "--columns", *given.columns], given.table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", help="its module")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--scale", default="paper")
    parser.add_argument("--columns", nargs="+")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    table = importlib.import_module(given.table).EXPERIMENT
    given.columns = given.columns or table.columns_at(given.scale)
    (run_cells if given.work else start)(given, table)
