"""Ten numbers of a short run of every algorithm, of every option of local training, and of sweeps, with fixed seeds.

    python -m tests.golden [FILE]      # adds the cases that the file has not; the default is what tests compare

To compare the bits of two trees on one machine, write a file with each. Only public names are used.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxafl as afl

FILE = pathlib.Path(__file__).with_name("golden.json")
STEPS, CLIENTS = 20, 6
clock, server = afl.clock, afl.server


@functools.cache
def quadratics() -> afl.data.FederatedData:
    """Returns six clients with samples (a, c) of 1/2 Σ_j a_j (w_j - c_j)², and a class for each sample."""
    rng = np.random.default_rng(0)
    sizes = (4, 2, 7, 3, 5, 2)
    samples = np.round(64 * rng.uniform(0.25, 2, (sum(sizes), 6))).astype(np.float32) / 64
    labels = rng.integers(0, 3, len(samples)).astype(np.int32)
    owners = np.repeat(np.arange(CLIENTS), sizes)
    return afl.data.from_arrays(samples, labels, owners, x_test=samples[:5], y_test=labels[:5])


def loss(params: Any, batch: Any, key: jax.Array) -> jax.Array:
    """Computes 1/2 Σ_j a_bj (w_j - c_bj)² of each sample b."""
    curvature, centre = jnp.split(batch.x, 2, axis=1)
    return 0.5 * jnp.sum(curvature * (params["w"] - centre) ** 2, axis=1)


class Normalised(nn.Module):
    """A network with batch statistics and dropout."""

    @nn.compact
    def __call__(self, x: jax.Array, train: bool, mask: jax.Array) -> jax.Array:
        x = nn.relu(afl.models.BatchNorm()(nn.Dense(8)(x), train, mask))
        return nn.Dense(3)(nn.Dropout(0.2, deterministic=not train)(x))


QUADRATIC = afl.models.from_functions(lambda key, batch: {"w": jnp.asarray([0.5, -1.0, 2.0])}, loss, "quadratic")
GD = afl.Client(optax.sgd, learning_rate=0.2, momentum=0.5, steps=3, batch_size=None)
SGD = afl.Client(optax.sgd, learning_rate=0.1, momentum=0.5, epochs=2, batch_size=2)
FULL = afl.Client(optax.sgd, learning_rate=1.0, steps=1, batch_size=None)  # one gradient of all samples
ONE = afl.Client(optax.sgd, learning_rate=1.0, steps=1, batch_size=2)
PLAIN = dataclasses.replace(SGD, momentum=None)
ADAM = afl.Client(optax.adam, learning_rate=0.05, epochs=3, batch_size=2)

RUNS = clock.uniform(1, 5) * clock.stragglers(0.3, 3.0)
PER_STEP = clock.uniform(0.2, 2, per="client") * clock.exponential(0.5, per="step") + 0.1
CLOCKS: dict[str, Any] = {
    "rounds": clock.synchronous(durations=RUNS),
    "cohort": clock.synchronous(cohort=4, durations=clock.lognormal(0.0, 1.0)),
    "replacement": clock.synchronous(cohort=5, durations=RUNS, replacement=True),
    "arrival": clock.free_running(concurrency=4, durations=RUNS),
    "everyone": clock.free_running(concurrency=CLIENTS, durations=clock.half_normal(2.0)),
    "buffer": clock.free_running(concurrency=5, buffer=2, durations=clock.exponential(2.0)),
    "step": clock.free_running(concurrency=5, buffer=2, dispatch="step", durations=clock.three_tier()),
    "skew": clock.free_running(concurrency=5, buffer=2, dispatch="step", start_skew=True, durations=RUNS),
    "before": clock.free_running(concurrency=4, buffer=2, before_step=True, durations=PER_STEP),
    "discarding": clock.free_running(concurrency=5, max_staleness=3, lost=0.2, durations=RUNS),
    "stopping": clock.free_running(concurrency=5, max_staleness=2, on_bound="stop", durations=RUNS),
    "bernoulli": clock.bernoulli(0.4, 0.8),
    "sampled": clock.sampled(drawn=3, durations=RUNS),
    "interrupting": clock.interrupting(period=1.5, contacted=3, durations=PER_STEP),
    "stale": clock.stale_rounds(participants=3, max_staleness=3, durations=RUNS),
    "semi_async": clock.semi_async(fraction=0.5, lag=2, durations=RUNS),
    "every_buffer": clock.every_buffer(buffers=3, durations=RUNS),
    "harmonic": clock.harmonic(batch=8, durations=RUNS),
    "ringleader": clock.ringleader(durations=RUNS),
    "rounds_until_all": clock.rounds_until_all(durations=RUNS),
    "routed": clock.routed(tasks=8, durations=RUNS),
    "compass": clock.compass(min_steps=1, max_steps=4, durations=PER_STEP),
    "tiers": clock.tiers(regions=[0, 0, 0, 1, 1, 1], durations=RUNS, up=[0.5, 2.0], down=1.5, after=2),
    "regional_rounds": clock.regional_rounds(
        regions=[0, 0, 0, 1, 1, 1], durations=RUNS, up=[0.5, 2.0], down=1.5, after=2, cohort=2
    ),
    "warm_up": clock.warm_up(clock.free_running(concurrency=CLIENTS, durations=RUNS), first="all"),
}
SERVERS: dict[str, tuple[Any, str, Any]] = {
    "ace": (server.ace(0.3), "warm_up", ONE),
    "aced": (server.aced(0.3, 3), "everyone", ONE),
    "afl": (server.afl(0.5, 0.2), "stale", SGD),
    "area": (server.area(), "buffer", SGD),
    "asyncfeded": (server.asyncfeded(0.8, eps=0.9, target_staleness=1.5, kappa=1.3), "arrival", GD),
    "asysg": (server.asysg(0.1), "stopping", ONE),
    "audg": (server.audg(0.2), "bernoulli", FULL),
    "basgd": (server.basgd(0.2, 3), "every_buffer", ONE),
    "ca2fl": (server.ca2fl(0.5), "buffer", SGD),
    "defedavg_iid": (server.defedavg_iid(0.5), "everyone", SGD),
    "defedavg_niid": (server.defedavg_niid(0.5), "sampled", SGD),
    "delay_adaptive": (server.delay_adaptive(0.3), "arrival", SGD),
    "delayed_nesterov": (server.delayed_nesterov(0.9), "arrival", SGD),
    "fadas": (server.fadas(0.05, bias_correction="authors", delay_scaling="eq77"), "step", SGD),
    "favano": (server.favano("stochastic"), "interrupting", GD),
    "fedadagrad": (server.fedadagrad(0.1), "cohort", SGD),
    "fedadam": (server.fedadam(0.1), "cohort", SGD),
    "fedams": (server.fedams(0.05), "cohort", SGD),
    "fedasync": (server.fedasync(0.5, "polynomial", 0.7), "arrival", SGD),
    "fedat": (server.fedat(), "regional_rounds", SGD),
    "fedavg": (server.fedavg(), "replacement", SGD),
    "fedbuff": (server.fedbuff(0.5, "polynomial", 0.6), "buffer", SGD),
    "fedcompass": (server.fedcompass(0.8), "compass", SGD),
    "fedfa": (server.fedfa(3), "arrival", SGD),
    "fednova": (server.fednova(), "cohort", PLAIN),
    "fedopt": (server.fedopt(optax.adam, 0.1), "buffer", SGD),
    "fedstale": (server.fedstale(participation=0.5), "bernoulli", SGD),
    "fedyogi": (server.fedyogi(0.1), "rounds", GD),
    "flexlora": (server.flexlora(), "cohort", SGD),
    "halos": (server.halos(0.4, regional_rate=0.9, regional_period=3), "tiers", SGD),
    "hierfavg": (server.hierfavg(), "regional_rounds", SGD),
    "ia2sgd": (server.ia2sgd(0.3), "everyone", ONE),
    "kardam": (server.kardam(0.2), "everyone", ONE),
    "malenia": (server.malenia(0.2), "harmonic", ONE),
    "mifa": (server.mifa(0.5), "cohort", GD),
    "mu2": (server.mu2(0.2, 0.3), "everyone", dataclasses.replace(ONE, correction=afl.correction.storm(0.25))),
    "picky_sgd": (server.picky_sgd(0.2, 0.8), "arrival", ONE),
    "port": (server.port(), "step", SGD),
    "psurdg": (server.psurdg(0.1), "bernoulli", FULL),
    "quafl": (server.quafl(True), "interrupting", GD),
    "ringleader": (server.ringleader(0.2), "ringleader", ONE),
    "routed_sgd": (server.routed_sgd(0.1), "routed", ONE),
    "safa": (server.safa(), "semi_async", SGD),
    "throttle": (server.throttle(0.3, 2.0), "rounds_until_all", ONE),
    "zeno": (server.zeno(0.2, 0.03, batch_size=3, every=4), "arrival", ONE),
    # further paths of the engine
    "fedasync, start skew": (server.fedasync(0.5, "hinge", 0.7, 1.0, "delta"), "skew", GD),
    "fedbuff, before the step": (server.fedbuff(0.5, momentum=0.6), "before", SGD),
    "fedbuff, discarding": (server.fedbuff(0.5), "discarding", SGD),
    "fedbuff, median": (server.fedbuff(0.5, aggregate=afl.aggregate.median()), "buffer", SGD),
    "fedbuff, top_k": (server.fedbuff(0.5), "buffer", dataclasses.replace(SGD, upload=afl.upload.top_k(count=1))),
    "fedavg, scaffold": (server.fedavg(), "cohort", dataclasses.replace(PLAIN, correction=afl.correction.scaffold())),
}
CLIENTS_OPTIONS: dict[str, Any] = {
    "adam": ADAM,
    "reset": dataclasses.replace(ADAM, reset="epoch"),
    "patience": dataclasses.replace(ADAM, patience=1),
    "proximal": afl.Client(optax.sgd, learning_rate=0.1, proximal=0.3, steps=4, batch_size=2),
    "adamw": afl.Client(optax.adamw, learning_rate=0.1, weight_decay=0.1, steps=4, batch_size=3),
    "nesterov": afl.Client(optax.sgd, learning_rate=0.1, momentum=0.9, nesterov=True, steps=4, batch_size=3),
    "rate_decay_per_run": afl.Client(optax.sgd, learning_rate=0.1, rate_decay_per_run=0.9, steps=4, batch_size=2),
    "step_schedule": afl.Client(optax.sgd, learning_rate=0.1, step_schedule=lambda k: 1 / (1.0 + k), steps=4),
    "run_schedule": afl.Client(optax.sgd, learning_rate=0.1, run_schedule=lambda r: 1 / (1.0 + r), steps=4),
    "rate_schedule": afl.Client(optax.adam, learning_rate=0.1, rate_schedule=server.afl_rate(0.5, "seconds"), steps=4),
    "sampling": afl.Client(optax.sgd, learning_rate=0.1, sampling="epochs", steps=4, batch_size=2),
    "steps_runs": afl.Client(optax.sgd, learning_rate=0.1, steps=[[1, 2, 3]] * 3 + [[4, 1, 2]] * 3, batch_size=2),
    "micro_batch": afl.Client(optax.sgd, learning_rate=0.1, steps=3, batch_size=5, micro_batch=2),
    "each": afl.Client(
        learning_rate=[0.1, 0.2, 0.05, 0.1, 0.3, 0.15],
        proximal=[0.0, 0.1, 0.2, 0.3, 0.4, 0.5],
        epochs=[1, 2, 1, 3, 1, 2],
        batch_size=[2, 1, 3, 2, 4, 1],
        rate_schedule=lambda moment: 0.9**moment.version / (1 + moment.client),
    ),
}
MODELS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "logistic": lambda: (quadratics(), afl.models.logistic(3)),
    "mlp": lambda: (quadratics(), afl.models.mlp(3, hidden=(8,))),
    "normalised": lambda: (quadratics(), afl.models.from_linen(Normalised())),
}


def simulation(algorithm: Any, protocol: str, client: Any, data: Any = None, model: Any = None) -> afl.Simulation:
    data = quadratics() if data is None else data
    if isinstance(algorithm, server.zeno):
        data = data.with_validation(0.4)
    return afl.Simulation(data, model or QUADRATIC, client, algorithm, CLOCKS[protocol])


def observe(params: Any) -> dict[str, jax.Array]:
    """Returns all parameters of a small model, or the first of its largest array."""
    leaves = sorted((leaf.ravel() for leaf in jax.tree.leaves(params)), key=len)
    return {"params": jnp.concatenate(leaves) if sum(map(len, leaves)) < 500 else leaves[-1][:50]}


def ran(made: afl.Simulation, **options: Any) -> Any:
    return made.run(STEPS, eval_every=10, seed=3, observe=observe, **options)


def swept(made: afl.Simulation, axes: dict[str, Any]) -> Any:
    return afl.sweep(made, axes, STEPS, eval_every=10, observe=observe, **({} if "seed" in axes else {"seed": 3}))


def cases() -> dict[str, Callable[[], Any]]:
    """Returns what runs a case, by name."""
    buffered = simulation(server.fedbuff(0.5), "buffer", SGD)
    replying = simulation(server.asyncfeded(base_rate=0.5, kappa=0.5), "arrival", GD)
    executed = dataclasses.replace(ADAM, patience=1, charge="executed")
    stopping = simulation(server.fedavg(), "cohort", executed)
    rates = {"seed": [0, 1], "server.learning_rate": [0.1, 0.5]}
    made: dict[str, Callable[[], Any]] = {name: lambda one=one: ran(simulation(*one)) for name, one in SERVERS.items()}
    for name, client in CLIENTS_OPTIONS.items():
        one = simulation(server.fedbuff(0.5), "buffer", client)
        made[f"client, {name}"] = lambda one=one: ran(one)
    for name, problem in MODELS.items():
        made[f"model, {name}"] = lambda problem=problem: ran(simulation(server.fedbuff(0.5), "buffer", SGD, *problem()))
    made |= {
        "executed": lambda: ran(stopping),
        "lanes": lambda: ran(buffered, lanes=4, chunk=2),
        "diagnostics": lambda: ran(buffered, diagnostics=("drift", "gradient_norm", "average")),
        "replying, epochs": lambda: ran(simulation(server.asyncfeded(kappa=0.6), "arrival", SGD)),
        "replying, diagnostics": lambda: ran(replying, diagnostics=("drift", "gradient_norm")),
        "sweep, shared schedule": lambda: swept(buffered, {"client.learning_rate": [0.05, 0.1]}),
        "sweep, seeds": lambda: swept(buffered, rates),
        "sweep, clock": lambda: swept(buffered, {"clock.durations.mean": [1.0, 2.0]}),
        "sweep, static": lambda: swept(buffered, {"clock.buffer": [1, 2]}),
        "sweep, servers": lambda: swept(buffered, {"server": [server.fedbuff(0.5), server.fadas(0.05)]}),
        "sweep, replying": lambda: swept(replying, {"seed": [0, 1], "server.base_rate": [0.5, 1.0]}),
        "sweep, executed": lambda: swept(stopping, {"seed": [0, 1]}),
        "sweep, rows": lambda: swept(simulation(server.ca2fl(0.5), "buffer", SGD), rates),
        "sweep, models of clients": lambda: swept(simulation(server.quafl(), "interrupting", GD), {"seed": [0, 1]}),
    }
    return made


def numbers(result: Any) -> list[float]:
    """Returns ten numbers: the last loss, parameters, and sums of times, staleness, norms and losses of updates."""
    params = result.observe_params.values
    flat = params.reshape(-1, params.shape[-1]).astype(float)
    weights = np.cos(np.arange(flat.size)).reshape(flat.shape)
    sums = [np.nansum(result[name].values, dtype=float) for name in ("time", "delta_norm", "local_loss", "local_steps")]
    staleness = np.where(result.client_id.values >= 0, result.staleness.values, 0).sum()
    last = [result.loss.values.ravel()[-1], *flat[-1, :2], np.linalg.norm(flat[-1])]
    return [float(value) for value in (*last, np.sum(weights * flat), staleness, *sums)]


def main(path: pathlib.Path) -> None:
    """Adds the cases that the file has not."""
    found = json.loads(path.read_text()) if path.exists() else {}
    for name, run in cases().items():
        if name not in found:
            found[name] = numbers(run())
            print(name, found[name], flush=True)
            path.write_text("{\n" + ",\n".join(f"{json.dumps(n)}: {json.dumps(v)}" for n, v in found.items()) + "\n}\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else FILE)
