"""What `peers.py` runs of FedJAX: synchronous FedAvg with its for-each-client loop and a network in Haiku.

    python peers_fedjax.py fedjax fedavg pfl_cnn UPDATES

prints what `peers_torch.py` prints, and the seconds of a first run less those of a second as `compiling`.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import fedjax
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from peers_torch import BATCH, CLIENTS, COHORT, EVERY, RATE, SAMPLES, task

# functions that FedJAX 0.0.17 calls and JAX has moved
for name in ("tree_map", "tree_leaves"):
    if not hasattr(jax, name):
        setattr(jax, name, getattr(jax.tree_util, name))


def fedavg(name: str, updates: int) -> dict[str, Any]:
    """Rounds of `fedjax.algorithms.fed_avg`; cohorts are drawn without replacement, as pfl's are."""
    x, y, x_test, y_test, classes = task(name)

    @hk.transform
    def network(images: jax.Array, train: bool) -> jax.Array:
        z = jax.nn.relu(hk.Conv2D(32, 3, padding="VALID")(images))
        z = jax.nn.relu(hk.Conv2D(64, 3, padding="VALID")(z))
        z = hk.max_pool(z, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        if name == "pfl_cnn":
            z = hk.dropout(hk.next_rng_key(), 0.25, z) if train else z
            z = jax.nn.relu(hk.Linear(128)(hk.Flatten()(z)))
            z = hk.dropout(hk.next_rng_key(), 0.5, z) if train else z
        return hk.Linear(classes)(hk.Flatten()(z))

    def loss(params: Any, batch: Any, key: Any) -> jax.Array:
        rows = jax.nn.log_softmax(network.apply(params, key, batch["x"], True))
        return -jnp.take_along_axis(rows, batch["y"][:, None], 1)[:, 0]

    parts = [slice(client * SAMPLES, (client + 1) * SAMPLES) for client in range(CLIENTS)]
    data = fedjax.InMemoryFederatedData({str(i): {"x": x[part], "y": y[part]} for i, part in enumerate(parts)})
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.grad(loss),
        fedjax.optimizers.sgd(RATE),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH),
    )
    correct = jax.jit(lambda params: jnp.mean(jnp.argmax(network.apply(params, None, x_test, False), 1) == y_test))
    seconds = []
    for _ in range(2):
        sampler = fedjax.client_samplers.UniformGetClientSampler(data, COHORT, seed=0)
        state, found = algorithm.init(network.init(jax.random.key(0), jnp.asarray(x[:1]), False)), []
        begun = time.perf_counter()
        for done in range(COHORT, updates + 1, COHORT):
            state, _ = algorithm.apply(state, sampler.sample())
            if done % EVERY == 0:
                found.append([done, float(correct(state.params))])
        jax.block_until_ready(state)
        seconds.append(time.perf_counter() - begun)
    made = updates // COHORT * COHORT
    return {"updates": made, "seconds": seconds[1], "compiling": seconds[0] - seconds[1], "accuracy": found}


if __name__ == "__main__":
    np.random.seed(0)
    _, method, problem, count = sys.argv[1:5]
    print(json.dumps(fedavg(problem, int(count))))
