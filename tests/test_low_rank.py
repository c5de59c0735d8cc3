"""Clients that train low-rank changes of kernels and send their factors: the mean of their products is exact."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxafl as afl
from jaxafl.client.upload import Sent
from tests.problems import descent

RANK, ALPHA, RATE = 2, 3.0, 0.1


def test_a_client_descends_in_the_factors() -> None:
    """NumPy: A and B by gradient descent on ||X W - Y||² / 2 with W = W_s + (α/r) (B A)ᵀ, and the head as it is."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 6)), rng.normal(size=(20, 5))
    params = {"head": rng.normal(size=5), "kernel": rng.normal(size=(6, 5)), "other": np.ones((2, 2))}
    parts = afl.upload.low_rank(RANK, where=lambda path: path == "kernel", trained=lambda path: path == "head")

    def loss(of: Any) -> Any:
        return jnp.sum((x @ of["kernel"] + of["head"] - y) ** 2) / 40

    with jax.enable_x64(True):
        optimizer = parts.optimizer(optax.sgd, ALPHA)(RATE)
        now: Any = jax.tree.map(jnp.asarray, params)
        state: Any = optimizer.init(now)
        found = []
        for _ in range(6):
            updates, state = optimizer.update(jax.grad(loss)(now), state, now)
            now = optax.apply_updates(now, updates)
            found.append(now | state.moved["kernel"])
    scale, kernel, head = ALPHA / RANK, params["kernel"], params["head"]
    moved = (np.asarray(found[0]["kernel"]) - kernel).T / scale
    a, b = np.linalg.lstsq(np.asarray(found[0]["b"]), moved, rcond=None)[0], np.zeros((5, RANK))  # B_1 A_0
    assert 0 < np.abs(a).max() <= 6**-0.5
    for step in found:
        rest = (x @ (kernel + scale * (b @ a).T) + head - y) / 20
        slope, head = x.T @ rest, head - RATE * rest.sum(0)
        a, b = a - RATE * scale * (slope @ b).T, b - RATE * scale * (a @ slope).T
        np.testing.assert_allclose(step["kernel"], kernel + scale * (b @ a).T, atol=1e-9)
        np.testing.assert_allclose(step["head"], head, atol=1e-9)
    assert np.array_equal(found[-1]["other"], params["other"])


def test_an_update_of_the_rank_arrives_whole_and_another_as_a_projection() -> None:
    rng = np.random.default_rng(1)
    thin, full = rng.normal(size=(7, RANK)) @ rng.normal(size=(RANK, 5)), rng.normal(size=(7, 5))
    given = {"bias": np.ones(5), "full": full, "head": np.ones(3), "thin": thin}
    sent = Sent(*map(jnp.int32, range(4)), jax.random.key(5))
    parts = afl.upload.low_rank(RANK, trained=lambda path: path == "head")
    found = parts.apply(jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), given), sent)
    np.testing.assert_allclose(found["thin"], thin, atol=1e-5)
    assert np.linalg.matrix_rank(found["full"], 1e-4) == RANK
    np.testing.assert_allclose(np.asarray(found["full"]).T @ (full - found["full"]), 0, atol=1e-4)
    assert not found["bias"].any() and np.array_equal(found["head"], given["head"])
    assert afl.upload.received_size(parts, given) == 8 * (2 * RANK * (7 + 5) + 3)


@pytest.mark.parametrize("each", [1, 3])
def test_the_server_gets_the_mean_of_the_products(each: int) -> None:
    data = afl.data.synthetic(clients=3, max_size=40)
    parts = afl.upload.low_rank(RANK)
    client = afl.Client(parts.optimizer(optax.adam), learning_rate=0.1, steps=4, batch_size=8, upload=parts)
    clock = afl.clock.free_running(concurrency=3, buffer=each, durations=afl.clock.uniform(1, 5))
    sim = afl.Simulation(data, afl.models.logistic(10), client, afl.server.fedbuff(), clock)
    whole = dataclasses.replace(sim, client=dataclasses.replace(client, upload=None)).train(2)
    factored, start = sim.train(2), sim.init()
    for one, other in zip(jax.tree.leaves(factored.params), jax.tree.leaves(whole.params), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    moved = jax.tree.map(lambda new, old: np.linalg.matrix_rank(new - old, 1e-4), factored.params, start.params)
    assert RANK < max(jax.tree.leaves(moved)) <= 2 * each * RANK
    assert factored.dataset.bytes_up.values.tolist() == [each * 4 * RANK * (60 + 10)] * 2


TWO = afl.upload.low_rank(2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"upload": afl.upload.low_rank(0)}, "rank"),
        ({"upload": afl.upload.low_rank(1, where=bool)}, "where"),
        ({"upload": afl.upload.chain(TWO, afl.upload.sign())}, "last"),
        ({"optimizer": TWO.optimizer(), "upload": afl.upload.low_rank(1)}, "rank 2.* rank 1"),
        ({"optimizer": TWO.optimizer(), "upload": afl.upload.error_feedback(afl.upload.low_rank(1))}, "rank 1"),
        ({"optimizer": TWO.optimizer(), "reset": "never"}, "reset"),
    ],
)
def test_what_would_not_be_low_rank_training_is_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        descent(client=afl.Client(**options, learning_rate=0.1, steps=1, batch_size=1)).check()


def test_factors_that_stay_with_clients_do_not_fit_their_products() -> None:
    client = afl.Client(learning_rate=0.1, steps=1, batch_size=1, personal=lambda path: path.endswith("/a"))
    with pytest.raises(ValueError, match="personal"):
        descent(client=client, server=afl.server.flexlora(), clock=afl.clock.synchronous()).check()
