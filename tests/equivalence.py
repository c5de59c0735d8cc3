"""Every server on every clock that it allows, every option of local training, sweeps, diagnostics and failures, for 20
server steps: what a rebuilding must leave as it is.

    python -m tests.equivalence write FOLDER            # one npz file per case, with the package that is importable
    python -m tests.equivalence compare FOLDER OTHER    # of two folders: equal bits, or the largest relative difference

Run `write` before and after a change, on the same machine. Only public names are used.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxafl as afl
from jaxafl.device import accelerator_paths

STEPS, CLIENTS = 20, 6
clock, server = afl.clock, afl.server


def _data(name: str = "quadratic", floats: Any = np.float32) -> afl.data.FederatedData:
    rng = np.random.default_rng(0)
    sizes = (4, 1, 7, 3, 5, 2)
    samples = np.round(64 * rng.uniform(0.25, 2, (sum(sizes), 6))) / 64
    owners = np.repeat(np.arange(CLIENTS), sizes)
    labels = rng.integers(0, 3, len(samples)).astype(np.int32)
    return afl.data.from_arrays(
        samples.astype(floats), labels, owners, x_test=samples[:5].astype(floats), y_test=labels[:5], name=name
    )


def _images() -> afl.data.FederatedData:
    rng = np.random.default_rng(1)
    x, y = rng.integers(0, 256, (24, 16, 16, 1), dtype=np.uint8), rng.integers(0, 3, 24)
    return afl.data.from_arrays(x, y, np.arange(24) % CLIENTS, x_test=x[:6], y_test=y[:6], num_classes=3)


def _start(key: jax.Array, batch: Any) -> dict[str, jax.Array]:
    return {"w": jnp.asarray([0.5, -1.0, 2.0])}


def quadratic(params: Any, batch: Any, key: jax.Array) -> jax.Array:
    """1/2 Σ_j a_bj (w_j - c_bj)²."""
    curvature, centre = jnp.split(batch.x, 2, axis=1)
    return 0.5 * jnp.sum(curvature * (params["w"] - centre) ** 2, axis=1)


class Normalised(nn.Module):
    """A network with state."""

    @nn.compact
    def __call__(self, x: jax.Array, train: bool, mask: jax.Array) -> jax.Array:
        x = nn.relu(afl.models.BatchNorm()(nn.Dense(8)(x), train, mask))
        return nn.Dense(3)(nn.Dropout(0.2, deterministic=not train)(x))


DATA = _data()
MODEL = afl.models.from_functions(_start, quadratic, "quadratic")
GD = afl.Client(optax.sgd, learning_rate=0.2, momentum=0.5, steps=3, batch_size=None)
SGD = afl.Client(optax.sgd, learning_rate=0.1, momentum=0.5, epochs=2, batch_size=2)
GRADIENT = afl.Client(optax.sgd, learning_rate=1.0, steps=1, batch_size=None)
STOCHASTIC = afl.Client(optax.sgd, learning_rate=1.0, steps=1, batch_size=2)
ADAM = afl.Client(optax.adam, learning_rate=0.05, epochs=3, batch_size=2)

RUNS = clock.uniform(1, 5) + clock.suspension(0.3)
PER_STEP = clock.uniform(0.2, 2, per="client") * clock.exponential(0.5, per="step") + 0.1
CLOCKS: dict[str, Any] = {
    "synchronous": clock.synchronous(durations=RUNS),
    "cohort": clock.synchronous(cohort=4, durations=clock.lognormal(0.0, 1.0)),
    "replacement": clock.synchronous(cohort=5, durations=RUNS, replacement=True),
    "arrival": clock.free_running(concurrency=4, durations=RUNS),
    "everyone": clock.free_running(concurrency=CLIENTS, durations=clock.half_normal(2.0)),
    "buffer": clock.free_running(concurrency=5, buffer=2, durations=clock.exponential(2.0)),
    "all_buffer": clock.free_running(concurrency=CLIENTS, buffer=3, durations=clock.uniform(1, 5, per="client")),
    "step": clock.free_running(concurrency=5, buffer=2, dispatch="step", durations=clock.three_tier()),
    "skew": clock.free_running(concurrency=5, buffer=2, dispatch="step", start_skew=True, durations=RUNS),
    "before": clock.free_running(concurrency=4, buffer=2, before_step=True, durations=PER_STEP),
    "bernoulli": clock.bernoulli(0.4, 0.8),
    "sampled": clock.sampled(drawn=3, durations=RUNS),
    "hold": clock.sampled(drawn=4, durations=RUNS, receive_buffer="consume", send_buffer="hold"),
    "macs": clock.sampled(drawn=3, durations=clock.mac_network(17.0, 2.2)),
    "interrupting": clock.interrupting(period=1.5, contacted=3, durations=PER_STEP),
    "stale": clock.stale_rounds(participants=3, max_staleness=3, durations=RUNS),
    "stale_repeats": clock.stale_rounds(participants=4, max_staleness=2, durations=RUNS, replacement=True),
    "fresh_rounds": clock.stale_rounds(participants=3, max_staleness=0, durations=clock.constant(2.0)),
    "semi_async": clock.semi_async(fraction=0.5, lag=2, durations=RUNS),
}
BUFFERED = ("cohort", "replacement", "arrival", "buffer", "step", "bernoulli", "stale", "stale_repeats")
ROUNDS = ("synchronous", "cohort", "replacement")
FREE = ("arrival", "everyone", "buffer", "step", "skew", "before")
# name: server, clocks, local training
SERVERS: dict[str, tuple[Any, tuple[str, ...], Any]] = {
    "fedavg": (server.fedavg(), (*ROUNDS, "bernoulli"), SGD),
    "fedavg_uniform": (server.fedavg(0.5, "uniform"), ("replacement", "bernoulli"), GD),
    "fedadagrad": (server.fedadagrad(0.1), ROUNDS, SGD),
    "fedadam": (server.fedadam(0.1), ROUNDS, SGD),
    "fedyogi": (server.fedyogi(0.1), ROUNDS, GD),
    "fedams": (server.fedams(0.05), ("cohort",), SGD),
    "fedams_authors": (server.fedams(0.05, bias_correction="authors", max_init=1e-3), ("replacement",), SGD),
    "fedasync": (server.fedasync(0.5, staleness="constant"), ("arrival", "skew", "stale", "stale_repeats"), SGD),
    "fedasync_polynomial": (server.fedasync(0.5, "polynomial", 0.7), (*FREE, "stale"), SGD),
    "fedasync_hinge": (server.fedasync(0.5, "hinge", 0.7, 1.0, "delta"), ("buffer", "stale"), GD),
    "fedbuff": (server.fedbuff(0.7, staleness="none"), (*BUFFERED, *FREE), SGD),
    "fedbuff_momentum": (server.fedbuff(0.5, "polynomial", 0.6), BUFFERED, GD),
    "fedbuff_sum": (server.fedbuff(0.2, reduce="sum", staleness="none"), ("step", "bernoulli"), SGD),
    "fadas": (server.fadas(0.05), (*BUFFERED, "all_buffer"), SGD),
    "fadas_authors": (server.fadas(0.05, bias_correction="authors", delay_scaling="eq77"), ("step", "stale"), SGD),
    "fadas_optax": (server.fadas(0.5, bias_correction="optax", delay_scaling="eq4", tau_c=0.5), ("buffer",), GD),
    "ca2fl": (server.ca2fl(0.5), ("cohort", "synchronous", "arrival", "buffer", "step"), SGD),
    "fadas_scheduled": (server.fadas(optax.cosine_decay_schedule(0.1, 10)), ("buffer", "cohort"), SGD),
    "asysg": (server.asysg(0.1), ("arrival", "buffer", "everyone"), STOCHASTIC),
    "audg": (server.audg(0.2), ("bernoulli",), GRADIENT),
    "psurdg": (server.psurdg(0.1), ("bernoulli",), GRADIENT),
    "defedavg_iid": (server.defedavg_iid(0.5), ("everyone", "all_buffer"), SGD),
    "defedavg_niid": (server.defedavg_niid(0.5), ("sampled", "hold", "macs"), SGD),
    "favano": (server.favano(), ("interrupting",), GD),
    "favano_stochastic": (server.favano("stochastic"), ("interrupting",), GD),
    "favano_own": (server.favano(normaliser=np.arange(1.0, 7.0)), ("interrupting",), GD),
    "quafl": (server.quafl(), ("interrupting",), GD),
    "quafl_scaled": (server.quafl(True), ("interrupting",), GD),
    "afl": (server.afl(), ("stale", "stale_repeats", "fresh_rounds"), SGD),
    "afl_weighted": (server.afl(0.5, 0.2), ("stale",), GD),
    "afl_local": (server.afl(broadcast=False), ("fresh_rounds",), SGD),
    "safa": (server.safa(), ("semi_async",), SGD),
    "area": (server.area(), ("buffer",), SGD),
    "aced": (server.aced(0.3, 3), ("everyone",), STOCHASTIC),
    "delay_adaptive": (server.delay_adaptive(0.3), ("arrival",), SGD),
    "fedfa": (server.fedfa(3), ("arrival",), SGD),
    "fednova": (server.fednova(), ("cohort",), STOCHASTIC),
    "fedstale": (server.fedstale(participation=0.5), ("cohort", "bernoulli"), SGD),
    "ia2sgd": (server.ia2sgd(0.3), ("everyone",), STOCHASTIC),
    "mifa": (server.mifa(0.5), ("cohort", "bernoulli"), GD),
    "port": (server.port(), ("step",), SGD),
    "asyncfeded": (server.asyncfeded(0.8, eps=0.9, target_staleness=1.5, kappa=1.3), ("arrival", "everyone"), GD),
    "asyncfeded_clipped": (
        server.asyncfeded(0.5, eps=0.5, target_staleness=4.0, max_steps=5, rounding="truncate"), ("everyone",), GD
    ),
}  # fmt: skip
CLIENTS_OPTIONS: dict[str, Any] = {
    "adam": ADAM,
    "reset": dataclasses.replace(ADAM, reset="epoch"),
    "patience": dataclasses.replace(ADAM, patience=1),
    "proximal": afl.Client(optax.sgd, learning_rate=0.1, proximal=0.3, steps=4, batch_size=2),
    "weight_decay": afl.Client(optax.sgd, learning_rate=0.1, weight_decay=0.1, steps=4, batch_size=3),
    "adamw": afl.Client(optax.adamw, learning_rate=0.1, weight_decay=0.1, steps=4, batch_size=3),
    "nesterov": afl.Client(optax.sgd, learning_rate=0.1, momentum=0.9, nesterov=True, steps=4, batch_size=3),
    "rate_decay_per_run": afl.Client(optax.sgd, learning_rate=0.1, rate_decay_per_run=0.9, steps=4, batch_size=2),
    "step_schedule": afl.Client(optax.sgd, learning_rate=0.1, step_schedule=lambda k: 1 / (1.0 + k), steps=4),
    "run_schedule": afl.Client(optax.sgd, learning_rate=0.1, run_schedule=lambda r: 1 / (1.0 + r), steps=4),
    "rate_schedule": afl.Client(optax.adam, learning_rate=0.1, rate_schedule=server.afl_rate(0.5), steps=4),
    "seconds": afl.Client(optax.adam, learning_rate=0.1, rate_schedule=server.afl_rate(0.5, "seconds"), epochs=2),
    "sampling": afl.Client(optax.sgd, learning_rate=0.1, sampling="epochs", steps=4, batch_size=2),
    "steps_each": afl.Client(optax.sgd, learning_rate=0.1, steps=[1, 2, 3, 4, 5, 6], batch_size=2),
    "steps_runs": afl.Client(optax.sgd, learning_rate=0.1, steps=[[1, 2, 3]] * 3 + [[4, 1, 2]] * 3, batch_size=2),
    "micro_batch": afl.Client(optax.sgd, learning_rate=0.1, steps=3, batch_size=None, micro_batch=2),
    "each": afl.Client(
        learning_rate=[0.1, 0.2, 0.05, 0.1, 0.3, 0.15],
        proximal=[0.0, 0.1, 0.2, 0.3, 0.4, 0.5],
        epochs=[1, 2, 1, 3, 1, 2],
        batch_size=[2, 1, 3, 2, 4, 1],
        rate_schedule=lambda moment: 0.9**moment.version / (1 + moment.client),
    ),
    "pieces": afl.Client(optax.sgd, learning_rate=0.1, steps=3, batch_size=5, micro_batch=2),
}
EXECUTED = dataclasses.replace(ADAM, patience=1, charge="executed")


def observe(params: Any) -> dict[str, jax.Array]:
    """All parameters."""
    leaves = jax.tree.leaves(params)
    return {
        "all": jnp.concatenate([leaf.ravel() for leaf in leaves])
        if sum(x.size for x in leaves) < 500
        else leaves[0].ravel()[:50]
    }


def _simulation(algorithm: Any, protocol: Any, client: Any, model: Any = None, data: Any = None) -> afl.Simulation:
    return afl.Simulation(data or DATA, model or MODEL, client, algorithm, protocol)


def _run(simulation: afl.Simulation, **options: Any) -> Callable[[], Any]:
    options = {"eval_every": 8, "seed": 3, "observe": observe} | options
    return lambda: simulation.run(STEPS, **options)


def _wide(run: Callable[[], Any]) -> Callable[[], Any]:
    def wide() -> Any:
        with jax.enable_x64(True):
            return run()

    return wide


def _sweep(simulation: afl.Simulation, axes: dict[str, Any], **options: Any) -> Callable[[], Any]:
    return lambda: afl.sweep(simulation, axes, STEPS, eval_every=8, seed=3, **options)


def _as_on_accelerators(run: Callable[[], Any]) -> Callable[[], Any]:
    """The paths that a CPU does not take by itself: lockstep, gathers."""

    def switched() -> Any:
        with accelerator_paths():
            return run()

    return switched


def cases() -> Iterator[tuple[str, Callable[[], Any]]]:
    """(name, what runs it)."""
    for name, (algorithm, protocols, client) in SERVERS.items():
        for protocol in dict.fromkeys(protocols):
            run = _run(_simulation(algorithm, CLOCKS[protocol], client))
            yield f"{name}-{protocol}", run
            if protocol == protocols[0]:
                yield f"{name}-{protocol}-x64", _wide(run)
    for name, client in CLIENTS_OPTIONS.items():
        for protocol in ("cohort", "buffer"):
            yield (
                f"client-{name}-{protocol}",
                _run(_simulation(server.fedbuff(0.5, staleness="none"), CLOCKS[protocol], client)),
            )
    yield "executed-synchronous", _run(_simulation(server.fedavg(), CLOCKS["cohort"], EXECUTED))
    yield "executed-stale", _run(_simulation(server.afl(), CLOCKS["stale"], EXECUTED))
    for protocol in ("arrival", "buffer", "skew"):
        yield (
            f"executed-{protocol}",
            _run(_simulation(server.fedbuff(0.5, staleness="none"), CLOCKS[protocol], EXECUTED)),
        )
    epochs = afl.Client(optax.sgd, learning_rate=0.1, epochs=2, batch_size=2)
    yield "asyncfeded-epochs", _run(_simulation(server.asyncfeded(kappa=0.6), CLOCKS["arrival"], epochs))
    lanes = _simulation(server.fadas(0.05), CLOCKS["step"], SGD)
    for many, chunk in ((4, 2), (8, 8), (3, 1)):
        yield f"lanes-{many}-{chunk}", _run(lanes, lanes=many, chunk=chunk)
    adaptive = _simulation(server.asyncfeded(base_rate=0.5, kappa=0.5), CLOCKS["arrival"], GD)
    yield "lanes-online", _run(adaptive, lanes=4)
    classes = _data("classes")
    for name, model, data in (
        ("logistic", afl.models.logistic(3), classes),
        ("mlp", afl.models.mlp(3, hidden=(8,)), classes),
        ("normalised", afl.models.from_linen(Normalised()), classes),
        ("cnn", afl.models.cnn_small(3), _images()),
    ):
        for protocol in ("cohort", "buffer"):
            yield (
                f"model-{name}-{protocol}",
                _run(_simulation(server.fedbuff(0.5, staleness="none"), CLOCKS[protocol], SGD, model, data)),
            )
    stateful = _simulation(
        server.asyncfeded(kappa=0.5), CLOCKS["arrival"], GD, afl.models.from_linen(Normalised()), classes
    )
    yield "model-normalised-online", _run(stateful)
    drifting = _simulation(server.fedbuff(0.5, staleness="none"), CLOCKS["buffer"], SGD)
    yield "diagnostics", _run(drifting, diagnostics=("drift", "gradient_norm", "asynchronous_error", "average"))
    online = _simulation(server.asyncfeded(kappa=0.5), CLOCKS["arrival"], GD)
    yield "diagnostics-online", _run(online, diagnostics=("drift", "gradient_norm", "average"))
    wild = afl.Client(optax.sgd, learning_rate=1e8, steps=3, batch_size=2)
    yield "failure", _run(_simulation(server.fedbuff(1e6, staleness="none"), CLOCKS["buffer"], wild))
    yield "failure-online", _run(_simulation(server.asyncfeded(base_rate=1e30, eps=1e-30), CLOCKS["arrival"], wild))
    buffered = _simulation(server.fedbuff(0.5, staleness="none"), CLOCKS["buffer"], SGD)
    rates = {"server.learning_rate": [0.1, 0.5], "client.learning_rate": [0.05, 0.1]}
    sweeps: dict[str, tuple[afl.Simulation, dict[str, Any]]] = {
        "shared": (buffered, rates),
        "seeds": (buffered, {"seed": [0, 1, 2]}),
        "seeds-rates": (buffered, {"seed": [0, 1], "server.learning_rate": [0.1, 0.5]}),
        "clock": (buffered, {"clock.durations.mean": [1.0, 2.0]}),
        "static": (buffered, {"clock.buffer": [1, 2]}),
        "none": (buffered, {"server.momentum": [None, 0.5]}),
        "servers": (buffered, {"server": [server.fedbuff(0.5, staleness="none"), server.fadas(0.05)]}),
        "clocks": (buffered, {"clock": [CLOCKS["buffer"], CLOCKS["step"]]}),
        "adaptive": (adaptive, {"server.base_rate": [0.5, 1.0]}),
        "stopping": (_simulation(server.fedbuff(0.5, staleness="none"), CLOCKS["buffer"], EXECUTED), {"seed": [0, 1]}),
        "patience": (
            _simulation(server.fedbuff(0.5, staleness="none"), CLOCKS["buffer"], dataclasses.replace(ADAM, patience=1)),
            {"client.learning_rate": [0.05, 0.1]},
        ),
        "rows": (
            _simulation(server.ca2fl(0.5), CLOCKS["buffer"], SGD),
            {"seed": [0, 1], "server.learning_rate": [0.1, 0.5]},
        ),
        "own_models": (_simulation(server.quafl(), CLOCKS["interrupting"], GD), {"seed": [0, 1]}),
        "failing": (buffered, {"client.learning_rate": [0.1, 1e30]}),
    }
    for name, (simulation, axes) in sweeps.items():
        yield f"sweep-{name}", _sweep(simulation, axes)
        yield f"sweep-{name}-gathers", _as_on_accelerators(_sweep(simulation, axes))
    for name in ("fedbuff-bernoulli", "fedasync-skew", "quafl-interrupting", "psurdg-bernoulli", "safa-semi_async"):
        algorithm, protocol = name.split("-")
        simulation = _simulation(SERVERS[algorithm][0], CLOCKS[protocol], SERVERS[algorithm][2])
        yield f"gathers-{name}", _as_on_accelerators(_run(simulation, lanes=4, chunk=4))


KEPT = ("failed_step", "failed_client", "runs_started", "runs_never_consumed", "count_dropped", "count_clipped")


def kept(result: Any) -> dict[str, np.ndarray]:
    """The variables of a result that must not change, and the counts of its attributes."""
    variables = {}
    for name, values in result.variables.items():
        if values.dtype.kind in "fiub" and not str(name).endswith("_seconds") and name != "version":
            kept_values = values.isel(version=slice(1, None)) if "version" in values.dims else values  # without x_0
            variables[str(name)] = np.asarray(kept_values.values)
    return variables | {name: np.asarray(result.attrs[name]) for name in KEPT if name in result.attrs}


def write(folder: pathlib.Path, pattern: str = "") -> None:
    """Runs all cases."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, run) in enumerate(cases()):
        if pattern in name and not (folder / f"{name}.npz").exists():
            np.savez(folder / f"{name}.npz", **kept(run()))
            print(number, name, flush=True)
        if number % 12 == 0:
            jax.clear_caches()


def compare(before: pathlib.Path, after: pathlib.Path) -> int:
    """Prints what differs; the number of cases that do."""
    differing = 0
    names = {path.name for path in before.glob("*.npz")}
    for missing in sorted(names - {path.name for path in after.glob("*.npz")}):
        print(f"{missing}: missing in {after}")
        differing += 1
    for name in sorted(names & {path.name for path in after.glob("*.npz")}):
        old, new = np.load(before / name), np.load(after / name)
        said = [f"{key} is gone" for key in old.files if key not in new.files]
        for key in old.files:
            if key not in new.files or np.array_equal(old[key], new[key], equal_nan=old[key].dtype.kind == "f"):
                continue
            if old[key].shape != new[key].shape:
                said.append(f"{key}: shape {old[key].shape} became {new[key].shape}")
                continue
            scale = np.maximum(np.abs(old[key]), 1e-6 if old[key].dtype.kind == "f" else 1)
            worst = np.nanmax(np.abs(old[key].astype(float) - new[key].astype(float)) / scale)
            same = np.array_equal(np.isnan(old[key].astype(float)), np.isnan(new[key].astype(float)))
            said.append(f"{key}: {worst:.2g} relative{'' if same else ', other values missing'}")
        if said:
            print(f"{name}: {'; '.join(said)}")
        differing += bool(said)
    print(f"{differing} of {len(names)} cases differ")
    return differing


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("write", "compare"))
    parser.add_argument("folders", nargs="+", type=pathlib.Path)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    chosen = parser.parse_args()
    if chosen.what == "write":
        write(chosen.folders[0], chosen.only)
    else:
        raise SystemExit(min(compare(*chosen.folders), 1))
