"""Synthetic(α, β): clients with logistic-regression models that differ by α, and inputs that differ by β."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.data.dataset import Dataset, Source
from jaxafl.data.federated import FederatedData
from jaxafl.data.partition.alike import by_user
from jaxafl.data.preprocessing import as_is
from jaxafl.data.sources.traverse import traverse
from jaxafl.device import keys
from jaxafl.options import UserError, check_flag, check_number, check_whole, named

Arrays: TypeAlias = Mapping[str, np.ndarray | jax.Array]
FEATURES = 60
CLASSES = 10
_REFERENCES = ("li2020",)
_PER_CLIENT = np.uint32(0xFFFFFFFF)  # counter, instead of a position, of draws that occur once per client


@named
def synthetic(
    alpha: float = 1.0,
    beta: float = 1.0,
    clients: int = 30,
    *,
    seed: int = 0,
    max_size: int | None = None,
    lazy: bool = False,
    max_test: int = 20_000,
) -> FederatedData:
    """Generates the synthetic(α, β) federated classification task: 60 features, 10 classes.

    Client k draws `u_k ~ N(0, α)` and `B_k ~ N(0, β)`, its model `W_k (10 × 60), b_k ~ N(u_k, 1)` and the centre of its
    inputs `v_k ~ N(B_k, 1)`. Its samples are `x ~ N(v_k, diag(j^-1.2))`, j = 1..60, labelled `y = argmax(W_k x + b_k)`.
    It holds `floor(lognormal(4, 2)) + 50` samples. The first `floor(0.9 n_k)` are for training, the others for testing.
    As in the reference code, α and β are standard deviations. With α = β = 0, clients still differ in W_k and v_k.
    u_k adds an equal term to the score of every class and cancels in the argmax. So α changes W_k and b_k but no label,
    and the heterogeneity comes from the other draws.

    Every number is a function of (seed, client, position). The stored and the lazy form hold equal samples up to
    float32 rounding; labels can differ only if two classes tie up to rounding.

    Args:
        alpha: standard deviation of u_k, the mean of a client's model parameters; 0 or more.
        beta: standard deviation of B_k, the mean of a client's centre of inputs; 0 or more.
        clients: number of clients N.
        seed: seed of everything, a non-negative integer.
        max_size: largest total size n_k of a client; larger draws are cut to it. `None` keeps the heavy tail: 10^5
            clients then hold about 46 million samples (11 GB stored).
        lazy: if True, generate samples inside the training step instead of storing them: memory O(N), for millions of
            clients.
        max_test: maximum size of the pooled test set, filled with test samples of clients 0, 1, 2, ... in both forms.

    Returns:
        The federated dataset; `description` records all options.

    Raises:
        ValueError: an option is out of range, or stored data would hold 2^31 samples or more.
        TypeError: an option has another type.

    References:
        Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, section 5.1 (FedProx); Li et al.,
        "Fair Resource Allocation in Federated Learning", ICLR 2020 (q-FFL).
    """
    check_number("synthetic", "alpha", alpha, least=0)
    check_number("synthetic", "beta", beta, least=0)
    clients, max_test = check_whole("synthetic", "clients", clients), check_whole("synthetic", "max_test", max_test)
    if max_size is not None:  # at least one sample to train on and one to test
        max_size = check_whole("synthetic", "max_size", max_size, least=2)
    check_flag("synthetic", "lazy", lazy)
    seed = check_whole("synthetic", "seed", seed, least=0, most=2**64 - 1)
    arrays = {
        "key": np.array(keys.seed_key(seed), np.uint32),
        "deviation": np.array([alpha, beta], np.float32),
    }
    sizes = np.random.default_rng(seed).lognormal(4.0, 2.0, clients).astype(np.int64) + 50
    if max_size is not None:
        sizes = np.minimum(sizes, max_size)
    train = sizes * 9 // 10
    test = sizes - train
    # all test samples of the first clients, a part of the next one's, and none of the others'
    x_test, y_test = _pool(arrays, train, train + np.clip(max_test - np.cumsum(test) + test, 0, test))
    description: Source = {
        "source": "synthetic",
        "alpha": float(alpha),
        "beta": float(beta),
        "clients": clients,
        "seed": seed,
        "max_size": "none" if max_size is None else max_size,
        "max_test": max_test,
        "form": "lazy" if lazy else "stored",
    }
    name = f"synthetic({float(alpha):g},{float(beta):g})"
    if lazy:
        said = {"dataset": name, **description, "preprocessing": as_is().description, **by_user().description}
        return FederatedData(name, CLASSES, train, arrays, x_test, y_test, as_is(), generate, said, _REFERENCES)
    x, y = _pool(arrays, np.zeros_like(train), train)
    users = np.repeat(np.arange(clients, dtype=np.int32), train)
    dataset = Dataset(name, x, y, x_test, y_test, CLASSES, as_is(), users, description, _REFERENCES)
    return dataset.partition(by_user())


def generate(arrays: Arrays, client: jax.Array | int, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Generates samples of one client from the dataset's key; traceable.

    Args:
        arrays: `{"key": uint32 [2], "deviation": float32 [2] (α, β)}`.
        client: int32 scalar.
        positions: int32 `[B]`; equal positions give equal samples.

    Returns:
        `(x float32 [B, 60], y int32 [B])`.
    """
    key = (arrays["key"][0], arrays["key"][1])
    once = _normals(keys.threefry(key, client, _PER_CLIENT), 2 + CLASSES * FEATURES + CLASSES + FEATURES)
    model_mean, input_mean = once[0] * arrays["deviation"][0], once[1] * arrays["deviation"][1]
    weights, bias, noise = jnp.split(once[2:], [CLASSES * FEATURES, CLASSES * (FEATURES + 1)])
    deviation = jnp.arange(1, FEATURES + 1, dtype=jnp.float32) ** -0.6
    draws = jax.vmap(lambda position: _normals(keys.threefry(key, client, position), FEATURES))(positions)
    x = input_mean + noise + draws * deviation
    # At an accelerator's default precision, labels would differ from those of a CPU.
    scores = jnp.matmul(x, (weights + model_mean).reshape(CLASSES, FEATURES).T, precision="highest") + bias + model_mean
    return x, jnp.argmax(scores, axis=-1).astype(jnp.int32)


def _normals(key: keys.Key, count: int) -> jax.Array:
    """Draws standard normal float32 `[count]`: counter i of the key gives numbers 2i and 2i + 1, by Box and Muller."""
    first, second = jax.lax.optimization_barrier(keys.threefry(key, jnp.arange((count + 1) // 2, dtype=jnp.uint32), 0))
    radius = jnp.sqrt(-2.0 * jnp.log1p(-keys.uniform((first, first), jnp.float32)))
    angle = jnp.float32(2 * np.pi) * keys.uniform((second, second), jnp.float32)
    pairs = jnp.stack([radius * jnp.cos(angle), radius * jnp.sin(angle)], axis=-1)
    return pairs.reshape(-1)[:count]


def _pool(arrays: Arrays, starts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Concatenates the samples of all clients at positions from `starts` up to `stops`, in order of clients."""
    total = int((stops - starts).sum())
    if total >= 2**31:
        raise UserError(f"synthetic: {total} samples are too many to store; expected up to 2^31. Use lazy or max_size")
    x, y = np.empty((total, FEATURES), np.float32), np.empty(total, np.int32)
    done = 0
    for client, _, (samples, labels) in traverse(generate, arrays, starts, stops):
        x[done : done + len(client)], y[done : done + len(client)] = samples, labels
        done += len(client)
    return x, y
