"""Clients with numbers, epochs, batch sizes and rates of their own, against the slow reference that trains each so."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest

import jaxafl as afl
from jaxafl import server
from jaxafl.clock import bernoulli, free_running, uniform
from jaxafl.device.keys import per_run
from jaxafl.options import UserError
from tests.oracle import server as oracle
from tests.oracle.client import LocalTraining
from tests.problems import assert_same, descent, quadratic, record, reference, simulate
from tests.test_client import SEED, SIZES, STEPS, batch_key, cut, drawn_batches, shuffle
from tests.test_client import check as client_check

RATES = [0.2, 0.05, 0.1, 0.3, 0.15, 0.25]
NUMBERS = {
    "momentum": [0.5, 0.0, 0.9, 0.3, 0.2, 0.6],
    "proximal": [0.0, 0.7, 0.1, 0.2, 0.5, 0.3],
    "weight_decay": [0.1, 0.0, 0.3, 0.2, 0.05, 0.0],
}
BATCHES = [3, 2, 5, 1, 4, 8]
EPOCHS = [2, 3, 1, 2, 4, 1]
own_batches = drawn_batches(BATCHES)


def check(client: afl.Client, training: list[LocalTraining], batches: Any = None, **options: Any) -> Any:
    """The run is that of the reference, whose clients train as `training` says."""
    of_run = lambda arrival: training[arrival.client]  # noqa: E731
    return client_check(client, of_run, batches, local_steps=lambda one: training[one].steps, **options)


@pytest.mark.slow
def test_every_number_may_be_one_per_client() -> None:
    steps = [3, 1, 4, 2, 2, 3]
    client = afl.Client(learning_rate=RATES, **NUMBERS, rate_decay_per_run=RATES, steps=steps, batch_size=None)
    assert repr(client).startswith("Client(learning_rate=a NumPy array of shape (6,) of float64, momentum=a NumPy")
    training = [
        LocalTraining(
            learning_rate=RATES[one],
            run_decay=RATES[one],
            steps=steps[one],
            **{name: column[one] for name, column in NUMBERS.items()},
        )
        for one in range(6)
    ]
    check(client, training)


@pytest.mark.slow
@pytest.mark.parametrize("micro_batch", [None, 2])
def test_batches_have_the_size_of_their_client(micro_batch: int | None) -> None:
    client = afl.Client(learning_rate=RATES, steps=3, batch_size=BATCHES, micro_batch=micro_batch)
    result = check(client, [LocalTraining(learning_rate=rate, steps=3) for rate in RATES], own_batches)
    assert json.loads(result.attrs["client"])["batch_size"] == BATCHES


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"lanes": 4, "chunk": 4}, {"lanes": 4, "chunk": 2}])
def test_epochs_end_with_the_rest_of_the_clients_samples(options: dict[str, int]) -> None:
    def batches(client: int, run: int, local_steps: int) -> list[list[int]]:
        key = per_run(batch_key(), jnp.int32(client), jnp.int32(run))
        made = [cut(shuffle(key, epoch, SIZES[client]), BATCHES[client]) for epoch in range(EPOCHS[client])]
        assert sum(map(len, made)) == local_steps
        return [batch for epoch in made for batch in epoch]

    client = afl.Client(learning_rate=0.2, momentum=0.5, epochs=np.array(EPOCHS), batch_size=np.array(BATCHES))
    steps = [epochs * -(-count // size) for epochs, count, size in zip(EPOCHS, SIZES, BATCHES, strict=True)]
    check(client, [LocalTraining(learning_rate=0.2, momentum=0.5, steps=one) for one in steps], batches, **options)


def simulation(client: afl.Client, mine: Any = None) -> afl.Simulation:
    return descent(client=client, server=mine or server.fedbuff(0.8))


@pytest.mark.parametrize(
    "given",
    [
        lambda table: afl.Client(learning_rate=table, steps=1),
        lambda table: afl.Client(learning_rate=0.1, steps=table),
        lambda table: afl.Client(learning_rate=0.1, steps=1, proximal=table),
        lambda table: afl.clock.constant(table),
        lambda table: free_running(concurrency=1, durations=uniform(1, 2), weights=table),
        lambda table: afl.clock.recorded(pd.DataFrame({"first": table, "second": table})),
    ],
)
def test_a_table_is_one_number_per_client_in_the_order_of_its_index(given: Any) -> None:
    table = pd.Series(["bob"] * 3 + ["ann"] * 2 + ["eve"]).value_counts()
    with pytest.raises(UserError, match=r"'bob', 'ann', 'eve'\], which is not sorted, .*write \w+\.sort_index\(\)"):
        given(table)
    jax.tree.map(np.testing.assert_array_equal, given(table.sort_index()), given(table.sort_index().to_numpy()))


@pytest.mark.slow
def test_numbers_and_arrays_are_swept_on_one_axis() -> None:
    sim = simulation(afl.Client(learning_rate=0.1, steps=2, batch_size=2))
    half = [0.5 * rate for rate in RATES]
    values = [0.1, [0.1] * 6, np.array(RATES), np.array(half)]
    swept = afl.sweep(sim, {"client.learning_rate": values, "seed": [0, 1]}, 4, eval_every=4)
    assert swept["client.learning_rate"].values.tolist() == ["0.1", str([0.1] * 6), str(RATES), str(half)]
    np.testing.assert_array_equal(swept.loss[0], swept.loss[1])
    for place in (2, 3):
        client = afl.Client(learning_rate=values[place], steps=2, batch_size=2)
        single = simulation(client).run(4, eval_every=4, seed=1)
        np.testing.assert_array_equal(swept.loss[place, 1], single.loss)
    sizes = afl.sweep(sim, {"client.batch_size": [2, [2] * 6, BATCHES]}, 4, eval_every=4)
    np.testing.assert_allclose(sizes.loss[0], sizes.loss[1], rtol=1e-6)
    assert sizes.loss[2, -1] != sizes.loss[0, -1]


GRADIENTS: dict[str, Any] = {"learning_rate": 0.2, "steps": 2, "batch_size": None}


@pytest.mark.parametrize(
    "options", [{}, pytest.param({"dispatch": "step", "start_skew": True}, marks=pytest.mark.slow)]
)
def test_a_rate_knows_client_version_server_step_and_time(options: dict[str, Any]) -> None:
    def schedule(moment: Any) -> Any:
        known = 1 + 0.2 * moment.version + 0.05 * moment.started + 0.1 * moment.client
        return 1 / known / (1 + 0.1 * moment.server_step) / (1.0 + moment.step)

    def of_run(arrival: Any) -> LocalTraining:
        known = 1 + 0.2 * arrival.trained_from + 0.05 * arrival.start_time + 0.1 * arrival.client
        rate = 0.3 / known / (1 + 0.1 * (arrival.start_version + arrival.staleness))
        return LocalTraining(learning_rate=rate, steps=3, step_multipliers=(1, 1 / 2, 1 / 3))

    recorded = record(2, 6, STEPS, "ties", concurrency=4, buffer=3, **options)
    client = afl.Client(learning_rate=0.3, steps=3, batch_size=None, rate_schedule=schedule)
    expected = reference(quadratic(), oracle.FedBuff(eta=0.8), recorded.oracle(STEPS), of_run)  # type: ignore[arg-type]
    with jax.enable_x64(True):
        result = simulate(quadratic(), server.fedbuff(0.8, "none"), recorded.clock(), STEPS, client)
    assert_same(result, expected, 1e-9)


@pytest.mark.slow
def test_a_rate_knows_its_run_where_the_server_replies() -> None:
    clock = free_running(concurrency=4, durations=uniform(1, 5))
    norms = [
        simulate(quadratic(), server.asyncfeded(0.8, kappa=0.0), clock, 6, afl.Client(**one, **GRADIENTS)).delta_norm
        for one in ({"rate_schedule": lambda now: 0.5**now.run}, {"run_schedule": lambda run: 0.5**run})
    ]
    np.testing.assert_array_equal(*norms)


@pytest.mark.slow
def test_a_reply_changes_the_steps_of_clients_that_differ() -> None:
    """With κ = 0 the replies leave K, and AsyncFedED is a server step of the reference per arrival."""
    clock = free_running(concurrency=4, durations=uniform(1, 5))
    client = afl.Client(learning_rate=RATES, steps=2, batch_size=BATCHES)
    mine = server.asyncfeded(0.8, eps=1.0, kappa=0.0)
    problem = quadratic(sizes=SIZES)
    result = simulate(problem, mine, clock, 6, client, seed=SEED)
    versions = result.observe_w.values.astype(float)
    for step in range(6):
        who, run = int(result.client_id[step, 0]), int(result.run_index[step, 0])
        start = versions[step - int(result.staleness[step, 0])]
        w = start.copy()
        for batch in own_batches(who, run, 2):
            w -= RATES[who] * problem.clients[who].gradient(w, batch)
        gamma = np.linalg.norm(versions[step] - start) / np.linalg.norm(w - start)
        expected = versions[step] + 0.8 / (gamma + 1) * (w - start)
        np.testing.assert_allclose(versions[step + 1], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"learning_rate": RATES[:5]}, "learning_rate"),
        ({"learning_rate": [RATES]}, "learning_rate"),
        ({"learning_rate": [*RATES[:5], -1.0]}, r"learning_rate.*client 5"),
        ({"learning_rate": [*RATES[:5], np.nan]}, r"learning_rate.*client 5"),
        ({"proximal": RATES[:5]}, "proximal"),
        *(({"batch_size": sizes}, "batch_size") for sizes in (BATCHES[:5], [0] * 6, [1.5] * 6)),
        *(({"epochs": epochs, "steps": None}, "epochs") for epochs in (EPOCHS[:5], [EPOCHS] * 6)),
    ],
)
def test_arrays_of_another_form_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=f"Client: {said}"):
        simulation(afl.Client(**({"learning_rate": 0.1, "steps": 2} | options))).check()


ONE: dict[str, Any] = {"steps": 1, "batch_size": None}


@pytest.mark.parametrize(
    ("options", "mine", "said"),
    [
        ({"learning_rate": RATES} | ONE, server.psurdg(0.1), "psurdg.*learning_rate"),
        ({"learning_rate": [1.0] * 6} | ONE, server.psurdg(0.1), None),
        ({"steps": np.ones((6, 3), int)}, server.asyncfeded(), "asyncfeded.*local steps"),
        ({"epochs": EPOCHS}, server.asyncfeded(max_steps=1), "asyncfeded.*epochs.*max_steps"),
        ({"steps": 1}, server.fedopt(optax.adam, b2=[0.9] * 6), "fedopt: b2"),
    ],
)
def test_servers_that_need_equal_clients_say_so(options: dict[str, Any], mine: Any, said: str | None) -> None:
    running = free_running(concurrency=4, durations=uniform(1, 5))
    clock = bernoulli(0.5) if mine.name == "psurdg" else running
    sim = descent(client=afl.Client(**{"learning_rate": 0.1} | options), server=mine, clock=clock)
    with pytest.raises(ValueError, match=said) if said else contextlib.nullcontext():
        sim.check()


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["steps", "epochs"])
def test_the_replies_of_asyncfeded_change_the_number_that_each_client_begins_with(unit: str) -> None:
    wanted = np.array([1, 2, 3, 4, 5, 6])
    client = afl.Client(**{"learning_rate": 0.01, "batch_size": BATCHES, unit: wanted.tolist()})
    clock = free_running(concurrency=4, durations=uniform(1, 5))
    sim = descent(client=client, server=server.asyncfeded(target_staleness=1.5), clock=clock)
    result = sim.run(40, eval_every=40)
    batches = -(-sim.data.counts // np.asarray(BATCHES)) if unit == "epochs" else np.ones(6, int)
    clients, replies = result.client_id.values.ravel(), result.next_local_steps.values.ravel()
    assert set(clients) == set(range(6)) and set(replies) > {1, 2, 3}
    for one, made, reply in zip(clients, result.local_steps.values.ravel(), replies, strict=True):
        assert made == wanted[one] * batches[one]
        wanted[one] = reply
