"""FedOpt: any Optax optimiser as the server's step."""

from __future__ import annotations

from typing import Any

import numpy as np
import optax
import pytest

import jaxafl as afl
from jaxafl import server
from jaxafl.options import UserError
from tests.problems import descent

ROUNDS = afl.clock.synchronous(cohort=2, durations=afl.clock.constant(1.0))


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
    chain = optax.chain(optax.clip(0.5), optax.sgd(0.1, momentum=0.5))

    def clipped(learning_rate: float, momentum: float) -> optax.GradientTransformation:
        return optax.chain(optax.clip(0.5), optax.sgd(learning_rate, momentum=momentum))

    client = {"steps": 2, "batch_size": None}
    made = descent(client=afl.Client(chain, **client), server=server.fedopt(optax.adam(0.1)), clock=ROUNDS)
    named = afl.Client(clipped, learning_rate=0.1, momentum=0.5, **client)
    same = descent(client=named, server=server.fedopt(optax.adam, 0.1), clock=ROUNDS)
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
    sim = descent(server=server.fedopt(optimizer, 0.5), clock=ROUNDS)
    result = sim.run(4)
    assert ("server_rate" in result) == (rates is not None)
    if rates is not None:
        np.testing.assert_allclose(result.server_rate, rates)
    else:
        with pytest.raises(UserError, match="rate η of this server's step is not known"):
            sim.run(4, diagnostics="asynchronous_error")


def test_the_asynchronous_error_of_a_step_of_rate_0_is_the_gradient() -> None:
    still = descent(server=server.fedbuff(0.0), clock=ROUNDS)
    found = still.run(2, diagnostics=("asynchronous_error", "gradient_norm"))
    np.testing.assert_allclose(found.asynchronous_error**2, found.gradient_norm_squared, rtol=1e-5)


@pytest.mark.parametrize("one", [server.fedbuff(1.0), server.fedopt(optax.sgd, 1.0), server.fedadam(1.0)])
def test_a_rate_that_depends_on_arrivals_is_applied(one: Any) -> None:
    rules = map(one.optimizer_of, (0.5, 1.0))
    half, whole = (float(rule.update(np.ones(()), rule.init(np.zeros(())))[0]) for rule in rules)
    assert 2 * half == whole < 0
