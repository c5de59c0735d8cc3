"""Batch statistics follow the weights with which a server averages its clients' models."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxafl as afl
from jaxafl.options import UserError
from jaxafl.server import Arrivals, Outcome, Server
from tests.problems import quadratic
from tests.variants import slow_but

CLIENTS, STEPS = 4, 5
CLIENT = afl.Client(learning_rate=0.01, steps=1, batch_size=None)


def remembering(model: Any) -> Any:
    """The model with a state: the mean of the samples that it was trained on last."""

    def apply(params: Any, state: Any, batch: Any, key: Any, train: bool) -> Any:
        mean = jnp.mean(batch.x, axis=0, where=batch.mask[:, None])
        return model.apply(params, {}, batch, key, train)[0], {"mean": mean} if train else state

    def init(key: Any, batch: Any) -> Any:
        return model.init(key, batch)[0], {"mean": jnp.zeros(6)}

    return dataclasses.replace(model, init=init, apply=apply, sees_mask=True)


class silent(Server):
    """Says nothing of weights."""

    keeps = 0.0

    def update(self, params: Any, state: Any, arrivals: Arrivals) -> Outcome:
        return Outcome(params, state, kept=self.keeps)


class keeping(silent):
    keeps = 1.0


def discount(trained: Any, step: int, samples: Any) -> Any:
    return 1 / np.sqrt(1 + trained.schedule.staleness[step])


def aged(trained: Any, step: int, samples: Any) -> Any:
    return samples / (1 + trained.schedule.staleness[step])


def equal(trained: Any, step: int, samples: Any) -> Any:
    return np.ones_like(samples)


CASES = {
    "fedavg": (afl.server.fedavg(), "synchronous", lambda t, s, n: n, 0),
    "fedavg, uniform": (afl.server.fedavg(weights="uniform"), "synchronous", equal, 0),
    "fedbuff": (afl.server.fedbuff(staleness="polynomial"), "free_running", discount, 0),
    "fedadam": (afl.server.fedadam(), "synchronous", equal, 0),
    "afl": (afl.server.afl(staleness_exponent=1.0), "stale_rounds", aged, 0),
    "own": (silent(), "free_running", equal, 0),
    "own that keeps": (keeping(), "free_running", equal, 1),
    "fedasync": (afl.server.fedasync(alpha=0.25, staleness="constant"), "one", equal, 3),  # x ← (1 - α) x + α x_i
}


@pytest.mark.parametrize("name", slow_but(CASES, "fedbuff"))
def test_state_is_averaged_as_the_models_are(name: str) -> None:
    server, clock, weigh, kept = CASES[name]
    of, time = quadratic(CLIENTS), afl.clock.uniform(0.5, 1.5)
    clocks: dict[str, Any] = {
        "synchronous": afl.clock.synchronous(cohort=3, durations=time),
        "free_running": afl.clock.free_running(concurrency=4, buffer=2, durations=time),
        "one": afl.clock.free_running(concurrency=4, durations=time),
        "stale_rounds": afl.clock.stale_rounds(participants=3, max_staleness=2, durations=time),
    }
    found = afl.Simulation(of.data, remembering(of.model), CLIENT, server, clocks[clock]).train(STEPS)
    means = np.stack([np.concatenate([one.a, one.c], axis=1).mean(axis=0) for one in of.clients])
    expected, counts = np.zeros(6), np.asarray(of.data.counts)
    for step in range(STEPS):
        who = found.schedule.client[step]
        weights = weigh(found, step, counts[who]) * found.schedule.multiplicity[step]
        expected = (kept * expected + weights @ means[who]) / (kept + weights.sum())
    np.testing.assert_allclose(found.model_state["mean"], expected, rtol=2e-5, atol=1e-6)


def test_weights_of_another_shape_are_refused() -> None:
    class wrong(silent):
        def update(self, params: Any, state: Any, arrivals: Arrivals) -> Outcome:
            return Outcome(params, state, weights=jax.tree.leaves(arrivals.delta)[0])

    of = quadratic(CLIENTS)
    clock = afl.clock.free_running(concurrency=4, buffer=3, durations=afl.clock.constant(1.0))
    with pytest.raises(UserError, match="`weights` of shape"):
        afl.Simulation(of.data, of.model, CLIENT, wrong(), clock).run(2)
