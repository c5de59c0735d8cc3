"""Random valid combinations of server, clock and options: finite, compiled once, repeatable."""

from __future__ import annotations

from typing import Any

import numpy as np
import optax
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxafl import server
from jaxafl.client import Client
from jaxafl.clock import (
    bernoulli,
    constant,
    exponential,
    free_running,
    interrupting,
    lognormal,
    sampled,
    semi_async,
    stale_rounds,
    suspension,
    synchronous,
    uniform,
)
from jaxafl.simulation import Simulation
from tests.problems import quadratic

CLIENTS, STEPS = 6, 20

number = st.floats(0.01, 0.5)
decay = st.floats(0.0, 0.95)
runs = st.sampled_from(
    [constant(1.0), uniform(1, 5), exponential(2.0), lognormal(0.0, 1.0), uniform(1, 2, per="client") + suspension(0.2)]
)
step_times = st.sampled_from(
    [
        exponential(0.5, per="step"),
        uniform(0.2, 2, per="client") * constant(1.0, per="step"),
        constant(0.3) + uniform(0.1, 0.9, per="step"),
    ]
)
weighting = st.sampled_from(["none", "polynomial"])
correction = st.sampled_from(["none", "authors", "optax"])

fedavg = st.builds(server.fedavg, number, st.sampled_from(["samples", "uniform"]))
fedbuff = st.builds(server.fedbuff, number, weighting, st.one_of(st.none(), decay), st.sampled_from(["mean", "sum"]))
fadas = st.builds(
    server.fadas, number, decay, decay, st.sampled_from([1e-8, 1e-3]), correction,
    st.sampled_from([None, "eq4", "eq77"]), st.floats(0, 3),
)  # fmt: skip
fedasync = st.builds(
    server.fedasync, number, st.sampled_from(["constant", "polynomial", "hinge"]), st.floats(0, 2), st.floats(0, 4),
    st.sampled_from(["model", "delta"]),
)  # fmt: skip
ca2fl = st.builds(server.ca2fl, number)
adaptive = st.one_of(
    st.builds(server.fedadagrad, number, decay),
    st.builds(server.fedadam, number, decay, decay),
    st.builds(server.fedyogi, number, decay, decay),
    st.builds(server.fedams, number, decay, decay, bias_correction=correction, max_init=st.sampled_from([0.0, 1e-3])),
)
asyncfeded = st.builds(
    server.asyncfeded, base_rate=number, eps=st.floats(0.5, 2), target_staleness=st.floats(0, 3), kappa=st.floats(0, 1)
)
remembering = st.one_of(st.just(server.area()), st.builds(server.port, number, number, number))
gradients = {make: st.builds(make, number) for make in (server.audg, server.psurdg, server.asysg)}

anything = st.one_of(
    st.builds(
        Client, st.just(optax.sgd), learning_rate=number, momentum=decay, steps=st.integers(1, 4),
        batch_size=st.sampled_from([None, 2, 5]), proximal=st.sampled_from([None, 0.1]),
    ),
    st.builds(
        Client, st.just(optax.adam), learning_rate=number, epochs=st.integers(1, 3),
        batch_size=st.sampled_from([None, 2]), patience=st.sampled_from([None, 1]),
    ),
)  # fmt: skip
plain = st.builds(
    Client, st.just(optax.sgd), learning_rate=number, steps=st.integers(1, 4), batch_size=st.sampled_from([None, 2])
)
gradient = st.just(Client(optax.sgd, learning_rate=1.0, steps=1, batch_size=None))


def everyone(buffer: st.SearchStrategy[int]) -> st.SearchStrategy[Any]:
    return st.builds(free_running, concurrency=st.just(CLIENTS), buffer=buffer, durations=runs)


def rounds(stale: st.SearchStrategy[int]) -> st.SearchStrategy[Any]:
    return st.builds(stale_rounds, participants=st.integers(1, 4), max_staleness=stale, durations=runs)


ROUNDS = st.one_of(
    st.builds(synchronous, cohort=st.integers(1, CLIENTS), durations=runs),
    st.builds(synchronous, cohort=st.integers(1, 8), replacement=st.just(True), durations=runs),
)
FREE = st.builds(
    free_running, concurrency=st.integers(1, CLIENTS), buffer=st.integers(1, 4), durations=runs,
    before_step=st.booleans(),
)  # fmt: skip
LOSSY = st.builds(bernoulli, st.floats(0.1, 1), st.floats(0.1, 1))
INTERRUPTING = st.builds(
    interrupting, period=st.floats(0.5, 3), contacted=st.integers(1, CLIENTS), durations=step_times
)
SAMPLED = st.builds(
    sampled, drawn=st.integers(1, 5), durations=runs, receive_buffer=st.sampled_from(["keep", "consume"]),
    send_buffer=st.sampled_from(["overwrite", "hold"]),
)  # fmt: skip
SEMI_ASYNC = st.builds(semi_async, fraction=st.floats(0.1, 1), lag=st.integers(0, 4), durations=runs)

combinations = st.one_of(
    st.tuples(st.one_of(fedavg, fedbuff, fadas, ca2fl, adaptive), ROUNDS, anything),
    st.tuples(st.one_of(fedasync, fedbuff, fadas, ca2fl), FREE, anything),
    st.tuples(remembering, st.one_of(ROUNDS, FREE), anything),
    st.tuples(st.builds(server.mifa, number), st.one_of(ROUNDS, FREE, LOSSY), anything),
    st.tuples(st.builds(server.fedstale, number, decay, st.floats(0.2, 1)), st.one_of(ROUNDS, LOSSY), anything),
    st.tuples(st.builds(server.fednova, number), ROUNDS, plain),
    st.tuples(
        st.one_of(
            st.builds(server.ia2sgd, number), st.builds(server.ace, number), st.builds(server.aced, number, number)
        ),
        everyone(st.integers(1, 4)),
        anything,
    ),
    st.tuples(
        st.one_of(
            st.builds(server.delay_adaptive, number, st.sampled_from(["ratio", "drop"])),
            st.builds(server.fedfa, st.integers(1, 4)),
        ),
        everyone(st.just(1)),
        anything,
    ),
    st.tuples(asyncfeded, everyone(st.just(1)), plain),
    st.tuples(gradients[server.asysg], FREE, gradient),
    st.tuples(st.builds(server.defedavg_iid, number), everyone(st.integers(1, CLIENTS)), anything),
    st.tuples(st.one_of(fedavg, fedbuff, fadas), LOSSY, anything),
    st.tuples(st.one_of(gradients[server.audg], gradients[server.psurdg]), LOSSY, gradient),
    st.tuples(st.builds(server.defedavg_niid, number), SAMPLED, anything),
    st.tuples(
        st.one_of(
            st.builds(server.favano, st.sampled_from(["deterministic", "stochastic"])),
            st.builds(server.quafl, st.booleans()),
        ),
        INTERRUPTING,
        plain,
    ),
    st.tuples(st.one_of(st.builds(server.afl, st.floats(0, 1)), fedasync, fedbuff, fadas), rounds(st.integers(0, 3)),
              anything),
    st.tuples(st.just(server.afl(broadcast=False)), rounds(st.just(0)), anything),
    st.tuples(st.just(server.safa()), SEMI_ASYNC, anything),
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(combination=combinations)
def test_random_combinations_are_finite_and_repeatable(combination: tuple[Any, Any, Any]) -> None:
    """Twenty steps are finite, and the same seed gives the same bits without compilation."""
    the_server, clock, client = combination
    problem = quadratic(CLIENTS)
    simulation = Simulation(problem.data, problem.model, client, the_server, clock)
    first, again = (simulation.run(STEPS, eval_every=STEPS, seed=1) for _ in range(2))
    assert first.attrs["failed_step"] == -1 and again.attrs["compile_seconds"] == 0
    np.testing.assert_array_equal(first.loss, again.loss)
    arrived = first.client_id.values >= 0
    assert np.isfinite(first.loss).all() and np.isfinite(first.time).all()
    assert np.isfinite(first.delta_norm.values[arrived]).all() and (first.staleness.values[arrived] >= 0).all()
