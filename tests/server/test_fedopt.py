"""FedOpt: any Optax optimiser as the server's step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import optax
import pytest

import jaxafl as afl
from jaxafl import server
from jaxafl.options import UserError
from tests.oracle.server import FedBuff, StepInfo
from tests.problems import assert_same, descent, quadratic, record, reference, simulate

STEPS = 12


class AdamW(FedBuff):
    """Loshchilov and Hutter's Algorithm 2 on the gradient -D, D the discounted mean of the buffer, written out."""

    def __init__(self, eta: float, b1: float, b2: float, eps: float, decay: float) -> None:
        super().__init__(eta=eta)
        self.b1, self.b2, self.eps, self.decay = b1, b2, eps, decay
        self.first, self.second, self.count = np.zeros(1), np.zeros(1), 0
        self.info = StepInfo(eta=eta)

    def step(self, x: np.ndarray, arrivals: Sequence[Any]) -> np.ndarray:
        gradient = np.zeros_like(x)
        for update in arrivals:
            gradient -= update.multiplicity * update.delta / np.sqrt(1 + update.staleness)
        gradient /= sum(update.multiplicity for update in arrivals)
        self.count += 1
        self.first = self.b1 * self.first + (1 - self.b1) * gradient
        self.second = self.b2 * self.second + (1 - self.b2) * gradient**2
        first, second = self.first / (1 - self.b1**self.count), self.second / (1 - self.b2**self.count)
        return x - self.eta * (first / (np.sqrt(second) + self.eps) + self.decay * x)


@pytest.mark.slow
def test_adamw_follows_its_reference() -> None:
    recorded = record(4, 6, STEPS, "late", concurrency=4, buffer=2)
    expected = reference(quadratic(), AdamW(0.1, 0.8, 0.95, 1e-6, 0.3), recorded.oracle(STEPS))
    mine = server.fedopt(optax.adamw, 0.1, "polynomial", b1=0.8, b2=0.95, eps=1e-6, weight_decay=0.3)
    with jax.enable_x64(True):
        assert_same(simulate(quadratic(), mine, recorded.clock(), STEPS), expected, 1e-9)


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (lambda: server.fedopt(optax.sgd, 0.1, weight_decay=0.1), "weight_decay"),
        (lambda: server.fedopt(0.1), "callable"),  # type: ignore[arg-type]
        (lambda: server.fedopt(optax.sgd(0.1), momentum=0.5), "momentum"),
        (lambda: server.fedopt(optax.sgd(0.1), 0.5), "learning.rate"),
        (lambda: server.fedopt(optax.adam, -1.0), "learning_rate"),
        (lambda: server.fedopt(optax.adam, 1.0, "linear"), "staleness"),  # type: ignore[arg-type]
        (lambda: server.fedopt(optax.adam, b1=float("nan")), "b1"),
        (lambda: server.fedopt(optax.adam, b2=np.ones(3)), "b2"),
    ],
)
def test_invalid_options_raise(make: Any, option: str) -> None:
    with pytest.raises((ValueError, TypeError), match=option):
        descent(server=make()).check()


@pytest.mark.slow
def test_a_made_optimiser_is_the_one_of_its_constructor() -> None:
    of = quadratic(4)
    clock = afl.clock.synchronous(cohort=2, durations=afl.clock.constant(1.0))
    chain = optax.chain(optax.clip(0.5), optax.sgd(0.1, momentum=0.5))

    def clipped(learning_rate: float, momentum: float) -> optax.GradientTransformation:
        return optax.chain(optax.clip(0.5), optax.sgd(learning_rate, momentum=momentum))

    client = {"steps": 2, "batch_size": None}
    made = afl.Simulation(of.data, of.model, afl.Client(chain, **client), server.fedopt(optax.adam(0.1)), clock)
    named = afl.Client(clipped, learning_rate=0.1, momentum=0.5, **client)
    same = afl.Simulation(of.data, of.model, named, server.fedopt(optax.adam, 0.1), clock)
    found, expected = made.run(4), same.run(4)
    np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-6)
    assert "GradientTransformation" in str(found.attrs["client"])
    assert "server_rate" not in found
    again = afl.sweep(same, {"client": [made.client]}, 4)
    np.testing.assert_allclose(again.loss.values.ravel(), expected.loss, rtol=1e-6)


@pytest.mark.parametrize(
    ("optimizer", "rates"),
    [
        (optax.sgd, [0.5] * 4),
        (lambda learning_rate: optax.sgd(optax.linear_schedule(learning_rate, 0.0, 4)), None),
        pytest.param(
            lambda learning_rate: optax.inject_hyperparams(optax.sgd)(optax.linear_schedule(learning_rate, 0.0, 4)),
            [0.5, 0.375, 0.25, 0.125],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["constant", "schedule", "injected"],
)
def test_the_servers_rate_is_the_one_that_was_applied_or_is_not_said(optimizer: Any, rates: Any) -> None:
    of = quadratic(4)
    clock = afl.clock.synchronous(cohort=2, durations=afl.clock.constant(1.0))
    client = afl.Client(learning_rate=0.1, steps=1, batch_size=None)
    sim = afl.Simulation(of.data, of.model, client, afl.server.fedopt(optimizer, 0.5), clock)
    result = sim.run(4)
    assert ("server_rate" in result) == (rates is not None)
    if rates is not None:
        np.testing.assert_allclose(result.server_rate, rates)
    else:
        with pytest.raises(UserError, match="rate η of this server's step is not known"):
            sim.run(4, diagnostics="asynchronous_error")


@pytest.mark.parametrize("one", [server.fedbuff(1.0), server.fedopt(optax.sgd, 1.0)])
def test_a_rate_that_depends_on_arrivals_is_applied(one: Any) -> None:
    rule = one.optimizer_of(0.5)
    step, _ = rule.update(2.0, rule.init(0.0))
    assert float(step) == -1.0
