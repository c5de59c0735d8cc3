"""A process with several CPU devices: `python -m tests.on_devices sweeps|runs|protocols N`; prints JSON."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import sys
import tempfile
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest

COLLECTIVE = re.compile(r" (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\(")
STEPS = 12
OF_MANY = ("fedavg", "fadas", "ca2fl")  # cases of more than two devices, for which the others compile for minutes
# cases of every way to run: sums, a store of updates, rows of clients, and models of clients
VARIANTS = (
    "ringmaster without stops",
    "basgd, mean",
    "throttle, clipped",
    "throttle, truncated",
    "windows of exponential length",
)
EVERY_WAY = ("fadas", "fedasync", "ca2fl", "scaffold", "quafl", "asyncfeded")


def sweeps(devices: int) -> dict[str, Any]:
    """What sweeps on all devices of this process give, against one device, and how often their programs communicate."""
    import jaxafl as afl
    from jaxafl.device import accelerator_paths
    from tests.problems import quadratic
    from tests.sweep.conftest import differing, simulation

    found: dict[str, Any] = {}
    grids = {
        "one after another": (simulation(hidden=300), {"seed": range(5)}),
        "together": (simulation(), {"server.learning_rate": [0.2, 0.4, 0.6, 0.8, 1.0]}),
        "online": (simulation("online"), {"seed": range(3)}),
    }
    many = devices > 2  # then only what depends on their number
    for name, (sim, axes) in {name: grid for name, grid in grids.items() if name == "together" or not many}.items():
        alone = afl.sweep(sim, axes, 8, eval_every=4, together=1)
        found[name] = differing(afl.sweep(sim, axes, 8, eval_every=4, devices="all", together=1), alone)
        spread = afl.sweep(sim, axes, 8, eval_every=4, devices=devices)
        found[f"{name}, close"] = differing(spread, alone, tolerance=1e-5)
    sim, axes = simulation(), {"seed": range(devices + 1)}
    alone = afl.sweep(sim, axes, 8, eval_every=4, together=1)
    # as on an accelerator: in lockstep
    of_each, rates = {"seed": range(devices)}, grids["together"][1]
    with accelerator_paths():
        (spread, each, shared), programs = _compiled(
            lambda: [
                afl.sweep(one, along, 8, eval_every=4, devices=devices)
                for one, along in ((sim, axes), (sim, of_each), (simulation(), rates))
            ]
        )
    found["in lockstep, close"] = differing(spread, alone, tolerance=1e-5)
    found["in lockstep, one each, close"] = differing(each, alone.isel(seed=slice(devices)), tolerance=1e-5)
    found["shared by devices"] = (
        [] if all(one.program.layout.mesh for one in programs) and len(programs) == 3 else ["not"]
    )
    found["collectives"] = [COLLECTIVE.findall(one.compiled.as_text()) for one in programs]
    assert shared.sizes["server.learning_rate"] == 5
    jax.config.update("jax_enable_x64", True)
    problem, (server, clock, client) = quadratic(6), cases()["fadas"]
    sim = afl.Simulation(problem.data, problem.model, client, server, clock)
    wide = {"rates": {"server.learning_rate": [0.01, 0.02, 0.05]}, "seeds": {"seed": range(3)}}
    for name, axes in ({} if many else wide).items():
        alone = afl.sweep(sim, axes, 8, eval_every=4, together=1)
        with accelerator_paths():
            spread = afl.sweep(sim, axes, 8, eval_every=4, devices=devices)
        found[f"float64, {name}"] = differing(spread, alone, tolerance=1e-12)
    try:
        afl.sweep(simulation(), {"seed": [0]}, 2, devices=devices + 1)
    except ValueError as error:
        found["too many"] = str(error)
    return found


def cases() -> dict[str, tuple[Any, Any, Any]]:
    """name -> server, clock, client."""
    import optax

    import jaxafl as afl

    kinds, times = afl.server, afl.clock.uniform(1, 5)
    some = afl.Client(optax.sgd, learning_rate=0.05, steps=3, batch_size=2)
    whole = afl.Client(optax.sgd, learning_rate=1.0, steps=1, batch_size=None)
    early = afl.Client(optax.sgd, learning_rate=0.05, epochs=3, batch_size=2, patience=1)
    few = afl.upload.error_feedback(afl.upload.top_k(count=1))
    feedback = afl.Client(optax.sgd, learning_rate=0.05, steps=3, batch_size=2, upload=few)
    scaffold = afl.correction.scaffold()
    corrected = afl.Client(optax.sgd, learning_rate=0.05, steps=3, batch_size=2, upload=few, correction=scaffold)
    flying = afl.clock.free_running(concurrency=4, buffer=2, durations=times)
    one = afl.clock.free_running(concurrency=4, durations=times)
    contacts = afl.clock.interrupting(period=2.0, contacted=3, durations=times)
    return {
        "fedavg": (kinds.fedavg(), afl.clock.synchronous(cohort=3), some),
        "fedavg, uneven, early": (kinds.fedavg(), afl.clock.synchronous(cohort=5), early),
        "fadas": (kinds.fadas(learning_rate=0.01), flying, some),
        "fedasync": (kinds.fedasync(0.3, staleness="constant"), one, some),
        "fedbuff, state": (kinds.fedbuff(staleness="none"), flying, some),
        "weighed": (_weighed(), flying, some),
        "feedback": (kinds.fedbuff(), flying, feedback),
        "scaffold": (kinds.fedbuff(), flying, corrected),
        "favano": (kinds.favano(), contacts, some),
        "ca2fl": (kinds.ca2fl(), flying, some),
        "psurdg": (kinds.psurdg(0.1), afl.clock.bernoulli(0.4), whole),
        "area": (kinds.area(), flying, some),
        "safa": (kinds.safa(), afl.clock.semi_async(fraction=0.5, lag=3, durations=times), some),
        "quafl": (kinds.quafl(), contacts, some),
        "asyncfeded": (kinds.asyncfeded(kappa=0.5), one, some),
    }


def _weighed() -> Any:
    """An `OptaxServer` of one's own, which looks at each update."""
    import optax

    from jaxafl.device.rows import squares
    from jaxafl.server import OptaxServer

    class weighed(OptaxServer):
        def weigh(self, arrivals: Any) -> jax.Array:
            return arrivals.mask / (1 + squares(arrivals.delta))

        def optimizer_of(self, rate: Any) -> optax.GradientTransformation:
            return optax.sgd(0.5)

    return weighed()


def _remembering(model: Any) -> Any:
    """A model with non-trainable state, a running mean of its samples, by which it scales its loss."""
    import jax.numpy as jnp

    def init(key: Any, batch: Any) -> Any:
        return model.init(key, batch)[0], {"mean": jnp.zeros(())}

    def apply(params: Any, state: Any, batch: Any, key: Any, train: bool) -> Any:
        outputs, _ = model.apply(params, {}, batch, key, train)
        mean = jnp.mean(batch.x, where=batch.mask[:, None])
        scaled = outputs._replace(loss=outputs.loss * (1 + 0.1 * state["mean"]))
        return scaled, {"mean": 0.5 * (state["mean"] + mean)} if train else state

    return dataclasses.replace(model, init=init, apply=apply)


def runs(devices: int) -> dict[str, Any]:
    """What runs that devices share give, against one device, in float64; and where their programs communicate."""
    import jaxafl as afl
    from tests.problems import quadratic
    from tests.sweep.conftest import differing

    jax.config.update("jax_enable_x64", True)
    problem, found = quadratic(6), dict[str, Any]()
    for name, (server, clock, client) in cases().items():
        if devices > 2 and name not in OF_MANY:
            continue
        model = _remembering(problem.model) if name.endswith("state") else problem.model
        sim = afl.Simulation(problem.data, model, client, server, clock)
        if name in EVERY_WAY:
            found |= {f"{name}, {way}": differ for way, differ in _every_way(sim, devices).items()}
        if name in ("fadas", "asyncfeded", "scaffold"):
            found[f"{name}, resumed"] = differing(_resumed(sim, devices), sim.run(STEPS, eval_every=5, devices=devices))
        if name in ("fedavg", "fadas"):
            expected = sim.run(STEPS, eval_every=5, devices=devices)
            found[f"{name}, made longer"] = differing(_lengthened(sim, devices), expected, tolerance=1e-12)
        if sim.clock_sees_training:
            continue
        with mock.patch("jaxafl.engine.mesh.available_bytes", lambda devices: 1):
            divided, (execution,) = _compiled(lambda sim=sim: sim.run(STEPS, eval_every=5, devices=devices))
        found[name] = differing(divided, sim.run(STEPS, eval_every=5), tolerance=1e-12)
        found[f"{name}, samples"] = [] if _rows_of_data(execution) == devices else ["not divided"]
        found[f"{name}, collectives"] = sorted(COLLECTIVE.findall(execution.compiled.as_text()))
    return found


def protocols(devices: int) -> dict[str, Any]:
    """What runs of each protocol of events give that devices share, against one device, in float64."""
    import jaxafl as afl
    from tests.problems import quadratic
    from tests.server.test_event_protocols import CASES, GRADIENT
    from tests.sweep.conftest import differing

    jax.config.update("jax_enable_x64", True)
    problem, found = quadratic(), dict[str, Any]()
    for name, (pair, _) in CASES.items():
        if name in VARIANTS:
            continue
        sim = afl.Simulation(problem.data, problem.model, GRADIENT, *pair)
        shared = sim.run(STEPS, eval_every=5, devices=devices)
        found[name] = differing(shared, sim.run(STEPS, eval_every=5), tolerance=1e-12)
    return found


def _compiled(run: Callable[[], Any]) -> tuple[Any, list[Any]]:
    """The result of a run or sweep, and its programs."""
    from jaxafl.engine.execution import Execution

    programs, compile_ = [], Execution.compile

    def seen(self: Execution, *args: Any) -> Execution:
        programs.append(compile_(self, *args))
        return programs[-1]

    with mock.patch.object(Execution, "compile", seen):
        return run(), programs


def _every_way(sim: Any, devices: int) -> dict[str, list[str]]:
    """What differs from a run on one device, by the way in which runs are trained."""
    from jaxafl.device import accelerator_paths
    from tests.sweep.conftest import differing

    how: dict[str, Any] = dict(eval_every=5, diagnostics=("gradient_norm", "average"), observe=observed)
    alone, shared = sim.run(STEPS, **how), how | {"devices": devices}
    found = {"shared": sim.run(STEPS, **shared), "lanes": sim.run(STEPS, lanes=3 * devices, chunk=3, **shared)}
    if not sim.clock_sees_training:  # rows by gathers and scatters, as on an accelerator
        with accelerator_paths():
            found["gathers"] = sim.run(STEPS, lanes=2 * devices, chunk=2, **shared)
    return {way: differing(result, alone, tolerance=1e-12) for way, result in found.items()}


def _resumed(sim: Any, devices: int) -> Any:
    """A run whose process is interrupted after ten server steps, and that goes on."""

    class Interruption(Exception):
        pass

    class Interrupting:
        def begin(self, run: Any) -> None: ...

        def chunk(self, chunk: Any) -> None:
            if chunk.stop == 10:
                raise Interruption

        def end(self, result: Any) -> None: ...

    with tempfile.TemporaryDirectory() as folder:
        how: dict[str, Any] = dict(eval_every=5, folder=folder, checkpoint_every=3)
        with contextlib.suppress(Interruption):
            sim.run(STEPS, devices=devices, callbacks=[Interrupting()], **how)
        for other in (None, devices + 1):
            with pytest.raises(ValueError, match=f"devices was {devices}" if other is None else "JAX has"):
                sim.run(STEPS, devices=other, **how)
        return sim.run(STEPS, devices=devices, **how)


def _lengthened(sim: Any, devices: int) -> Any:
    """A run of seven server steps that is made longer."""
    with tempfile.TemporaryDirectory() as folder:
        for steps in (7, STEPS):
            result = sim.run(steps, eval_every=5, devices=devices, folder=folder)
    return result


def observed(params: Any) -> dict[str, Any]:
    """The parameters."""
    return dict(params)


def _rows_of_data(execution: Any) -> int:
    arrays = execution.constant[1].arrays
    ours = {len(leaf) for leaf in jax.tree.leaves(arrays)}
    here = {len(leaf.addressable_data(0)) for leaf in jax.tree.leaves(arrays)}
    return ours.pop() if here == {1} and len(ours) == 1 else 0


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", int(sys.argv[2]))
    result = {"sweeps": sweeps, "runs": runs, "protocols": protocols}[sys.argv[1]](int(sys.argv[2]))
    print(json.dumps(result | {"devices": np.size(jax.devices())}))
