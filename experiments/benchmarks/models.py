"""Time and memory of a client step of every convolutional model: matrix products against lax.conv, looped to vmapped.

A client step is the loss, its gradient and one step of SGD. Every client starts from the same parameters and makes some
steps in a compiled loop; `chunk` clients advance under one `jax.vmap`, chunks one after another (chunk 1: a loop over
clients). The networks are those of the package; for lax.conv its convolution is replaced while they are traced. All
programs of a model run in turn in each repeat, so that a busy machine slows all alike. Memory is what the compiled
program needs for temporaries, as XLA states it.

    python experiments/benchmarks/models.py --skip-lax    # all models; lax.conv takes most of the time
    python experiments/benchmarks/models.py resnet20 --chunks 1 4 16 --clients 16 --batch-size 50
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from rich.console import Console
from rich.table import Table

from jaxafl import models
from jaxafl.models import Batch

LEARNING_RATE = 0.01
IMAGES = {
    "cnn_small": (28, 28, 1),
    "cnn_over": (28, 28, 1),
    "cnn_afl": (28, 28, 1),
    "cnn_defedavg": (28, 28, 1),
    "cnn_asyncfeded": (28, 28, 1),
    "resnet20": (32, 32, 3),
    "resnet18": (32, 32, 3),
}
CONVOLUTIONS = ("matrix products", "lax.conv")


class Program(NamedTuple):
    """A compiled way of training all clients."""

    convolution: str
    chunk: int
    run: Callable[[], Any]
    compile_seconds: float
    mebibytes: float


def lax_convolution(
    x: jax.Array, kernel: jax.Array, strides: tuple[int, int] = (1, 1), padding: Any = "VALID"
) -> jax.Array:
    return lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def convolving(name: str) -> contextlib.AbstractContextManager[Any]:
    """While it is open, the layers of the package convolve in the way `name`."""
    return (
        mock.patch("jaxafl.models.networks.convolution.conv2d", lax_convolution)
        if name == "lax.conv"
        else contextlib.nullcontext()
    )


def random_batches(image: tuple[int, ...], clients: int, steps: int, batch_size: int) -> Batch:
    """[clients, steps, batch, ...]"""
    rng = np.random.default_rng(0)
    shape = (clients, steps, batch_size)
    x = jnp.asarray(rng.normal(size=(*shape, *image)), jnp.float32)
    return Batch(x, jnp.asarray(rng.integers(0, 10, shape), jnp.int32), jnp.ones(shape, bool))


def training(model: models.Model, chunk: int) -> Callable[..., Any]:
    """(params, state, batches) -> of every client, the mean loss at its last step and the squared norm it ends with."""

    def client(params: Any, state: Any, batches: Batch) -> jax.Array:
        def step(index: jax.Array, carry: Any) -> Any:
            params, state, _ = carry
            batch = jax.tree.map(lambda leaf: leaf[index], batches)

            def mean_loss(params: Any) -> Any:
                outputs, new_state = model.bound(None)(params, state, batch, jax.random.key(0), True)
                return outputs.loss.mean(), new_state

            (loss, state), gradient = jax.value_and_grad(mean_loss, has_aux=True)(params)
            return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, gradient), state, loss

        params, state, loss = lax.fori_loop(0, batches.y.shape[0], step, (params, state, jnp.float32(0)))
        return jnp.stack([loss, sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves((params, state)))])

    def all_clients(params: Any, state: Any, batches: Batch) -> jax.Array:
        groups = jax.tree.map(lambda leaf: leaf.reshape(-1, chunk, *leaf.shape[1:]), batches)
        together = jax.vmap(client, (None, None, 0)) if chunk > 1 else partial(_alone, client)
        return lax.map(lambda group: together(params, state, group), groups).reshape(-1, 2)

    return all_clients


def _alone(client: Callable[..., jax.Array], params: Any, state: Any, group: Batch) -> jax.Array:
    return client(params, state, jax.tree.map(lambda leaf: leaf[0], group))[None]


def programs(model: models.Model, batches: Batch, chunks: list[int], skip_lax: bool) -> Iterator[Program]:
    """Compiles every way of training."""
    example = jax.tree.map(lambda leaf: leaf[0, 0, :1], batches)
    make = jax.jit(model.init).lower(jax.random.key(0), example)
    params, state = make.compile(compiler_options={"xla_backend_optimization_level": 0})(jax.random.key(0), example)
    for convolution, chunk in itertools.product(CONVOLUTIONS[: 1 if skip_lax else 2], chunks):
        begun = time.perf_counter()
        with convolving(convolution):
            lowered = jax.jit(training(model, chunk)).lower(params, state, batches)
        compiled = lowered.compile()
        seconds = time.perf_counter() - begun
        temporary = compiled.memory_analysis().temp_size_in_bytes / 2**20
        yield Program(convolution, chunk, partial(compiled, params, state, batches), seconds, temporary)


def measure(found: list[Program], repeats: int) -> list[list[float]]:
    """Seconds of each program, in turn after one warm-up, whose results must agree."""
    expected = None
    for program in found:
        results = np.asarray(program.run())
        expected = results if expected is None else expected
        if not np.allclose(results, expected, rtol=2e-2):
            raise RuntimeError(f"not the same network: losses and norms {expected} and {results}")
    times: list[list[float]] = [[] for _ in found]
    for _ in range(repeats):
        for program, column in zip(found, times, strict=True):
            begun = time.perf_counter()
            jax.block_until_ready(program.run())
            column.append(time.perf_counter() - begun)
    return times


def main() -> None:
    """Prints a table per model, with its fastest chunk."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help=f"any of {', '.join(IMAGES)}; all by default")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--chunks", type=int, nargs="+", default=[1, 2, 4], help="divisors of the number of clients")
    parser.add_argument("--batch-size", type=int, help="20 by default, 8 for resnet18")
    parser.add_argument("--steps", type=int, default=2, help="steps of each client; at least 2, for a real loop")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--skip-lax", action="store_true", help="leave out lax.conv, which is slow on a CPU")
    options = parser.parse_args()
    unknown = set(options.models) - set(IMAGES)
    if unknown or any(options.clients % chunk for chunk in options.chunks):
        parser.error(f"unknown models {unknown}" if unknown else "every chunk must divide the number of clients")

    console = Console(width=110)
    console.print(f"{jax.default_backend()}, jax {jax.__version__}, {options.precision}, {options.clients} clients")
    for name in options.models or list(IMAGES):
        batch_size = options.batch_size or (8 if name == "resnet18" else 20)
        batches = random_batches(IMAGES[name], options.clients, options.steps, batch_size)
        found = list(
            programs(getattr(models, name)(10).at(options.precision), batches, options.chunks, options.skip_lax)
        )
        times = measure(found, options.repeats)
        console.print(as_table(f"{name}, batch {batch_size}", found, times, options.clients * options.steps))


def as_table(title: str, found: list[Program], times: list[list[float]], client_steps: int) -> Table:
    """The measurements of a model, the fastest chunk of the package's convolution in the caption."""
    table = Table(
        "convolution", "chunk", "ms per client step", "fastest", "to the first row", "temporary MiB", "compile s",
        title=title,
    )  # fmt: skip
    medians = [statistics.median(column) for column in times]
    for program, column, median in zip(found, times, medians, strict=True):
        milliseconds = (f"{1e3 * value / client_steps:.1f}" for value in (median, min(column)))
        sizes = (f"{program.mebibytes:.0f}", f"{program.compile_seconds:.1f}")
        table.add_row(program.convolution, str(program.chunk), *milliseconds, f"{median / medians[0]:.2f}", *sizes)
    own = [pair for pair in zip(medians, found, strict=True) if pair[1].convolution == CONVOLUTIONS[0]]
    table.caption = f"fastest with {CONVOLUTIONS[0]}: chunk {min(own, key=lambda pair: pair[0])[1].chunk}"
    return table


if __name__ == "__main__":
    main()
