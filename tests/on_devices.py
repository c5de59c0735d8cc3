"""A process with several CPU devices: `python -m tests.on_devices sweeps|runs N`; prints what differs, as JSON."""

from __future__ import annotations

import json
import sys
import tempfile
from typing import Any

import jax
import numpy as np
import optax

import jaxafl as afl
from tests.problems import quadratic
from tests.sweep.conftest import differing, simulation

STEPS = 12


def sweeps(devices: int) -> dict[str, Any]:
    """Compares sweeps on all devices of this process with those on one."""
    found: dict[str, Any] = {}
    grids = {
        "apart": (simulation(hidden=300), {"seed": range(5)}),
        "together": (simulation(), {"server.learning_rate": [0.2, 0.4, 0.6, 0.8, 1.0]}),
        "replying": (simulation("online"), {"seed": range(3)}),
        "seeds": (simulation(), {"seed": range(devices + 1)}),
    }
    for name, (sim, axes) in grids.items():
        alone = afl.sweep(sim, axes, 8, eval_every=4, together=1)
        found[name] = differing(afl.sweep(sim, axes, 8, eval_every=4, devices="all", together=1), alone)
        spread = afl.sweep(sim, axes, 8, eval_every=4, devices=devices)
        found[f"{name}, close"] = differing(spread, alone, tolerance=1e-5)
    return found


def cases() -> dict[str, tuple[Any, Any, Any]]:
    """Returns server, clock and client of every way to run: sums, a store of updates, rows and models of clients."""
    kinds, times = afl.server, afl.clock.uniform(1, 5)
    some = afl.Client(optax.sgd, learning_rate=0.05, steps=3, batch_size=2)
    whole = afl.Client(optax.sgd, learning_rate=1.0, steps=1, batch_size=None)
    early = afl.Client(optax.sgd, learning_rate=0.05, epochs=3, batch_size=2, patience=1)
    few = afl.upload.error_feedback(afl.upload.top_k(count=1))
    corrected = afl.Client(learning_rate=0.05, steps=3, batch_size=2, upload=few, correction=afl.correction.scaffold())
    flying = afl.clock.free_running(concurrency=4, buffer=2, durations=times)
    return {
        "fedavg, early": (kinds.fedavg(), afl.clock.synchronous(cohort=5), early),
        "fadas": (kinds.fadas(learning_rate=0.01), flying, some),
        "ca2fl": (kinds.ca2fl(), flying, some),
        "median": (kinds.fedbuff(aggregate=afl.aggregate.median()), flying, some),
        "private": (kinds.fedbuff(aggregate=afl.aggregate.private_mean(0.05, 0.1)), flying, some),
        "scaffold": (kinds.fedbuff(), flying, corrected),
        "psurdg": (kinds.psurdg(0.1), afl.clock.bernoulli(0.4), whole),
        "quafl": (kinds.quafl(), afl.clock.interrupting(period=2.0, contacted=3, durations=times), some),
        "asyncfeded": (kinds.asyncfeded(kappa=0.5), afl.clock.free_running(concurrency=4, durations=times), some),
    }


def runs(devices: int) -> dict[str, Any]:
    """Compares runs that devices share with those on one, in float64, resumed too."""
    jax.config.update("jax_enable_x64", True)
    problem, found = quadratic(6), dict[str, Any]()
    for name, (server, clock, client) in cases().items():
        attack = afl.attack.alie(1.5, clients=0.3) if name == "fedavg, early" else None
        sim = afl.Simulation(problem.data, problem.model, client, server, clock, attack=attack)
        how: dict[str, Any] = {"eval_every": 5, "observe": dict}
        alone, shared = sim.run(STEPS, **how), sim.run(STEPS, devices=devices, **how)
        found[name] = differing(shared, alone, tolerance=1e-12)
        found[f"{name}, lanes"] = differing(
            sim.run(STEPS, devices=devices, lanes=3 * devices, chunk=3, **how), alone, tolerance=1e-12
        )
        with tempfile.TemporaryDirectory() as folder:
            sim.run(7, devices=devices, folder=folder, **how)
            longer = sim.run(STEPS, devices=devices, folder=folder, **how)
        found[f"{name}, resumed"] = differing(longer, shared, tolerance=1e-12)
    return found


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", int(sys.argv[2]))
    result = {"sweeps": sweeps, "runs": runs}[sys.argv[1]](int(sys.argv[2]))
    print(json.dumps(result | {"devices": np.size(jax.devices())}))
