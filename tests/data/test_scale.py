"""Many clients: memory of loading and running, measured in a process of its own."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

import jaxafl.data as data

CHECKOUT = pathlib.Path(data.__file__).resolve().parents[2]
LIMIT = 4 * 10**9  # bytes

COMMON = """
import resource

import numpy as np
import optax

import jaxafl as afl


def simulate(federated, model, server, **clock):
    sim = afl.Simulation(
        data=federated,
        model=model,
        client=afl.Client(optax.sgd, learning_rate=0.05, steps=2, batch_size=16),
        server=server,
        clock=afl.clock.free_running(durations=afl.clock.exponential(1.0), **clock),
    )
    result = sim.run(4, eval_every=4)
    assert np.isfinite(result.loss.values).all() and result.attrs["failed_step"] == -1
"""

WRITERS = """
rng = np.random.default_rng(0)
sizes = rng.lognormal(np.log(210), 0.4, 3500).astype(int) + 2
assert sizes.sum() > 3500 * 220
users = np.repeat(np.arange(3500), sizes)
x, y = rng.integers(0, 256, (len(users), 28, 28, 1), np.uint8), rng.integers(0, 62, len(users))
x.flags.writeable = False  # is not copied
dataset = afl.data.Dataset("writers", x, y, x[:8000], y[:8000], 62, afl.data.normalise(255.0), users=users)
federated = dataset.partition(afl.data.by_user())
assert federated.num_clients == 3500 and federated.arrays["x"] is x
simulate(federated, afl.models.cnn_asyncfeded(62), afl.server.fedbuff(), concurrency=100, buffer=10)
"""

SYNTHETIC = """
federated = afl.data.synthetic(1, 1, clients=100_000, lazy=True)
assert federated.num_clients == 100_000
simulate(federated, afl.models.logistic(10), afl.server.fedasync(), concurrency=100)
simulate(federated, afl.models.logistic(10), afl.server.fedbuff(), concurrency=1000, buffer=10)
"""

# Kibibytes on Linux, bytes on macOS.
PEAK = """
import pathlib
import sys

if sys.platform == "linux":  # where getrusage also counts what the process held that has started this one
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    print(int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) * 1024)
else:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024))
"""


@pytest.mark.slow
@pytest.mark.parametrize("code", [WRITERS, SYNTHETIC], ids=["3500 writers", "100000 synthetic clients"])
def test_many_clients_run_within_four_gigabytes(code):
    command = [sys.executable, "-c", COMMON + code + PEAK]
    finished = subprocess.run(command, capture_output=True, text=True, cwd=CHECKOUT, check=False)
    assert finished.returncode == 0, finished.stderr
    assert int(finished.stdout.split()[-1]) < LIMIT
