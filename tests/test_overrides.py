"""Classes of one's own with attributes, methods and results of wrong types are refused in words."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxafl as afl
from jaxafl.clock import Clock, Events, Verdict
from jaxafl.options import UserError
from jaxafl.server import Needs, Outcome, Server

DATA = afl.data.synthetic(1, 1, clients=4, max_size=20)
BASES = {
    "server": Server,
    "clock": Events,
    "duration": afl.clock.Duration,
    "attack": afl.attack.Attack,
    "upload": afl.upload.Upload,
    "correction": afl.correction.Correction,
    "aggregate": afl.aggregate.Aggregate,
}


def made(base: str, **members: Any) -> Any:
    return type("mine", (BASES[base],), members)


@pytest.mark.parametrize(
    ("base", "name", "value", "words"),
    [
        ("server", "accepts", "stale", r"accepts must be Delivery\.STALE, another of .*joined by \|; got 'stale'"),
        ("server", "requires", {afl.clock.Delivery.STALE}, "requires must be Delivery"),
        ("server", "buffer", "10", "buffer must be a whole number; got '10'"),
        ("server", "counters", "rejected", "counters must be a tuple of texts"),
        ("server", "meanings", ["a"], "meanings must be a dict"),
        ("server", "references", "a key", "references must be a tuple"),
        (
            "server",
            "prepare",
            lambda self, clock: (self, clock),
            r"prepare\(clock, client, counts, seed\); it takes \(",
        ),
        ("server", "needs", lambda self: Needs(), "needs must be a property"),
        ("server", "update", None, "update must be a method; got None"),
        ("clock", "delivers", "stale", "delivers must be Delivery"),
        ("clock", "takes_all", None, "takes_all must be True or False; got None"),
        ("clock", "arrives", lambda self, rules: None, r"arrives\(rules, event\); it takes \(rules\)"),
        ("duration", "terms", "2", "terms must be a whole number; got '2'"),
        ("duration", "pause", "2", "pause must be a number; got '2'"),
        ("attack", "colludes", "yes", "colludes must be True or False"),
        ("upload", "apply", lambda self, delta: delta, r"apply\(delta, sent\); it takes \(delta\)"),
        ("correction", "downloads", "no", "downloads must be True or False"),
        ("aggregate", "least_arrivals", None, "least_arrivals must be a whole number; got None"),
    ],
)
def test_members_of_another_kind_than_in_the_base_class(base: str, name: str, value: Any, words: str) -> None:
    with pytest.raises(UserError, match=f"the class mine: {name} .*{words}|the class mine: {words}"):
        made(base, **{name: value})


def test_members_of_ones_own_and_more_arguments_are_free() -> None:
    first = made("server", helper=lambda self, a: a, needs=Needs(), init=lambda self, params, samples, more=0: ())
    second = type("second", (first,), {"helper": lambda self: 1, "single": property(lambda self: False)})
    assert second().helper() == 1


def run(**parts: Any) -> Any:
    clock = afl.clock.free_running(concurrency=2, buffer=2, durations=afl.clock.uniform(1, 2))
    usual = {"server": afl.server.fedbuff(), "clock": clock, "client": afl.Client(steps=1, learning_rate=0.1)}
    return afl.Simulation(DATA, afl.models.logistic(10), **(usual | parts)).run(2)


def stepped(self: Any, params: Any, state: Any, arrivals: Any) -> Outcome:
    return Outcome(params, state)


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"needs": "replies"}, r"needs must be jaxafl\.server\.Needs\(\.\.\.\), got 'replies'"),
        ({"prepare": lambda self, clock, client, counts, seed: self}, r"must return the server and the client"),
        ({"prepare": lambda self, clock, client, counts, seed: (client, self)}, r"must return the server and"),
        ({"init": lambda self, params, samples: {"a": "text"}}, "a state is made of arrays and numbers.*got 'text'"),
        ({"applied_rate": lambda self, state: "fast"}, "`applied_rate` of the server mine must return a number or N"),
    ],
)
def test_results_of_methods_of_a_server(members: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        run(server=made("server", update=stepped, **members)())


class every(Clock):
    """Clock of which nothing but its sizes is read."""

    delivers = afl.clock.Delivery.STALE

    def capacity(self, num_clients: int) -> int:
        return 1


@pytest.mark.parametrize(
    ("base", "members", "words"),
    [
        (every, {"capacity": lambda self, num_clients: None}, r"capacity\(num_clients\) must be a whole number, got N"),
        (every, {"in_flight": lambda self, num_clients: 2.5}, r"in_flight\(num_clients\) must be a whole number"),
        (every, {"ring_slots": lambda self, num_clients: 0}, r"ring_slots\(num_clients\) must be at least 1, got 0"),
        (every, {"pause": property(lambda self: "x")}, "pause must be a number, got 'x'"),
        (every, {"prepare": lambda self, counts, size: None}, "`prepare` of a clock must return the clock.*None"),
        (Events, {"choose": lambda self, state, num_clients: jnp.int32(0)}, r"must return \(client, fault code\)"),
        (Events, {"start_version": lambda self, state: state.version}, r"must return \(version, reference\)"),
        (Events, {"client_weights": lambda self, num_clients: np.ones(2)}, r"must return None or an array \[4\]"),
    ],
)
def test_results_of_methods_of_a_clock(base: Any, members: dict[str, Any], words: str) -> None:
    common = {"durations": afl.clock.uniform(1, 2), "arrives": lambda self, rules, event: Verdict(rules, closes=True)}
    common |= {"capacity": lambda self, num_clients: 1, "in_flight": lambda self, num_clients: 2}
    clock = type("mine", (base,), (common if base is Events else {}) | members)()
    with pytest.raises((UserError, TypeError), match=words):
        run(clock=clock, server=afl.server.fedasync())


@pytest.mark.parametrize(
    ("mask", "words"),
    [(None, "it returned None"), ([0, 1], r"it returned \[0, 1\]"), (np.ones(3, bool), r"shape \(3,\)")],
)
def test_the_mask_of_an_attack(mask: Any, words: str) -> None:
    members = {"forge": lambda self, delta, sent: -delta, "mask": lambda self, num_clients, seed: mask}
    with pytest.raises(UserError, match=f"`mask` of the attack mine must return a bool for each of 4.*{words}"):
        run(attack=made("attack", **members)(clients=0.5))


@pytest.mark.parametrize(
    ("served", "words"), [(lambda shared: shared, "next model"), (lambda shared: (shared, None), "None")]
)
def test_what_a_correction_serves(served: Any, words: str) -> None:
    members = {
        "init": lambda self, params: (params, params),
        "gradient": lambda self, gradient, params, row, shared, run: gradient,
        "serve": lambda self, shared, params, messages, arrivals, num_clients: served(shared),
    }
    client = afl.Client(steps=1, learning_rate=0.1, correction=made("correction", **members)())
    with pytest.raises(UserError, match=f"`serve` of the correction mine must return .*{words}"):
        run(client=client)


def test_the_diagnostics_of_an_aggregate() -> None:
    members = {"update": lambda self, deltas, weights, state, arrivals: (afl.server.mean_delta(arrivals), state, None)}
    with pytest.raises(UserError, match="`update` of the aggregate mine must return its diagnostics in a dict"):
        run(server=afl.server.fedbuff(aggregate=made("aggregate", **members)()))
