"""What is wrong with a server of one's own is said in its terms, before anything is compiled."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxafl as afl
from jaxafl.device.rows import ShardedUpdates
from jaxafl.engine.outcome import outcome_of
from jaxafl.engine.state import first_state
from jaxafl.server import Arrivals, Needs, OptaxServer, Outcome, Server, mean_delta

DATA = afl.data.synthetic(1, 1, clients=4, max_size=20)
CLOCK = afl.clock.free_running(concurrency=2, buffer=2, durations=afl.clock.uniform(1, 2))
CLIENT = afl.Client(steps=1, batch_size=4, learning_rate=0.1)


def run(update: Any, needed: Needs | None = None) -> Any:
    class mine(Server):
        needs = needed or Needs()

        def update(self, params: Any, state: Any, arrivals: Any) -> Any:
            return update(params, state, arrivals)

    return afl.Simulation(DATA, afl.models.logistic(10), CLIENT, mine(), CLOCK).run(2)


def stepped(params: Any, arrivals: Any) -> Any:
    return jax.tree.map(jnp.add, params, mean_delta(arrivals))


def test_updates_on_several_devices_are_only_summed() -> None:

    class mine(OptaxServer):
        def weigh(self, arrivals: Any) -> Any:
            return arrivals.delta["w"][:, 0]

        def optimizer_of(self, rate: Any) -> Any:
            return optax.sgd(1.0)

    assert mine().needs.linear  # `linear = False` in the class would gather the updates
    updates: Any = ShardedUpdates({"w": jnp.ones((1, 2))}, jnp.arange(1), jnp.arange(1), jnp.int32(1), 1)
    one, none = jnp.ones(1), jnp.zeros(1, int)
    arrivals = Arrivals(one > 0, none, none, none, updates, None, none, one, none, one, none[0], one[0])
    params = {"w": jnp.zeros(2)}
    with pytest.raises(TypeError, match="ShardedUpdates") as raised:
        outcome_of(mine(), params, mine().init(params, one), arrivals)
    assert "nothing of them but `weighted_sum(weights, arrivals.delta)`" in raised.value.__notes__[-1]


@pytest.mark.slow
def test_an_optimiser_gets_the_learning_rate_of_its_server() -> None:
    """`optax.sgd(None)` would go uphill, without a word."""

    class without(OptaxServer):
        def optimizer_of(self, rate: Any) -> Any:
            return optax.sgd(rate)

    class mine(without):
        learning_rate: float = afl.options.number(default=0.5)

    def loss(server: Any) -> Any:
        return afl.Simulation(DATA, afl.models.logistic(10), CLIENT, server, CLOCK).run(3).final_loss

    np.testing.assert_allclose(loss(mine()), loss(afl.server.fedbuff(0.5, "none")), rtol=1e-5)
    np.testing.assert_allclose(loss(without()), loss(afl.server.fedbuff(1.0, "none")), rtol=1e-5)


@pytest.mark.slow
def test_a_server_without_mistakes_runs() -> None:
    found = run(lambda x, s, a: Outcome(stepped(x, a), s, {"widest": a.staleness.max(), "each": a.loss}))
    assert found.widest.shape == (2,) and found.each.shape == (2, 2)
    assert "widest" not in run(lambda x, s, a: Outcome(stepped(x, a), s))


@pytest.mark.parametrize(
    ("update", "words"),
    [
        (lambda x, s, a: None, r"must return jaxafl\.server\.Outcome\(params, state, info\), it returned None"),
        (lambda x, s, a: (stepped(x, a), s, {}), r"Outcome\(params, state, info\), it returned \("),
        (
            lambda x, s, a: Outcome(jax.tree.map(jnp.add, x, a.delta), s, {}),
            r"parameters like those that it was given: params.* was float32\[.*\], it is float32\[2, ",
        ),
        (
            lambda x, s, a: Outcome(jax.tree.map(lambda leaf: leaf.astype(jnp.float16), x), s, {}),
            r"was float32\[.*\], it is float16",
        ),
        (lambda x, s, a: Outcome(jax.tree.leaves(x), s, {}), r"parameters like .*: params.* was float32.*, it is None"),
        (
            lambda x, s, a: Outcome(x, stepped(x, a), {}),
            r"a state like the one that `init` gave: state.* was None, it is",
        ),
        (lambda x, s, a: Outcome(x, s, {"delta": a.delta}), r"must record numbers, .*'delta' has shape {'"),
        (lambda x, s, a: Outcome(x, s, {"odd": jnp.ones(3)}), r"one per arrival, \(2,\); 'odd' has shape \(3,\)"),
        (lambda x, s, a: Outcome(x, s, {}, None, a.delta), r"`client_params` where its `needs` have `client_models`"),
        (lambda x, s, a: Outcome(x, s, {"odd": "text"}), r"must record numbers, .*'odd' is 'text'"),
        (lambda x, s, a: Outcome(x, s, {}, a.local_steps), "`next_steps` if its `needs` say that it replies, and only"),
    ],
)
def test_a_wrong_outcome_of_update_raises(update: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"`update` of the server mine .*{words}"):
        run(update)


@pytest.mark.slow
def test_an_answer_that_is_promised_is_needed() -> None:
    replies = Needs(replies=True)
    with pytest.raises(ValueError, match="mine must return `next_steps`"):
        run(lambda x, s, a: Outcome(x, s, {}), replies)
    with pytest.raises(ValueError, match="`next_steps` as whole numbers, they are float32"):
        run(lambda x, s, a: Outcome(x, s, {}, 1.5 * a.local_steps), replies)
    with pytest.raises(ValueError, match=r"`next_steps` of shape \(2,\), it has shape \(\)"):
        run(lambda x, s, a: Outcome(x, s, {}, a.step), replies)
    with pytest.raises(ValueError, match=r"at server step 0 with 0 local steps for client \d; expected 1 or more"):
        run(lambda x, s, a: Outcome(x, s, {}, 0 * a.local_steps), replies)


def test_a_field_that_is_not_needed_is_noted() -> None:
    with pytest.raises(TypeError) as caught:
        run(lambda x, s, a: Outcome(x, s, {"a": a.base["w"]}))
    assert not any("is None" in note for note in caught.value.__notes__)  # read by another function

    class mine(Server):
        def update(self, params: Any, state: Any, arrivals: Any) -> Any:
            return Outcome(jax.tree.map(jnp.add, params, arrivals.base["w"]), state)

    with pytest.raises(TypeError) as caught:
        afl.Simulation(DATA, afl.models.logistic(10), CLIENT, mine(), CLOCK).run(2)
    assert any("`Arrivals.base` is None; write needs = Needs(base=True)" in note for note in caught.value.__notes__)


def test_numbers_of_python_in_a_first_state_are_arrays() -> None:
    class counting(Server):
        def init(self, params: Any, samples: Any) -> Any:
            return {"steps": 0, "sum": 0.0, "kept": params}

    state = first_state(counting(), {"w": np.ones(2, np.float32)}, jnp.ones(3))
    kinds = {"steps": "int32[]", "sum": "float32[]", "kept": {"w": "float32[2]"}}
    assert jax.tree.map(lambda leaf: f"{leaf.dtype}{[*leaf.shape]}", state) == kinds


@pytest.mark.parametrize(
    ("weigh", "returned"),
    [
        (lambda a: 0.5, "0.5"),
        (lambda a: None, "None"),
        (lambda a: jnp.float32(0.5), r"float32\[\]"),
        (lambda a: a.loss[:, None], r"float32\[2, 1\]"),
        (lambda a: a.mask, r"bool\[2\]"),
    ],
)
def test_weights_are_one_number_for_each_arrival(weigh: Any, returned: str) -> None:
    class mine(OptaxServer):
        def weigh(self, arrivals: Any) -> Any:
            return weigh(arrivals)

        def optimizer_of(self, rate: Any) -> Any:
            return optax.sgd(rate)

    arrivals = Arrivals(*(jnp.ones(2, bool), *[jnp.zeros(2)] * 3, {"w": jnp.ones((2, 3))}, None, *[jnp.ones(2)] * 6))
    params = {"w": jnp.zeros(3)}
    state = mine().init(params, jnp.ones(3))
    with pytest.raises(ValueError, match=rf"`weigh` of the server mine must .*float\[2\]; it returned {returned}"):
        jax.eval_shape(lambda arrivals: mine().update(params, state, arrivals), arrivals)


def test_a_counter_that_changes_while_update_is_traced_is_warned_of() -> None:
    """It counts traces, not server steps."""
    counter, log, kept = {"steps": 0}, [0], {"table": jnp.ones(2)}

    class mine(Server):
        def update(self, params: Any, state: Any, arrivals: Any) -> Any:
            counter["steps"] += 1
            log.append(1)
            kept["other"] = jnp.ones(3)
            return Outcome(params, state)

    arrivals = Arrivals(*(jnp.ones(2, bool), *[jnp.zeros(2)] * 3, {"w": jnp.ones((2, 3))}, None, *[jnp.ones(2)] * 6))
    with pytest.warns(
        UserWarning, match=r"server mine changes counter\['steps'\] of mine.update from 0 to 1"
    ) as caught:
        outcome_of(mine(), {"w": jnp.zeros(3)}, (), arrivals)
    assert len(caught) == 1


def test_an_optimiser_is_one_of_optax() -> None:
    class mine(OptaxServer):
        def optimizer_of(self, rate: Any) -> Any:
            return optax.sgd

    with pytest.raises(ValueError, match="`optimizer_of` of the server mine must return an optimiser of Optax"):
        mine().init({"w": jnp.zeros(3)}, jnp.ones(3))


def test_an_exception_in_update_notes_the_server() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run(lambda x, s, a: Outcome(x, s, {"a": 1 / 0}))
    assert any("raised in `update` of the server mine" in note for note in caught.value.__notes__)


@pytest.mark.parametrize(
    "use", [lambda n: n.max() > 1 or None, lambda n: float(n[0]), lambda n: np.asarray(n).max(), lambda n: [0, 1][n[0]]]
)
def test_a_number_that_is_known_later_is_answered_with_what_to_write(use: Any) -> None:
    with pytest.raises(ValueError, match=r"server mine needs a number .*, line \d+: `.*Write jnp.where\(condition"):
        run(lambda x, s, a: Outcome(x, s, {"a": use(a.staleness)}))
