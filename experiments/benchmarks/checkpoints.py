"""Measures checkpoints: what saving costs, and whether runs that are killed at random instants end as they should.

    python experiments/benchmarks/checkpoints.py cost             # some minutes on two cores
    python experiments/benchmarks/checkpoints.py kills 1000 DIR   # goes on where it was interrupted

`kills` starts a run in a process of its own, kills it (SIGKILL) at a random instant after its first checkpoint, lets it
go on and kills it again. In DIR/kills.csv stands of every kill whether it fell inside a save, and of every run that
came to its end which variables of its result differed from those of the run that was never interrupted.
"""

from __future__ import annotations

import argparse
import csv
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import optax
from engine import images

import jaxafl as afl

KINDS = ("planned", "online", "sweep")


def simulation(kind: str, model: afl.models.Model, steps: int = 5) -> afl.Simulation:
    """20 of 100 clients in flight, random 28×28 images."""
    client = afl.Client(optax.sgd, learning_rate=0.01, steps=steps, batch_size=10)
    server = afl.server.asyncfeded(kappa=0.5) if kind == "online" else afl.server.fedasync(0.1, staleness="constant")
    clock = afl.clock.free_running(concurrency=20, durations=afl.clock.uniform(1, 5))
    return afl.Simulation(images(), model, client, server, clock)


def cost(pairs: int) -> None:
    """Runs with and without checkpoints every 30 seconds, in turn."""
    for name, model, steps in (
        ("MLP 784-128-10", afl.models.mlp(10), 120_000),
        ("cnn_defedavg", afl.models.cnn_defedavg(10), 12_000),
    ):
        sim, ratios = simulation("planned", model), []
        sim.run(50, eval_every=50)
        for number in range(pairs):
            seconds = {}
            for kept in ((False, True), (True, False))[number % 2]:
                with tempfile.TemporaryDirectory() as folder:
                    how: dict[str, Any] = {"folder": folder} if kept else {}
                    seconds[kept] = sim.run(steps, eval_every=steps, **how).attrs["run_seconds"]
            ratios.append(seconds[True] / seconds[False])
        spread = f"({min(ratios):.3f} to {max(ratios):.3f})"
        print(f"{name}: {seconds[False]:.0f} s; with / without {statistics.median(ratios):.3f} {spread}", flush=True)


def whole(kind: str, folder: str | None) -> Any:
    """A run of some seconds; `folder`: with checkpoints."""
    sim = simulation(kind, afl.models.mlp(10, hidden=(16,)), steps=2)
    if kind == "sweep":
        kept = {} if folder is None else {"folder": folder, "checkpoint_every": 40}
        return afl.sweep(sim, {"seed": [0, 1, 2]}, 400, eval_every=50, **kept)
    return sim.run(400, eval_every=50, **({} if folder is None else {"folder": folder, "checkpoint_every": 40}))


def names(folder: pathlib.Path) -> set[str]:
    """What is in a folder, and in the folders of it that hold checkpoints of a sweep."""
    folders = [folder, *folder.glob("batch-*")]
    return {f"{one.name}/{name}" for one in folders if one.is_dir() for name in os.listdir(one)}


def differing(found: Any, expected: Any) -> list[str]:
    """Variables that are not equal to the last bit, but for wall-clock times."""
    kept = [str(name) for name in expected.variables if not str(name).endswith("_seconds")]
    return [name for name in kept if found[name].values.tobytes() != expected[name].values.tobytes()]


def kills(count: int, folder: pathlib.Path) -> None:
    """Kills until there are so many in the table."""
    folder.mkdir(parents=True, exist_ok=True)
    table, draw = folder / "kills.csv", random.Random(os.urandom(8))
    fields = ["kind", "inside_a_save", "ended", "differing"]
    if not table.is_file():
        if any(folder.iterdir()):
            raise SystemExit(f"{folder} holds something else, and runs in it are deleted; name a new folder")
        table.write_text(",".join(fields) + "\n")
    expected = {kind: whole(kind, None) for kind in KINDS}

    def note(*row: Any) -> None:
        with table.open("a", newline="") as file:
            csv.writer(file).writerow(row)

    while (made := sum(row["ended"] == "0" for row in csv.DictReader(table.open()))) < count:
        kind = KINDS[made % len(KINDS)]
        run, output = folder / "run", folder / "result.nc"
        shutil.rmtree(run, ignore_errors=True)
        output.unlink(missing_ok=True)
        for again in range(6):
            before = names(run)
            process = subprocess.Popen(
                [sys.executable, __file__, "one", kind, str(run), str(output)], stderr=subprocess.DEVNULL
            )
            while process.poll() is None and not names(run) - before:
                time.sleep(0.002)
            try:
                code = process.wait(draw.uniform(0, 2.0) if again < 5 else None)
                note(
                    kind, "", 1, "; ".join(differing(afl.load(output), expected[kind])) if code == 0 else f"exit {code}"
                )
                break
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                note(kind, int(any("tmp" in name or ".part" in name for name in names(run))), 0, "")
    rows = list(csv.DictReader(table.open()))
    ended = [row for row in rows if row["ended"] == "1"]
    inside = sum(row["inside_a_save"] == "1" for row in rows)
    print(f"{len(rows) - len(ended)} kills, {inside} inside a save; {len(ended)} runs came to their end, ", end="")
    print(f"{sum(bool(row['differing']) for row in ended)} of them with another result")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["cost", "kills", "one"])
    parser.add_argument("rest", nargs="*")
    given = parser.parse_args()
    if given.what == "cost":
        cost(int(given.rest[0]) if given.rest else 3)
    elif given.what == "kills":
        kills(int(given.rest[0]), pathlib.Path(given.rest[1]))
    else:
        kind, folder, output = given.rest
        afl.save(whole(kind, folder), output)


if __name__ == "__main__":
    main()
