"""Local training of networks: convolution as matrix products against lax.conv, PyTorch, and `from_torch` of its module.

Trains every client for some steps of SGD from the same parameters, with the parameters carried in a compiled loop, the
clients either one after another ("looped") or in one `jax.vmap`. All variants run in turn in each repeat, so that a
busy machine slows all alike.

    python experiments/benchmarks/convolution.py --model cnn_defedavg --batch-size 10
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxafl import models
from jaxafl.models import Batch

LEARNING_RATE = 0.01
MODELS: dict[str, Callable[[int], models.Model]] = {
    "mlp": lambda classes: models.mlp(classes, hidden=(128,)),
    "cnn_small": models.cnn_small,
    "cnn_defedavg": models.cnn_defedavg,
    "cnn_asyncfeded": models.cnn_asyncfeded,
}
Loss = Callable[[Any, Batch], jax.Array]


def lax_convolution(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def lax_pool(x: jax.Array) -> jax.Array:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def patches_convolution(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """All pixels of each window side by side (im2col), then one product."""
    k_h, k_w, _, features = kernel.shape
    height, width = x.shape[1] - k_h + 1, x.shape[2] - k_w + 1
    patches = jnp.concatenate([x[:, i : i + height, j : j + width] for i in range(k_h) for j in range(k_w)], axis=-1)
    return patches @ kernel.reshape(-1, features)


def plain_pool(x: jax.Array) -> jax.Array:
    batch, height, width, channels = x.shape
    return x.reshape(batch, height // 2, 2, width // 2, 2, channels).max((2, 4))


def network_loss(name: str, convolve: Callable[..., jax.Array], pool: Callable[[jax.Array], jax.Array]) -> Loss:
    """The loss of the network `name` with other layers but the same parameters."""

    def loss(params: Any, batch: Batch) -> jax.Array:
        x = batch.x
        convolutions = sorted(layer for layer in params if layer.startswith("Conv"))
        for layer in convolutions:
            x = jax.nn.relu(convolve(x, params[layer]["kernel"]) + params[layer]["bias"])
            if name != "cnn_asyncfeded" or layer == convolutions[-1]:
                x = pool(x)
        x = x.reshape(x.shape[0], -1)
        *hidden, last = sorted(layer for layer in params if layer.startswith("Dense"))
        for layer in hidden:
            x = jax.nn.relu(x @ params[layer]["kernel"] + params[layer]["bias"])
        logits = x @ params[last]["kernel"] + params[last]["bias"]
        return models.softmax_cross_entropy(logits, batch).loss.mean()

    return loss


def loss_of(model: models.Model) -> Loss:
    """The mean loss of a model in training."""
    return lambda params, batch: model.apply(params, {}, batch, jax.random.key(0), True)[0].loss.mean()


def local_training(loss: Loss) -> dict[str, Callable[..., Any]]:
    """Compiled functions (params, batches [clients, steps, ...]) -> the clients' mean parameters."""

    def client(params: Any, batches: Batch) -> Any:
        def step(i: jax.Array, params: Any) -> Any:
            gradient = jax.grad(loss)(params, jax.tree.map(lambda leaf: leaf[i], batches))
            return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, gradient)

        return lax.fori_loop(0, batches.y.shape[0], step, params)

    def looped(params: Any, batches: Batch) -> Any:
        def add(total: Any, batches: Batch) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, client(params, batches)), None

        total, _ = lax.scan(add, jax.tree.map(jnp.zeros_like, params), batches)
        return jax.tree.map(lambda leaf: leaf / batches.y.shape[0], total)

    def vectorised(params: Any, batches: Batch) -> Any:
        return jax.tree.map(lambda leaf: leaf.mean(0), jax.vmap(client, (None, 0))(params, batches))

    return {"looped": jax.jit(looped), "vmap": jax.jit(vectorised)}


def torch_network(name: str) -> Any:
    """The network in PyTorch."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    relu, pool, flat = nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    conv, dense = nn.Conv2d, nn.Linear
    small = [conv(1, 10, 5), relu, pool, conv(10, 20, 5), relu, pool, flat, dense(320, 50), relu, dense(50, 10)]
    defedavg = [conv(1, 32, 5), relu, pool, conv(32, 64, 5), relu, pool, flat, dense(1024, 512), relu, dense(512, 10)]
    asyncfeded = [conv(1, 32, 3), relu, conv(32, 64, 3), relu, pool, flat, dense(9216, 10)]
    mlp = [flat, dense(784, 128), relu, dense(128, 10)]
    return nn.Sequential(
        *{"mlp": mlp, "cnn_small": small, "cnn_defedavg": defedavg, "cnn_asyncfeded": asyncfeded}[name]
    )


def torch_training(network: Any, batches: Batch) -> Callable[[], None]:
    """The same work in eager PyTorch, one client after another."""
    import torch
    from torch import nn

    start = {key: value.clone() for key, value in network.state_dict().items()}
    images = torch.tensor(np.asarray(batches.x)).permute(0, 1, 2, 5, 3, 4).contiguous()
    labels = torch.tensor(np.asarray(batches.y), dtype=torch.long)

    def run() -> None:
        for client_images, client_labels in zip(images, labels, strict=True):
            network.load_state_dict(start)
            optimizer = torch.optim.SGD(network.parameters(), lr=LEARNING_RATE)
            for x, y in zip(client_images, client_labels, strict=True):
                optimizer.zero_grad()
                nn.functional.cross_entropy(network(x), y).backward()
                optimizer.step()

    return run


def seconds(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(function())
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="cnn_defedavg")
    parser.add_argument("--batch-size", type=int, default=10)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--steps", type=int, default=5, help="local steps of each client")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--skip-lax", action="store_true", help="leave out lax.conv, which takes seconds")
    options = parser.parse_args()

    rng = np.random.default_rng(0)
    shape = (options.clients, options.steps, options.batch_size)
    batches = Batch(
        jnp.asarray(rng.normal(size=(*shape, 28, 28, 1)), jnp.float32),
        jnp.asarray(rng.integers(0, 10, shape), jnp.int32),
        jnp.ones(shape, bool),
    )
    model = MODELS[options.model](10)
    example = jax.tree.map(lambda leaf: leaf[0, 0, :1], batches)
    params, _ = model.init(jax.random.key(0), example)
    losses: dict[str, Loss] = {"jaxafl": loss_of(model)}
    if options.model != "mlp":
        losses["full patches"] = network_loss(options.model, patches_convolution, plain_pool)
    if options.model != "mlp" and not options.skip_lax:
        losses["lax.conv"] = network_loss(options.model, lax_convolution, lax_pool)

    first = jax.tree.map(lambda leaf: leaf[0, 0], batches)
    values = [float(loss(params, first)) for loss in losses.values()]
    if not np.allclose(values, values[0], rtol=1e-4):
        raise RuntimeError(f"the variants are not the same network: losses {dict(zip(losses, values, strict=True))}")

    runs: dict[tuple[str, str], Callable[[], Any]] = {}
    compile_seconds: dict[tuple[str, str], float] = {}
    starts = dict.fromkeys(losses, params)
    with contextlib.suppress(ImportError):
        network = torch_network(options.model)
        runs["PyTorch eager", "looped"] = torch_training(network, batches)
        module = models.from_torch(network, reset=False)
        losses["from_torch"] = loss_of(module)
        starts["from_torch"], _ = module.init(jax.random.key(0), example)
    for variant, loss in losses.items():
        for mode, function in local_training(loss).items():
            start = time.perf_counter()
            executable = function.lower(starts[variant], batches).compile()  # type: ignore[attr-defined]
            compile_seconds[variant, mode] = time.perf_counter() - start
            runs[variant, mode] = partial(executable, starts[variant], batches)

    for run in runs.values():
        seconds(run)
    times: dict[tuple[str, str], list[float]] = {key: [] for key in runs}
    for _ in range(options.repeats):
        for key, run in runs.items():
            times[key].append(seconds(run))

    print(
        f"{options.model}, {options.clients} clients x {options.steps} steps of batch {options.batch_size}, "
        f"{jax.default_backend()}; {options.repeats} repeats"
    )
    print(f"{'variant':16}{'clients':10}{'median ms':>10}{'fastest':>10}{'to jaxafl looped':>18}{'compile s':>11}")
    reference = statistics.median(times["jaxafl", "looped"])
    for key, measured in times.items():
        median = statistics.median(measured)
        compiled = f"{compile_seconds[key]:11.1f}" if key in compile_seconds else f"{'-':>11}"
        print(
            f"{key[0]:16}{key[1]:10}{median * 1e3:10.1f}{min(measured) * 1e3:10.1f}{median / reference:18.2f}{compiled}"
        )


if __name__ == "__main__":
    main()
