"""How near local training comes to what the machine can do: python experiments/benchmarks/roofline.py

A local step cannot take less than its products at the rate of a product of 2048³, and what must be moved at the rate
of the memory, one after the other: every parameter is read in the forward and in the backward pass, read and written by
the update; every output of a layer is written and read, and its gradient too. Products: those of the forward pass, and
twice them backward but for the gradient of the input. Patches, copies and dropout are not in it. A share above 1 says
that what is moved stays in a cache, or that a convolution takes fewer operations than a sum of products does, which are
what is counted (Winograd's algorithm).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import optax
from engine import engine_loop, images, seconds_of, simulation
from flax import linen as nn
from jax.extend.core import jaxprs_in_params
from machine import bandwidth, product_rate
from models import convolving

import jaxafl as afl

REPEATS = 7


class PflCnn(nn.Module):
    """The network of pfl's CIFAR-10 benchmark."""

    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        for features, pool in ((32, False), (64, True)):
            x = nn.relu(afl.models.Conv(features, (3, 3), pool=pool)(x))
        x = nn.Dropout(0.25, deterministic=not train)(x)
        x = nn.relu(afl.models.Dense(128)(x.reshape(len(x), -1)))
        return afl.models.Dense(10)(nn.Dropout(0.5, deterministic=not train)(x))


def pfl(server: afl.server.Server, clock: afl.clock.Clock) -> afl.Simulation:
    """1,000 clients of 50 random images of 32 × 32 × 3, an epoch in batches of 10."""
    client = afl.Client(optax.sgd, learning_rate=0.01, epochs=1, batch_size=10)
    return afl.Simulation(images(1000, 50, (32, 32, 3)), afl.models.from_linen(PflCnn()), client, server, clock)


def equations(jaxpr: Any) -> Iterator[Any]:
    """Yields the equations of a traced function, and of the functions in it."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner)


def layers(jaxpr: Any) -> list[tuple[int, int]]:
    """Floating-point operations and outputs of the products and convolutions of a traced function."""
    found = []
    for equation in equations(jaxpr):
        size = int(np.prod(equation.outvars[0].aval.shape, dtype=int)) if equation.outvars else 0
        if equation.primitive.name == "dot_general":
            ((contracted, _), _) = equation.params["dimension_numbers"]
            factors = [equation.invars[0].aval.shape[axis] for axis in contracted]
            found.append((2 * size * int(np.prod(factors)), size))
        if equation.primitive.name == "conv_general_dilated":
            kernel = equation.invars[1].aval.shape
            found.append((2 * size * int(np.prod(kernel[:-1])), size))
    return found


def needed(sim: afl.Simulation) -> tuple[float, float]:
    """Floating-point operations and bytes of a local step."""
    x, y = (np.asarray(leaf)[: sim.client.batch_size] for leaf in sim.data.test_arrays())
    batch = afl.models.Batch(x, y, np.ones(len(x), bool))
    params, state = sim.model.init(jax.random.key(0), batch)
    with convolving("lax.conv"):
        forward = jax.make_jaxpr(lambda p: sim.model.apply(p, state, batch, jax.random.key(0), True)[0].loss)(params)
    found = layers(forward.jaxpr)
    outputs, numbers = sum(size for _, size in found), sum(leaf.size for leaf in jax.tree.leaves(params))
    return float(3 * sum(flop for flop, _ in found) - found[0][0]), 4.0 * (4 * numbers + 4 * outputs)


def main() -> None:
    print("| work | MFLOP | MB | GFLOP/s | GB/s | least, ms | ms a local step | share |", 8 * "---|", sep="\n|")
    times = afl.clock.uniform(1, 5)
    synchronous = pfl(afl.server.fedavg(), afl.clock.synchronous(cohort=50))
    works = {
        "pfl's CNN, 50 clients a round": (synchronous, 100, 500),
        "pfl's CNN, FedAsync": (
            pfl(
                afl.server.fedasync(0.1, staleness="constant"), afl.clock.free_running(concurrency=20, durations=times)
            ),
            50,
            250,
        ),
        "`cnn_defedavg`, FedAsync": (simulation(afl.models.cnn_defedavg()), 100, 500),
        "MLP 784-128-10, FedAsync": (simulation(afl.models.mlp(10, hidden=(128,))), 3000, 15_000),
    }
    for name, (sim, updates, local_steps) in works.items():
        run = engine_loop(sim, updates // (50 if sim is synchronous else 1))
        flop, moved = needed(sim)
        found = []
        for _ in range(REPEATS):
            rate, bytes_rate = product_rate(), bandwidth()
            ((measured,),) = seconds_of(run, repeats=1)
            found.append((rate, bytes_rate, flop / rate + moved / bytes_rate, measured / local_steps))
        rate, bytes_rate, least, measured = map(statistics.median, zip(*found, strict=True))
        shares = sorted(least / measured for _, _, least, measured in found)
        columns = (f"{flop / 1e6:.1f}", f"{moved / 1e6:.2f}", f"{rate / 1e9:.0f}", f"{bytes_rate / 1e9:.1f}")
        share = f"{statistics.median(shares):.2f} ({shares[0]:.2f} to {shares[-1]:.2f})"
        print(f"| {name} | {' | '.join(columns)} | {1e3 * least:.3f} | {1e3 * measured:.3f} | {share} |", flush=True)


if __name__ == "__main__":
    main()
