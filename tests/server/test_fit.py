"""Which server runs on which clock, and what servers refuse."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxafl import server
from jaxafl.client import Client
from jaxafl.client.correction import storm
from jaxafl.clock import (
    available,
    bernoulli,
    compass,
    constant,
    every_buffer,
    free_running,
    harmonic,
    interrupting,
    ringleader,
    rounds_until_all,
    routed,
    sampled,
    semi_async,
    stale_rounds,
    synchronous,
    trace,
    uniform,
    warm_up,
)
from jaxafl.server import Needs, Outcome, Server
from jaxafl.simulation import Simulation
from tests.problems import GD, quadratic

CLIENTS = quadratic().num_clients
PLAIN = Client(optax.sgd, learning_rate=0.1, steps=3, batch_size=None)
GRADIENT = Client(optax.sgd, learning_rate=1.0, steps=1, batch_size=None)

SERVERS: dict[str, Any] = {
    "fedavg": server.fedavg(),
    "fedadagrad": server.fedadagrad(),
    "fedadam": server.fedadam(),
    "fedyogi": server.fedyogi(),
    "fedams": server.fedams(),
    "fedasync": server.fedasync(),
    "asyncfeded": server.asyncfeded(),
    "asysg": server.asysg(),
    "audg": server.audg(),
    "psurdg": server.psurdg(),
    "fedbuff": server.fedbuff(),
    "fedopt": server.fedopt(optax.adam, 0.1),
    "fadas": server.fadas(),
    "ca2fl": server.ca2fl(),
    "defedavg_iid": server.defedavg_iid(),
    "defedavg_niid": server.defedavg_niid(),
    "afl": server.afl(),
    "favano": server.favano(),
    "quafl": server.quafl(),
    "safa": server.safa(),
    "fednova": server.fednova(),
    "delay_adaptive": server.delay_adaptive(),
    "mifa": server.mifa(),
    "ia2sgd": server.ia2sgd(),
    "ace": server.ace(),
    "aced": server.aced(),
    "fedstale": server.fedstale(participation=0.5),
    "area": server.area(),
    "fedfa": server.fedfa(),
    "port": server.port(),
    "malenia": server.malenia(),
    "basgd": server.basgd(),
    "kardam": server.kardam(),
    "picky_sgd": server.picky_sgd(),
    "zeno": server.zeno(),
    "mu2": server.mu2(),
    "ringleader": server.ringleader(),
    "throttle": server.throttle(),
    "fedcompass": server.fedcompass(),
    "routed_sgd": server.routed_sgd(),
}
CLOCKS: dict[str, Any] = {
    "synchronous": synchronous(cohort=3, durations=constant(1)),
    "free_running": free_running(concurrency=CLIENTS, durations=constant(1)),
    "free_running, buffer": free_running(concurrency=CLIENTS, buffer=3, durations=constant(1)),
    "bernoulli": bernoulli(0.5, 0.5),
    "sampled": sampled(drawn=3, durations=constant(1)),
    "interrupting": interrupting(period=1.0, contacted=2, durations=constant(0.3, per="step")),
    "stale_rounds": stale_rounds(participants=3, max_staleness=2, durations=constant(1)),
    "semi_async": semi_async(fraction=0.5, lag=2, durations=constant(1)),
    "harmonic": harmonic(durations=constant(1)),
    "every_buffer": every_buffer(durations=constant(1)),
    "ringleader": ringleader(durations=constant(1)),
    "rounds_until_all": rounds_until_all(durations=constant(1)),
    "warm_up": warm_up(free_running(concurrency=CLIENTS, durations=constant(1))),
    "compass": compass(durations=constant(1)),
    "routed": routed(tasks=3, durations=constant(1)),
}
BUFFERED = {"fedasync", "fedbuff", "fedopt", "fadas", "ca2fl", "asysg", "defedavg_iid"}
BUFFERED |= {"mifa", "ia2sgd", "ace", "aced", "area", "port", "malenia", "fedcompass", "basgd"}
TABLE: dict[str, set[str]] = {
    "synchronous": {"fedavg", "fedadagrad", "fedadam", "fedyogi", "fedams", "fedbuff", "fedopt", "fadas", "ca2fl"}
    | {"fednova", "mifa", "fedstale", "area", "port"},
    "free_running": BUFFERED - {"basgd"}
    | {"asyncfeded", "delay_adaptive", "fedfa", "kardam", "picky_sgd", "zeno", "mu2"},
    "free_running, buffer": BUFFERED,
    "bernoulli": {"audg", "psurdg", "fedavg", "fedbuff", "fedopt", "fadas", "mifa", "fedstale"},
    "sampled": {"defedavg_niid"},
    "interrupting": {"quafl", "favano"},
    "stale_rounds": {"afl", "fedasync", "fedbuff", "fedopt", "fadas"},
    "semi_async": {"safa"},
    "harmonic": BUFFERED,
    "every_buffer": BUFFERED,
    "ringleader": {"ringleader"},
    "rounds_until_all": {"throttle"},
    "warm_up": BUFFERED,
    "compass": BUFFERED,
    "routed": {"routed_sgd", "asysg"},
}


class in_pairs(rounds_until_all):
    """Two arrivals per server step."""

    def capacity(self, num_clients: int) -> int:
        return 2


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
    public = {make for make in server.__all__ if make in SERVERS or callable(getattr(server, make))}
    assert set(SERVERS) <= public
    assert {name for names in TABLE.values() for name in names} == set(SERVERS)
    assert {built.name for built in SERVERS.values()} == set(SERVERS)


def test_a_trace_fits_where_its_protocol_does() -> None:
    clock = trace(CLOCKS["bernoulli"], uploads=np.ones((4, CLIENTS), bool))
    simulation("audg", clock).check()
    with pytest.raises(ValueError, match="audg does not run on the clock sampled"):
        simulation("audg", trace(CLOCKS["sampled"], sets=np.zeros((4, 3), int))).check()


def with_client(name: str, clock: str, **options: Any) -> Simulation:
    options = {"learning_rate": 1.0, "steps": 1, "batch_size": None} | options
    return simulation(name, CLOCKS[clock], client=Client(options.pop("optimizer", optax.sgd), **options))


def with_server(name: str, clock: str, built: Any) -> Simulation:
    return simulation(name, CLOCKS[clock], server=built)


BAD: dict[str, tuple[Any, str]] = {
    f"{name}: {what}": (
        lambda name=name, clock=clock, options=options: with_client(name, clock, **options),
        f"{name}.*{message}",
    )
    for name, clock in (("audg", "bernoulli"), ("psurdg", "bernoulli"), ("asysg", "free_running, buffer"))
    for what, options, message in (
        ("several steps", {"steps": 2}, "one gradient"),
        ("a local rate", {"learning_rate": 0.1}, r"learning_rate=1\.0"),
        ("momentum", {"momentum": 0.9}, "one gradient"),
        ("Adam", {"optimizer": optax.adam}, "one gradient"),
        ("a proximal term", {"proximal": 0.1}, "one gradient"),
        ("a decaying rate", {"rate_decay_per_run": 0.9}, "one gradient"),
        ("a rate schedule", {"steps": None, "epochs": 1, "rate_schedule": server.afl_rate(0.1)}, "one gradient"),
    )
} | {
    "fednova with momentum": (lambda: with_client("fednova", "synchronous", momentum=0.9), "is not plain SGD"),
    "fednova with a proximal term": (lambda: with_client("fednova", "synchronous", proximal=0.1), "is not plain SGD"),
    "fednova with a schedule as its rate": (
        lambda: with_client("fednova", "synchronous", learning_rate=optax.cosine_decay_schedule(0.1, 3)),
        "is not plain SGD",
    ),
    "fednova with Adam": (lambda: with_client("fednova", "synchronous", optimizer=optax.adam), "is not plain SGD"),
    "audg on mini-batches": (lambda: with_client("audg", "bernoulli", batch_size=2), "audg takes full gradients"),
    "psurdg on mini-batches": (lambda: with_client("psurdg", "bernoulli", batch_size=2), "psurdg takes full gradients"),
    "audg with a negative rate": (
        lambda: with_server("audg", "bernoulli", server.audg(-1)),
        "audg: learning_rate must be >= 0, got -1",
    ),
    "asyncfeded on a buffer": (
        lambda: simulation("asyncfeded", CLOCKS["free_running, buffer"]),
        "asyncfeded.*buffer=1",
    ),
    "asyncfeded beyond its most steps": (
        lambda: with_server("asyncfeded", "free_running", server.asyncfeded(max_steps=2)),
        "steps=3, more than max_steps=2",
    ),
    "fedfa on a buffer": (lambda: simulation("fedfa", CLOCKS["free_running, buffer"]), "fedfa.*buffer=1"),
    "fedfa without a window": (
        lambda: with_server("fedfa", "free_running", server.fedfa(0)),
        "fedfa: window must be at least 1, got 0",
    ),
    "delay_adaptive on a buffer": (
        lambda: simulation("delay_adaptive", CLOCKS["free_running, buffer"]),
        "delay_adaptive.*buffer=1",
    ),
    "delay_adaptive without smoothness": (
        lambda: with_server("delay_adaptive", "free_running", server.delay_adaptive(rule="koloskova")),
        "rule='koloskova' without smoothness.*Give both, or neither",
    ),
    "delay_adaptive with a smoothness without use": (
        lambda: with_server("delay_adaptive", "free_running", server.delay_adaptive(smoothness=2.0)),
        "rule='ratio' with smoothness=2.0.*Give both, or neither",
    ),
    "ace with idle clients": (
        lambda: simulation("ace", free_running(concurrency=4, durations=constant(1))),
        f"ace: .*concurrency={CLIENTS}",
    ),
    "aced with restarts at steps": (
        lambda: simulation("aced", free_running(concurrency=CLIENTS, dispatch="step", durations=constant(1))),
        "aced: .*dispatch='arrival'",
    ),
    "ace with starts at a rate": (
        lambda: simulation("ace", free_running(rate=0.1, durations=constant(1))),
        "ace: .*starts again at once.*without rate",
    ),
    "ia2sgd at night": (
        lambda: simulation("ia2sgd", free_running(concurrency=CLIENTS, hours=available(22, 6), durations=constant(1))),
        "ia2sgd: .*starts again at once.*without hours",
    ),
    "throttle with pairs of arrivals": (
        lambda: simulation("throttle", in_pairs(durations=constant(1))),
        "throttle steps for every arrival, but the clock in_pairs brings 2 per server step; use rounds_until_all",
    ),
    "aced with a negative age": (
        lambda: with_server("aced", "free_running", server.aced(max_age=-1)),
        "aced: max_age must be >= 0, got -1",
    ),
    "fedstale at unknown participation": (
        lambda: with_server("fedstale", "bernoulli", server.fedstale()),
        "participation=None on the clock bernoulli is unknown.*a number or one per client",
    ),
    "fedstale of two probabilities": (
        lambda: with_server("fedstale", "synchronous", server.fedstale(participation=0.5, estimate=True)),
        "estimate=True and participation are both given",
    ),
    "fedstale with repeated draws": (
        lambda: simulation(
            "fedstale", synchronous(cohort=3, replacement=True, durations=constant(1)), server=server.fedstale()
        ),
        "participation=None on the clock synchronous is unknown",
    ),
    "fedstale with lost uploads": (
        lambda: simulation(
            "fedstale", synchronous(cohort=3, lost=0.5, durations=constant(1)), server=server.fedstale()
        ),
        "participation=None on the clock synchronous is unknown",
    ),
    "fedstale with weighted draws": (
        lambda: simulation(
            "fedstale", synchronous(cohort=3, select="samples", durations=constant(1)), server=server.fedstale()
        ),
        "participation=None on the clock synchronous is unknown",
    ),
    "fedstale after a first step with everyone": (
        lambda: simulation("fedstale", warm_up(CLOCKS["synchronous"]), server=server.fedstale()),
        "participation=None on the clock warm_up is unknown",
    ),
    "fedstale for other clients": (
        lambda: with_server("fedstale", "synchronous", server.fedstale(participation=np.full(4, 0.5))),
        rf"participation must be a number or an array of one number per client \({CLIENTS},\), got shape \(4,\)",
    ),
    "fedstale that remembers more than all": (
        lambda: with_server("fedstale", "synchronous", server.fedstale(memory=1.5)),
        r"fedstale: memory must be in \[0, 1\], got 1.5",
    ),
    "port without a bound": (
        lambda: with_server("port", "free_running, buffer", server.port(staleness_bound=0)),
        "port: staleness_bound must be > 0, got 0",
    ),
    "defedavg_iid with idle clients": (
        lambda: simulation("defedavg_iid", free_running(concurrency=4, buffer=2, durations=constant(1))),
        f"concurrency={CLIENTS}",
    ),
    "fedadam without epsilon": (
        lambda: with_server("fedadam", "synchronous", server.fedadam(eps=0.0)),
        "fedadam: eps must be > 0, got 0",
    ),
    "fedyogi with b2 = 1": (
        lambda: with_server("fedyogi", "synchronous", server.fedyogi(b2=1.0)),
        r"fedyogi: b2 must be in \[0, 1\), got 1",
    ),
    "fedadagrad with a negative rate": (
        lambda: with_server("fedadagrad", "synchronous", server.fedadagrad(-0.1)),
        "fedadagrad: learning_rate must be >= 0",
    ),
    "fedams with a negative floor": (
        lambda: with_server("fedams", "synchronous", server.fedams(max_init=-1)),
        "fedams: max_init must be >= 0, got -1",
    ),
    "fedams with an unknown correction": (
        lambda: with_server("fedams", "synchronous", server.fedams(bias_correction="some")),
        "bias_correction must be one of 'none', 'authors', 'optax', got 'some'",
    ),
    "ca2fl with a NaN rate": (
        lambda: with_server("ca2fl", "synchronous", server.ca2fl(float("nan"))),
        "ca2fl: learning_rate must be a finite number, got nan",
    ),
    "defedavg_niid with a negative rate": (
        lambda: with_server("defedavg_niid", "sampled", server.defedavg_niid(-1)),
        "defedavg_niid: learning_rate must be >= 0, got -1",
    ),
    "favano unknown": (
        lambda: with_server("favano", "interrupting", server.favano("mean")),
        "'deterministic', 'stochastic', got 'mean'",
    ),
    "favano for other clients": (
        lambda: with_server("favano", "interrupting", server.favano(normaliser=np.ones(4))),
        rf"normaliser must be a number or an array of one number per client \({CLIENTS},\), got shape \(4,\)",
    ),
    "favano dividing by zero": (
        lambda: with_server("favano", "interrupting", server.favano(normaliser=np.zeros(CLIENTS))),
        r"normaliser must be > 0, got 0 \(client 0, the first of 6\)",
    ),
    "cohort above the clients": (
        lambda: simulation("fedams", synchronous(cohort=7, durations=constant(1))),
        "cohort=7 is more than the 6 clients",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_a_server_refuses(name: str) -> None:
    make, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        make().check()


def test_a_gradient_may_be_one_epoch_of_the_full_batch() -> None:
    client = dataclasses.replace(GRADIENT, steps=None, epochs=1)
    simulation("audg", CLOCKS["bernoulli"], client=client).check()


def test_quafl_scales_a_rate_that_is_a_number() -> None:
    scheduled = Client(optax.sgd, learning_rate=optax.constant_schedule(0.1), steps=2, batch_size=None)
    simulation("quafl", CLOCKS["interrupting"], client=scheduled).check()
    with pytest.raises(ValueError, match=r"quafl.*scale_local_rate.*learning_rate"):
        simulation("quafl", CLOCKS["interrupting"], client=scheduled, server=server.quafl(True)).run(2)


def test_favano_takes_a_number_of_steps_per_client_but_not_per_run() -> None:
    client = Client(optax.sgd, learning_rate=0.1, steps=np.arange(1, CLIENTS + 1), batch_size=None)
    simulation("favano", CLOCKS["interrupting"], client=client).check()
    per_run = Client(optax.sgd, learning_rate=0.1, steps=np.full((CLIENTS, 4), 2), batch_size=None)
    with pytest.raises(ValueError, match=r"favano.*normaliser"):
        simulation("favano", CLOCKS["interrupting"], client=per_run).run(2)


class own_models(Server):
    needs = Needs(client_models=True)

    def update(self, params: Any, state: Any, arrivals: Any) -> Outcome:
        own = jax.tree.map(jnp.add, arrivals.base, arrivals.delta)
        return Outcome(jax.tree.map(lambda x, y: (x + y.mean(0)) / 2, params, own), state, client_params=own)


@pytest.mark.parametrize(
    ("clock", "options", "fits"),
    [
        (free_running, dict(concurrency=2, buffer=2), False),
        (free_running, dict(concurrency=2, buffer=2, dispatch="step"), True),
        (free_running, dict(concurrency=2), True),
        (free_running, dict(concurrency=2, before_step=True), False),
        (every_buffer, {}, False),
        (synchronous, {}, True),
    ],
)
def test_clients_with_models_of_their_own_wait_for_the_server_step(clock: Any, options: Any, fits: bool) -> None:
    sim = simulation("fedbuff", clock(durations=uniform(1, 5), **options), server=own_models())
    if fits:
        sim.check()
    else:
        with pytest.raises(ValueError, match=r"own_models keeps a model of every client.*buffer=1 or dispatch='step'"):
            sim.check()
