"""Which server runs on which clock, and what servers refuse."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxafl import clock as c
from jaxafl import server
from jaxafl.client import Client
from jaxafl.client.correction import storm
from jaxafl.server import Needs, Outcome, Server
from jaxafl.simulation import Simulation
from tests.problems import GD, quadratic

CLIENTS = quadratic().num_clients
PLAIN = Client(optax.sgd, learning_rate=0.1, steps=3, batch_size=None)
GRADIENT = Client(optax.sgd, learning_rate=1.0, steps=1, batch_size=None)

CONTRACTS = {"Arrivals", "Delivery", "Needs", "OptaxServer", "Outcome", "Rows", "Server", "afl_rate"}
SHIPPED = {name for name in server.__all__ if isinstance(getattr(server, name), type)} - CONTRACTS
SERVERS: dict[str, Any] = {name: getattr(server, name)() for name in sorted(SHIPPED - {"fedopt", "fedstale"})}
SERVERS |= {"fedopt": server.fedopt(optax.adam, 0.1), "fedstale": server.fedstale(participation=0.5)}
CLOCKS: dict[str, Any] = {
    "synchronous": c.synchronous(cohort=3, durations=c.constant(1)),
    "free_running": c.free_running(concurrency=CLIENTS, durations=c.constant(1)),
    "free_running, buffer": c.free_running(concurrency=CLIENTS, buffer=3, durations=c.constant(1)),
    "bernoulli": c.bernoulli(0.5, 0.5),
    "sampled": c.sampled(drawn=3, durations=c.constant(1)),
    "interrupting": c.interrupting(period=1.0, contacted=2, durations=c.constant(0.3, per="step")),
    "stale_rounds": c.stale_rounds(participants=3, max_staleness=2, durations=c.constant(1)),
    "semi_async": c.semi_async(fraction=0.5, lag=2, durations=c.constant(1)),
    "harmonic": c.harmonic(durations=c.constant(1)),
    "every_buffer": c.every_buffer(durations=c.constant(1)),
    "ringleader": c.ringleader(durations=c.constant(1)),
    "rounds_until_all": c.rounds_until_all(durations=c.constant(1)),
    "warm_up": c.warm_up(c.free_running(concurrency=CLIENTS, durations=c.constant(1))),
    "compass": c.compass(durations=c.constant(1)),
    "routed": c.routed(tasks=3, durations=c.constant(1)),
    "tiers": c.tiers(regions=np.arange(CLIENTS) % 2, durations=c.constant(1)),
    "regional_rounds": c.regional_rounds(regions=np.arange(CLIENTS) % 2, durations=c.constant(1)),
}
BUFFERED = {"fedasync", "fedbuff", "flexlora", "fedopt", "fadas", "ca2fl", "asysg", "defedavg_iid"}
BUFFERED |= {"mifa", "ia2sgd", "ace", "aced", "area", "port", "malenia", "fedcompass", "basgd"}
TABLE: dict[str, set[str]] = {
    "synchronous": {"fedavg", "fedadagrad", "fedadam", "fedyogi", "fedams", "fedbuff", "fedopt", "fadas", "ca2fl"}
    | {"fednova", "flexlora", "mifa", "fedstale", "area", "port"},
    "free_running": BUFFERED - {"basgd"}
    | {"asyncfeded", "delay_adaptive", "delayed_nesterov", "fedfa", "kardam", "picky_sgd", "zeno", "mu2"},
    "free_running, buffer": BUFFERED,
    "bernoulli": {"audg", "psurdg", "fedavg", "fedbuff", "fedopt", "fadas", "mifa", "fedstale"},
    "sampled": {"defedavg_niid"},
    "interrupting": {"quafl", "favano"},
    "stale_rounds": {"afl", "flexlora", "fedasync", "fedbuff", "fedopt", "fadas"},
    "semi_async": {"safa"},
    "harmonic": BUFFERED,
    "every_buffer": BUFFERED,
    "ringleader": {"ringleader"},
    "rounds_until_all": {"throttle"},
    "warm_up": BUFFERED,
    "compass": BUFFERED,
    "routed": {"routed_sgd", "asysg"},
    "tiers": {"halos"},
    "regional_rounds": {"fedat", "hierfavg"},
}


GRADIENTS = {"asysg", "audg", "psurdg"}


def simulation(name: str, clock: Any, **changes: Any) -> Simulation:
    """A server with the local training that it takes."""
    problem = quadratic()
    own = {"fednova": PLAIN, "mu2": dataclasses.replace(GRADIENT, correction=storm())}
    local = changes.pop("client", GRADIENT if name in GRADIENTS else own.get(name, GD))
    data = problem.data.with_validation(0.4) if name == "zeno" else problem.data
    return Simulation(data, problem.model, local, changes.pop("server", SERVERS[name]), clock)


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("name", SERVERS)
def test_which_server_runs_on_which_clock(name: str, clock: str) -> None:
    built = simulation(name, CLOCKS[clock])
    if name in TABLE[clock]:
        built.check()
        return
    with pytest.raises(ValueError) as raised:
        built.check()
    message = str(raised.value)
    assert name in message and CLOCKS[clock].name in message
    assert any(other.split(",")[0] in message for other, servers in TABLE.items() if name in servers)


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_names_the_clocks_that_it_fits(name: str) -> None:
    expected = {clock.split(",")[0] for clock, servers in TABLE.items() if name in servers}
    assert SERVERS[name].clocks == type(SERVERS[name]).clocks == expected


def test_every_server_has_its_row() -> None:
    assert set().union(*TABLE.values()) == SHIPPED


def test_a_trace_fits_where_its_protocol_does() -> None:
    clock = c.trace(CLOCKS["bernoulli"], uploads=np.ones((4, CLIENTS), bool))
    simulation("audg", clock).check()
    with pytest.raises(ValueError, match="audg does not run on the clock sampled"):
        simulation("audg", c.trace(CLOCKS["sampled"], sets=np.zeros((4, 3), int))).check()


def with_client(name: str, clock: str, **options: Any) -> Simulation:
    options = {"learning_rate": 1.0, "steps": 1, "batch_size": None} | options
    return simulation(name, CLOCKS[clock], client=Client(options.pop("optimizer", optax.sgd), **options))


ADAM, PROXIMAL, MOMENTUM = {"optimizer": optax.adam}, {"proximal": 0.1}, {"momentum": 0.9}
AT_NIGHT = c.free_running(concurrency=CLIENTS, hours=c.available(22, 6), durations=c.constant(1))
AT_STEPS = c.free_running(concurrency=CLIENTS, dispatch="step", durations=c.constant(1))
# server, clock, options of the client, what the message names
CLIENTS_REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    ("asysg", "free_running, buffer", {"steps": 2}, "one gradient"),
    ("asysg", "free_running, buffer", {"learning_rate": 0.1}, r"learning_rate=1\.0"),
    *(("asysg", "free_running, buffer", one, "one gradient") for one in (MOMENTUM, ADAM, {"rate_decay_per_run": 0.9})),
    ("audg", "bernoulli", {"steps": None, "epochs": 1, "rate_schedule": server.afl_rate(0.1)}, "one gradient"),
    ("audg", "bernoulli", {"batch_size": 2}, "full gradients"),
    ("psurdg", "bernoulli", {"batch_size": 2}, "full gradients"),
    *(("fednova", "synchronous", one, "plain SGD") for one in (MOMENTUM, ADAM, PROXIMAL)),
    ("fednova", "synchronous", {"learning_rate": optax.cosine_decay_schedule(0.1, 3)}, "plain SGD"),
]


@pytest.mark.parametrize(("name", "clock", "options", "words"), CLIENTS_REFUSED)
def test_local_training_that_a_server_does_not_take(name: str, clock: str, options: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"{name}.*{words}"):
        with_client(name, clock, **options).check()


# server, clock, the option that the message names
REFUSED: list[tuple[Any, Any, str]] = [
    *((SERVERS[name], "free_running, buffer", "buffer=1") for name in ("asyncfeded", "fedfa", "delay_adaptive")),
    (server.asyncfeded(max_steps=2), "free_running", "max_steps=2"),
    (server.fedfa(0), "free_running", "window"),
    (server.delay_adaptive(rule="koloskova"), "free_running", "smoothness"),
    (server.delay_adaptive(smoothness=2.0), "free_running", "smoothness"),
    (server.ace(), c.free_running(concurrency=4, durations=c.constant(1)), "concurrency"),
    (server.aced(), AT_STEPS, "dispatch"),
    (server.ace(), c.free_running(rate=0.1, durations=c.constant(1)), "rate"),
    (server.ia2sgd(), AT_NIGHT, "hours"),
    (server.aced(max_age=-1), "free_running", "max_age"),
    (server.fedstale(), "bernoulli", "participation"),
    (server.fedstale(participation=0.5, estimate=True), "synchronous", "participation"),
    (server.fedstale(), c.synchronous(cohort=3, durations=c.constant(1), lost=0.5), "participation"),
    (server.fedstale(), c.warm_up(CLOCKS["synchronous"]), "participation"),
    (server.fedstale(participation=np.full(4, 0.5)), "synchronous", "participation"),
    (server.fedstale(memory=1.5), "synchronous", "memory"),
    (server.defedavg_iid(), c.free_running(concurrency=4, buffer=2, durations=c.constant(1)), "concurrency"),
    (server.fedadam(eps=0.0), "synchronous", "eps"),
    (server.fedams(max_init=-1), "synchronous", "max_init"),
    (server.fedams(bias_correction="some"), "synchronous", "bias_correction"),
    (server.ca2fl(float("nan")), "synchronous", "learning_rate"),
    (server.halos(activation=0.6), "tiers", "activation"),
    (server.halos(regional_activation=0.1), "tiers", "regional_activation"),
    (server.halos(alpha=1.1), "tiers", "alpha"),
    (server.favano("mean"), "interrupting", "deterministic"),
    (server.favano(normaliser=np.ones(4)), "interrupting", "normaliser"),
    (server.favano(normaliser=np.zeros(CLIENTS)), "interrupting", "normaliser"),
    (server.fedams(), c.synchronous(cohort=7, durations=c.constant(1)), "cohort"),
]


@pytest.mark.parametrize(("built", "clock", "option"), REFUSED)
def test_what_a_server_refuses(built: Any, clock: Any, option: str) -> None:
    with pytest.raises(ValueError, match=option):
        simulation(built.name, CLOCKS[clock] if isinstance(clock, str) else clock, server=built).check()


def test_a_gradient_may_be_one_epoch_of_the_full_batch() -> None:
    client = dataclasses.replace(GRADIENT, steps=None, epochs=1)
    simulation("audg", CLOCKS["bernoulli"], client=client).check()


def test_quafl_scales_a_rate_that_is_a_number() -> None:
    scheduled = Client(optax.sgd, learning_rate=optax.constant_schedule(0.1), steps=2, batch_size=None)
    simulation("quafl", CLOCKS["interrupting"], client=scheduled).check()
    with pytest.raises(ValueError, match="scale_local_rate"):
        simulation("quafl", CLOCKS["interrupting"], client=scheduled, server=server.quafl(True)).check()


def test_favano_takes_a_number_of_steps_per_client_but_not_per_run() -> None:
    client = Client(optax.sgd, learning_rate=0.1, steps=np.arange(1, CLIENTS + 1), batch_size=None)
    simulation("favano", CLOCKS["interrupting"], client=client).check()
    per_run = Client(optax.sgd, learning_rate=0.1, steps=np.full((CLIENTS, 4), 2), batch_size=None)
    with pytest.raises(ValueError, match="dimensions"):
        simulation("favano", CLOCKS["interrupting"], client=per_run).run(2)


class own_models(Server):
    needs = Needs(client_models=True)

    def update(self, params: Any, state: Any, arrivals: Any) -> Outcome:
        own = jax.tree.map(jnp.add, arrivals.base, arrivals.delta)
        return Outcome(jax.tree.map(lambda x, y: (x + y.mean(0)) / 2, params, own), state, client_params=own)


@pytest.mark.parametrize(
    ("clock", "options", "fits"),
    [
        (c.free_running, dict(concurrency=2, buffer=2), False),
        (c.free_running, dict(concurrency=2, buffer=2, dispatch="step"), True),
        (c.free_running, dict(concurrency=2), True),
        (c.free_running, dict(concurrency=2, closes=c.after(2), begins=c.at_step()), True),
        (c.free_running, dict(concurrency=2, before_step=True), False),
        (c.free_running, dict(concurrency=2, begins=c.before_step()), False),
        (c.every_buffer, {}, False),
        (c.synchronous, {}, True),
    ],
)
def test_clients_with_models_of_their_own_wait_for_the_server_step(clock: Any, options: Any, fits: bool) -> None:
    sim = simulation("fedbuff", clock(durations=c.uniform(1, 5), **options), server=own_models())
    if fits:
        sim.check()
    else:
        with pytest.raises(ValueError, match=r"own_models keeps a model of every client.*buffer=1 or dispatch='step'"):
            sim.check()
