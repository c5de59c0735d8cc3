"""Measures simulators that users would pick instead beside jaxafl, in turn, in an environment of their own.

    python experiments/benchmarks/peers.py DIR     # makes the environment in DIR at first (1.3 GB); half an hour

Synchronous FedAvg with the CNN of pfl's CIFAR-10 benchmark: pfl 0.6 and FedJAX 0.0.17. FedAsync and FedBuff, 20 of 200
clients in flight, 5 local steps of 10 samples, with that CNN and with one for FEMNIST: FLGo 0.4, and a plain event loop
in PyTorch.
Every system runs in a process of its own, with all cores, from data in memory to the last update, and evaluates every
50 updates on 500 samples. The data is made: a pattern per class under noise. What of it is compiling stands beside.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time
from typing import Any

import jax
from peers_torch import ALPHA, BATCH, BUFFER, CLIENTS, COHORT, EVERY, EXPONENT, IN_FLIGHT, RATE, SAMPLES, STEPS, task

HERE = pathlib.Path(__file__).parent
PACKAGES = ("torch==2.13.0", "pfl[pytorch]==0.6.0", "flgo==0.4.4", "fedjax==0.0.17", f"jax=={jax.__version__}")
WORK = {
    ("fedavg", "pfl_cnn"): (("jaxafl", "pfl", "fedjax"), 200, 0.5),
    ("fedasync", "pfl_cnn"): (("jaxafl", "pytorch", "flgo"), 200, 0.5),
    ("fedbuff", "pfl_cnn"): (("jaxafl", "pytorch", "flgo"), 200, 0.5),
    ("fedasync", "femnist_cnn"): (("jaxafl", "pytorch", "flgo"), 400, 0.5),
    ("fedbuff", "femnist_cnn"): (("jaxafl", "pytorch", "flgo"), 400, 0.5),
}
"""(method, model) -> systems, updates, the accuracy that is waited for."""


def ours(method: str, name: str, updates: int) -> dict[str, Any]:
    """The same by jaxafl, once compiled."""
    import numpy as np
    import optax
    from flax import linen as nn

    import jaxafl as afl

    x, y, x_test, y_test, classes = task(name)

    # as PyTorch's layers begin, but for their biases
    start = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")

    class Network(nn.Module):
        @nn.compact
        def __call__(self, x: Any, train: bool = False) -> Any:
            for features, pool in ((32, False), (64, True)):  # pooling before the ReLU gives the same
                x = nn.relu(afl.models.Conv(features, (3, 3), kernel_init=start, pool=pool)(x))
            if name == "pfl_cnn":
                x = nn.Dropout(0.25, deterministic=not train)(x).reshape(len(x), -1)
                x = nn.relu(afl.models.Dense(128, kernel_init=start)(x))
                x = nn.Dropout(0.5, deterministic=not train)(x)
            return afl.models.Dense(classes, kernel_init=start)(x.reshape(len(x), -1))

    owner = np.repeat(np.arange(CLIENTS), SAMPLES)
    data = afl.data.from_arrays(x, y, owner, x_test=x_test, y_test=y_test, num_classes=classes)
    model = afl.models.from_linen(Network())
    client = afl.Client(optax.sgd, learning_rate=RATE, epochs=1, batch_size=BATCH)
    assert STEPS * BATCH == SAMPLES  # one epoch is what the others make
    times = afl.clock.uniform(1, 5, per="client")
    if method == "fedavg":
        server, clock, each = afl.server.fedavg(), afl.clock.synchronous(cohort=COHORT), COHORT
    elif method == "fedasync":
        server = afl.server.fedasync(ALPHA, staleness="polynomial", exponent=EXPONENT)
        clock, each = afl.clock.free_running(concurrency=IN_FLIGHT, durations=times), 1
    else:
        server, each = afl.server.fedbuff(1.0, staleness="none"), BUFFER
        clock = afl.clock.free_running(concurrency=IN_FLIGHT, buffer=BUFFER, durations=times)
    sim, found, seconds = afl.Simulation(data, model, client, server, clock), None, []
    for _ in range(2):
        begun = time.perf_counter()
        found = sim.run(updates // each, eval_every=max(EVERY // each, 1))
        seconds.append(time.perf_counter() - begun)
    curve = [[int(step) * each, float(value)] for step, value in zip(found.eval_step, found.accuracy, strict=True)]
    return {"updates": updates, "seconds": seconds[1], "compiling": seconds[0] - seconds[1], "accuracy": curve[1:]}


def measured(system: str, method: str, name: str, updates: int, python: str) -> dict[str, Any]:
    script = HERE / {"jaxafl": "peers.py", "fedjax": "peers_fedjax.py"}.get(system, "peers_torch.py")
    own = [sys.executable, str(script), "--child"] if system == "jaxafl" else [python, str(script), system]
    made = subprocess.run([*own, method, name, str(updates)], capture_output=True, text=True)
    if made.returncode:
        raise RuntimeError(f"{system}, {method}, {name}:\n{made.stderr[-2000:]}")
    return json.loads(made.stdout.strip().splitlines()[-1])


def until(result: dict[str, Any], target: float) -> float | None:
    """Seconds to the first evaluation at `target` or more, at the mean rate of the run."""
    reached = next((done for done, accuracy in result["accuracy"] if accuracy >= target), None)
    return None if reached is None else reached * result["seconds"] / result["updates"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--only", help="a method, or a model")
    given = parser.parse_args()
    python = str((given.folder / "bin" / "python").absolute())
    if not pathlib.Path(python).exists():
        subprocess.run([sys.executable, "-m", "venv", str(given.folder)], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
    print("| method | model | system | updates/s | jaxafl / it | seconds to accuracy | compiling |")
    print("|---|---|---|---|---|---|---|")
    for (method, name), (systems, updates, target) in WORK.items():
        if given.only not in (None, method, name):
            continue
        found: dict[str, list[dict[str, Any]]] = {system: [] for system in systems}
        for _ in range(given.pairs):
            for system in systems:
                found[system].append(measured(system, method, name, updates, python))
        for system, results in found.items():
            rates = [one["updates"] / one["seconds"] for one in results]
            ratios = sorted(b["updates"] / b["seconds"] / rate for b, rate in zip(found["jaxafl"], rates, strict=True))
            waited = [until(one, target) for one in results]
            reached = f"{statistics.median(waited):.1f} (to {target:.0%})" if None not in waited else "not reached"
            spread = f"{statistics.median(ratios):.1f} ({ratios[0]:.1f} to {ratios[-1]:.1f})"
            compiling = f"{statistics.median(one.get('compiling', 0.0) for one in results):.1f} s"
            columns = (method, name, system, f"{statistics.median(rates):.1f}", spread, reached, compiling)
            print(f"| {' | '.join(columns)} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(ours(sys.argv[2], sys.argv[3], int(sys.argv[4]))))
    else:
        main()
