"""What is wrong with a custom server is an error that names the server."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxafl as afl
from jaxafl.server import Needs, OptaxServer, Outcome, Server, mean_delta
from tests.problems import classifier

CLOCK = afl.clock.free_running(concurrency=2, buffer=2, durations=afl.clock.uniform(1, 2))


def ran(server: Any, steps: int = 2) -> Any:
    return classifier(server=server, clock=CLOCK).run(steps)


def run(update: Any, needed: Needs | None = None) -> Any:
    class mine(Server):
        needs = needed or Needs()

        def update(self, params: Any, state: Any, arrivals: Any) -> Any:
            return update(params, state, arrivals)

    return ran(mine())


def stepped(params: Any, arrivals: Any) -> Any:
    return jax.tree.map(jnp.add, params, mean_delta(arrivals))


def named(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


@pytest.mark.slow
def test_an_optimiser_gets_the_learning_rate_of_its_server() -> None:
    """`optax.sgd(None)` would go uphill, without a word."""

    class without(OptaxServer):
        def optimizer_of(self, rate: Any) -> Any:
            return optax.sgd(rate)

    class mine(without):
        learning_rate: float = afl.options.number(default=0.5)

    for server, rate in ((mine(), 0.5), (without(), 1.0)):
        np.testing.assert_allclose(
            ran(server, 3).final_loss, ran(afl.server.fedbuff(rate, "none"), 3).final_loss, rtol=1e-5
        )


@pytest.mark.slow
def test_diagnostics_are_numbers_of_a_step_or_of_an_arrival() -> None:
    found = run(lambda x, s, a: Outcome(stepped(x, a), s, {"widest": a.staleness.max(), "each": a.loss}))
    assert found.widest.shape == (2,) and found.each.shape == (2, 2)
    assert "widest" not in run(lambda x, s, a: Outcome(stepped(x, a), s))


@pytest.mark.slow
def test_a_first_state_may_hold_numbers_of_python() -> None:
    class counting(Server):
        def init(self, params: Any, samples: Any) -> Any:
            return {"made": 0, "total": 0.0}

        def update(self, params: Any, state: Any, arrivals: Any) -> Any:
            new = {"made": state["made"] + 1, "total": state["total"] + 0.5}
            return Outcome(params, new, {"made": state["made"], "total": new["total"]})

    found = ran(counting(), 3)
    assert found.made.values.tolist() == [0, 1, 2] and found.total.values.tolist() == [0.5, 1.0, 1.5]


REPLIES = Needs(replies=True)


@pytest.mark.parametrize(
    ("update", "needs"),
    [
        (lambda x, s, a: None, None),
        (lambda x, s, a: (stepped(x, a), s, {}), None),
        (lambda x, s, a: Outcome(jax.tree.map(jnp.add, x, a.delta), s), None),
        (lambda x, s, a: Outcome(jax.tree.map(lambda leaf: leaf.astype(jnp.float16), x), s), None),
        (lambda x, s, a: Outcome(jax.tree.leaves(x), s), None),
        (lambda x, s, a: Outcome(x, stepped(x, a)), None),
        (lambda x, s, a: Outcome(x, s, {"delta": a.delta}), None),
        (lambda x, s, a: Outcome(x, s, {"odd": jnp.ones(3)}), None),
        (lambda x, s, a: Outcome(x, s, {}, None, a.delta), None),
        (lambda x, s, a: Outcome(x, s, {}, a.local_steps), None),
        (lambda x, s, a: Outcome(x, s), REPLIES),
        (lambda x, s, a: Outcome(x, s, {}, 1.5 * a.local_steps), REPLIES),
        (lambda x, s, a: Outcome(x, s, {}, a.step), REPLIES),
        (lambda x, s, a: Outcome(x, s, {}, 0 * a.local_steps), REPLIES),
        (lambda x, s, a: Outcome(x, s, {"base": a.base["w"]}), None),
        (lambda x, s, a: Outcome(x, s, {"a": 1 / 0}), None),
    ],
)
def test_a_wrong_outcome_of_update_raises(update: Any, needs: Any) -> None:
    with pytest.raises((ValueError, TypeError, ZeroDivisionError)) as raised:
        run(update, needs)
    assert "mine" in named(raised.value) or "server replied" in named(raised.value)


@pytest.mark.parametrize(
    "weigh", [lambda a: 0.5, lambda a: None, lambda a: jnp.float32(0.5), lambda a: a.loss[:, None], lambda a: a.mask]
)
def test_weights_are_one_number_for_each_arrival(weigh: Any) -> None:
    class mine(OptaxServer):
        def weigh(self, arrivals: Any) -> Any:
            return weigh(arrivals)

        def optimizer_of(self, rate: Any) -> Any:
            return optax.sgd(rate)

    with pytest.raises((ValueError, TypeError)) as raised:
        ran(mine())
    assert "mine" in named(raised.value)


def test_an_optimiser_is_one_of_optax() -> None:
    class mine(OptaxServer):
        def optimizer_of(self, rate: Any) -> Any:
            return optax.sgd

    with pytest.raises((ValueError, TypeError, AttributeError)) as raised:
        ran(mine())
    assert "mine" in named(raised.value)
