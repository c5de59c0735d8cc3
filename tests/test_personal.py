"""Personal parameters against a slow NumPy loop: never sent, kept by their client, and judged with its samples."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxafl as afl
from jaxafl import correction, upload
from jaxafl.data import from_arrays
from jaxafl.models import Outputs, from_functions
from tests.problems import START, quadratic
from tests.test_correction import scaffold_loop

STEPS, RATE, K = 10, 0.2, 2
PLACES = afl.clock.uniform(1, 3)


@functools.cache
def problem() -> tuple[Any, Any, np.ndarray]:
    """The clients of `quadratic`, with w_0 and w_1 as body and w_2 as head, and training samples as test samples."""
    clients = quadratic().clients
    samples = np.concatenate([np.concatenate([one.a, one.c], axis=1) for one in clients]).astype(np.float32)
    owners = np.repeat(np.arange(6), [one.num_samples for one in clients])
    labels = np.zeros(len(samples), np.int32)
    data = from_arrays(samples, labels, owners, x_test=samples, y_test=labels, name="two parts")
    data = dataclasses.replace(data, test_clients=owners)

    def init(key: Any, batch: Any) -> Any:
        return {"body": jnp.asarray(START[:2], jnp.float32), "head": jnp.asarray(START[2:], jnp.float32)}

    def loss(params: Any, batch: Any, key: Any) -> Any:
        curvature, centre = jnp.split(batch.x, 2, axis=1)
        w = jnp.concatenate([params["body"], params["head"]])
        each = 0.5 * jnp.sum(curvature * (w - centre) ** 2, axis=1)
        return Outputs(each, {"accuracy": (each < 1).astype(jnp.float32)})

    return data, from_functions(init, loss, "two parts"), samples


def simulation(clock: Any, server: Any = None, **options: Any) -> afl.Simulation:
    data, model, _ = problem()
    given: dict[str, Any] = dict(learning_rate=RATE, steps=K, batch_size=None, personal=lambda path: path == "head")
    server = server or afl.server.fedbuff(weights="uniform", staleness="none")
    return afl.Simulation(data, model, afl.Client(**given | options), server, clock)


def losses(body: np.ndarray, heads: np.ndarray) -> np.ndarray:
    """Loss of each client's model on each of its samples."""
    found = []
    for client, head in zip(quadratic().clients, heads, strict=True):
        found.append(0.5 * (client.a * (np.concatenate([body, head]) - client.c) ** 2).sum(1))
    return np.concatenate(found)


FREE = afl.clock.free_running(concurrency=4, buffer=2, durations=PLACES)


def observed(params: Any) -> Any:
    return params


@pytest.mark.slow
def test_personal_parameters_stay_with_their_client() -> None:
    sim = simulation(FREE)
    bodies, heads = scaffold_loop(sim.schedule(STEPS, seed=3), [RATE] * K, 2, corrects=False)
    trained = sim.train(STEPS, seed=3, lanes=4, eval_every=1, observe=observed, diagnostics="per_client")
    result = trained.dataset
    one_by_one = sim.run(STEPS, seed=3, lanes=1, eval_every=1)  # four lanes trained runs before they had arrived
    np.testing.assert_allclose(result.personal_loss.values, one_by_one.personal_loss.values, rtol=1e-5)
    np.testing.assert_allclose(result.observe_body.values, bodies, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(result.observe_head.values, np.full((STEPS + 1, 1), START[2]))
    for client in range(6):
        mine = trained.client_params(client)
        np.testing.assert_allclose(mine["head"], heads[client], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(mine["body"], trained.params["body"])
    each = losses(bodies[-1], heads)
    np.testing.assert_allclose(result.personal_loss.values[-1], each.mean(), rtol=1e-5)
    np.testing.assert_allclose(result.personal_accuracy.values[-1], (each < 1).mean(), rtol=1e-6)
    np.testing.assert_allclose(result.loss.values[-1], losses(bodies[-1], np.full((6, 1), START[2])).mean(), rtol=1e-5)
    owners = np.repeat(np.arange(6), [one.num_samples for one in quadratic().clients])
    means = [each[owners == client].mean() for client in range(6)]
    np.testing.assert_allclose(result.client_loss.values[-1], means, rtol=1e-5)
    assert result.personal_loss.values[-1] < result.loss.values[-1]
    assert sim.traffic() == (8, 8)  # the body's two numbers
    assert (result.delta_norm.values[result.arrived.values] > 0).all()
    with pytest.raises(ValueError, match="client_params: client must be"):
        trained.client_params(6)


@pytest.mark.slow
def test_results_do_not_depend_on_how_runs_are_trained(tmp_path: Any) -> None:
    sim = simulation(FREE, correction=correction.scaffold(), upload=upload.error_feedback(upload.top_k(share=1.0)))
    bodies, heads = scaffold_loop(sim.schedule(STEPS, seed=3), [RATE] * K, 2)
    assert sim.traffic() == (np.ceil(2 * 33 / 8) + 8, 16)  # an index of one bit for each of two numbers
    ways: tuple[dict[str, Any], ...] = ({}, {"lanes": 4}, {"lanes": 16}, {"lanes": 4, "chunk": 2})
    for how in ways:
        trained = sim.train(STEPS, seed=3, observe=observed, **how)
        np.testing.assert_allclose(trained.dataset.observe_body.values, bodies, rtol=1e-5, atol=1e-5)
        found = [trained.client_params(client)["head"] for client in range(6)]
        np.testing.assert_allclose(found, heads, rtol=1e-5, atol=1e-5)
    swept = afl.sweep(sim, {"seed": [5, 3]}, STEPS, observe=observed, eval_every=STEPS)
    np.testing.assert_allclose(swept.observe_body.values[1], bodies, rtol=1e-5, atol=1e-5)
    want = losses(bodies[-1], heads).mean()
    np.testing.assert_allclose(swept.personal_loss.values[1, -1], want, rtol=1e-4)
    sim.run(4, seed=3, folder=tmp_path)
    np.testing.assert_allclose(sim.run(STEPS, seed=3, folder=tmp_path).personal_loss.values[-1], want, rtol=1e-4)


@pytest.mark.slow
def test_no_server_changes_personal_parameters_of_the_model() -> None:
    servers = (afl.server.fedopt(optax.adamw, learning_rate=0.1, weight_decay=0.1), afl.server.fedasync(alpha=0.3))
    for server, clock in zip(servers, (FREE, afl.clock.free_running(concurrency=4, durations=PLACES)), strict=True):
        result = simulation(clock, server).run(STEPS, observe=observed)
        assert (result.observe_head.values == np.float32(START[2])).all()
        assert np.ptp(result.observe_body.values, axis=0).min() > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"personal": lambda path: path == "tail"}, "selects none of the parameters body, head"),
        ({"personal": lambda path: path.find("head")}, r"personal\('body'\) must be True or False, got -1"),
        ({"server": afl.server.quafl()}, "keeps a model of every client"),
    ],
)
def test_personal_parameters_that_cannot_be_are_an_error(options: dict[str, Any], message: str) -> None:
    options = dict(options)
    server = options.pop("server", None)
    clock = FREE if server is None else afl.clock.interrupting(period=1.0, contacted=2, durations=PLACES)
    with pytest.raises((ValueError, TypeError), match=message):
        simulation(clock, server, **options).check()


def test_diagnostics_that_do_not_see_personal_parameters_are_refused() -> None:
    for name in ("local_accuracy", "gradient_norm"):
        with pytest.raises(ValueError, match=f"{name} is not known for"):
            simulation(FREE).run(2, diagnostics=name)
