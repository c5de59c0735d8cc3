"""Clients with numbers, epochs, batch sizes and rates of their own, against the slow reference that trains each so."""

from __future__ import annotations

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
from tests.problems import assert_same, drawn, quadratic, record, reference, simulate
from tests.test_client import SEED, SIZES, STEPS, batch_key, cut, shuffle

RATES = [0.2, 0.05, 0.1, 0.3, 0.15, 0.25]
NUMBERS = {
    "momentum": [0.5, 0.0, 0.9, 0.3, 0.2, 0.6],
    "proximal": [0.0, 0.7, 0.1, 0.2, 0.5, 0.3],
    "weight_decay": [0.1, 0.0, 0.3, 0.2, 0.05, 0.0],
}
BATCHES = [3, 2, 5, 1, 4, 8]
EPOCHS = [2, 3, 1, 2, 4, 1]


def check(client: afl.Client, training: list[LocalTraining], batches: Any = None, **options: Any) -> Any:
    """The run is that of the reference, whose clients train as `training` says."""
    problem = quadratic(sizes=SIZES)
    recorded = record(1, 6, STEPS, "ties", concurrency=6, buffer=2)
    steps = recorded.oracle(STEPS)
    steps = [
        type(step)(
            step.step,
            step.time,
            tuple(type(one)(**{**vars(one), "local_steps": training[one.client].steps}) for one in step.arrivals),
        )
        for step in steps
    ]

    def of_client(arrival: Any) -> LocalTraining:
        return training[arrival.client]

    with jax.enable_x64(True):
        expected = reference(problem, oracle.FedBuff(eta=0.8), steps, of_client, batches=batches)  # type: ignore[arg-type]
        result = simulate(problem, server.fedbuff(0.8, "none"), recorded.clock(), STEPS, client, seed=SEED, **options)
    assert_same(result, expected, 1e-9)
    return result


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


def own_batches(client: int, run: int, local_steps: int) -> list[list[int]]:
    """The indices that a run draws with replacement, as many as the client's batches have."""
    key = per_run(batch_key(), jnp.int32(client), jnp.int32(run))
    count = jnp.int32(SIZES[client])
    return [np.asarray(drawn(key, jnp.int32(k), BATCHES[client], count)).tolist() for k in range(local_steps)]


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
    clock = free_running(concurrency=4, buffer=2, durations=uniform(1, 5))
    problem = quadratic(sizes=SIZES)
    return afl.Simulation(problem.data, problem.model, client, mine or server.fedbuff(0.8), clock)


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


def by_moment(moment: Any) -> Any:
    """A rate of what is known at the start of a run."""
    return 1 / (1 + 0.2 * moment.version + 0.05 * moment.started + 0.1 * moment.client)


CLIENT = afl.Client(
    learning_rate=RATES, proximal=NUMBERS["proximal"], epochs=EPOCHS, batch_size=BATCHES, rate_schedule=by_moment
)


@pytest.mark.parametrize(
    "options", [{}, pytest.param({"dispatch": "step", "start_skew": True}, marks=pytest.mark.slow)]
)
def test_a_rate_knows_client_version_server_step_and_time(options: dict[str, Any]) -> None:
    def schedule(moment: Any) -> Any:
        return by_moment(moment) / (1 + 0.1 * moment.server_step) / (1.0 + moment.step)

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
def test_a_clock_within_the_program_refuses_only_what_it_does_not_know() -> None:
    clock = free_running(concurrency=4, durations=uniform(1, 5))
    problem = quadratic(sizes=SIZES)

    def trained(schedule: Any) -> Any:
        client = afl.Client(learning_rate=0.2, steps=2, batch_size=None, rate_schedule=schedule)
        return simulate(problem, server.asyncfeded(0.8, kappa=0.0), clock, 6, client).delta_norm

    halved = afl.Client(learning_rate=0.2, steps=2, batch_size=None, run_schedule=lambda run: 0.5**run)
    expected = simulate(problem, server.asyncfeded(0.8, kappa=0.0), clock, 6, halved).delta_norm
    np.testing.assert_array_equal(trained(lambda moment: 0.5**moment.run), expected)
    with pytest.raises(AttributeError, match="steps"):
        trained(lambda moment: 1.0 + moment.steps)
    for name in ("staleness", "duration", "server_step"):
        with pytest.raises(ValueError, match=f"rate_schedule needs the {name} of a run when it is trained"):
            trained(lambda moment, name=name: 1.0 + getattr(moment, name))


@pytest.mark.slow
def test_every_way_of_executing_a_run_gives_the_same() -> None:
    sim = simulation(CLIENT)
    expected = sim.run(8, eval_every=8)
    _, records = sim.step(sim.init(0), 8)
    np.testing.assert_allclose(records["delta_norm"], expected.delta_norm, rtol=1e-5)
    members = afl.sweep(sim, {"seed": [0, 1]}, 8, eval_every=8)
    np.testing.assert_allclose(members.delta_norm[0], expected.delta_norm, rtol=1e-5)


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


@pytest.mark.slow
def test_a_reply_counts_epochs_of_batches_of_several_sizes() -> None:
    clock = free_running(concurrency=4, durations=uniform(1, 5))
    client = afl.Client(learning_rate=RATES, epochs=2, batch_size=BATCHES)
    result = simulate(quadratic(sizes=SIZES), server.asyncfeded(0.8, kappa=0.0), clock, 8, client)
    steps = np.array([2 * -(-count // size) for count, size in zip(SIZES, BATCHES, strict=True)])
    np.testing.assert_array_equal(result.local_steps[:, 0], steps[result.client_id[:, 0].values.astype(int)])
    assert (result.next_local_steps == 2).all()


@pytest.mark.slow
def test_a_checkpoint_compares_the_arrays(tmp_path: Any) -> None:
    simulation(afl.Client(learning_rate=RATES, steps=1)).run(2, folder=tmp_path)
    same = afl.Client(learning_rate=np.array(RATES), steps=1)
    assert simulation(same).run(3, folder=tmp_path).sizes["step"] == 3
    with pytest.raises(UserError, match=r"holds something else: client\.learning_rate"):
        simulation(afl.Client(learning_rate=RATES[::-1], steps=1)).run(4, folder=tmp_path)


def counting(learning_rate: float, width: int = 2, scale: float = 1.0) -> optax.GradientTransformation:
    """An optimiser whose `width` is a shape."""
    del scale
    pad = optax.stateless(lambda updates, _: jax.tree.map(lambda u: u + 0 * jnp.ones(width).sum(), updates))
    return optax.chain(optax.sgd(learning_rate), pad)


def test_a_length_stays_static_beside_an_array() -> None:
    assert afl.Client(counting, learning_rate=RATES, width=3, scale=[1.0] * 6, steps=1).switches == (("width", 3),)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"learning_rate": RATES[:5]},
            r"learning_rate must be .* one number per client \(6,\), got shape",
        ),
        (
            {"learning_rate": [RATES]},
            r"learning_rate must be .* one number per client \(6,\), got shape",
        ),
        ({"learning_rate": [*RATES[:5], -1.0]}, r"learning_rate must be >= 0, got -1 \(client 5, the first of 1\)"),
        ({"learning_rate": [*RATES[:5], np.nan]}, r"learning_rate must be a finite number, got nan \(client 5"),
        ({"learning_rate": ["a"] * 6}, r"learning_rate must be a number"),
        ({"momentum": RATES[:5]}, r"momentum must be .* one number per client \(6,\), got shape"),
        ({"proximal": RATES[:5]}, r"proximal must be .* one number per client \(6,\), got shape"),
        ({"batch_size": BATCHES[:5]}, r"batch_size must be one number, or one per client \(6,\), got"),
        ({"batch_size": [0] * 6}, r"batch_size must be at least 1, got 0"),
        ({"batch_size": [1.5] * 6}, r"batch_size must be a whole number, got 1.5"),
        (
            {"epochs": EPOCHS[:5], "steps": None},
            r"epochs must be one number, or one per client \(6,\), got",
        ),
        ({"epochs": [EPOCHS] * 6, "steps": None}, r"epochs must be one number, or one per client \(6,\), got"),
    ],
)
def test_arrays_of_another_form_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=f"Client: {said}"):
        simulation(afl.Client(**({"learning_rate": 0.1, "steps": 2} | options))).check()


def test_servers_that_need_equal_clients_say_so() -> None:
    one = {"steps": 1, "batch_size": None}
    gradients = server.psurdg(0.1)
    problem = quadratic(sizes=SIZES)
    with pytest.raises(ValueError, match=r"psurdg has no local rate.* not Client\(.*a NumPy array"):
        rates = afl.Client(learning_rate=RATES, **one)
        afl.Simulation(problem.data, problem.model, rates, gradients, bernoulli(0.5)).check()
    afl.Simulation(
        problem.data, problem.model, afl.Client(learning_rate=[1.0] * 6, **one), gradients, bernoulli(0.5)
    ).check()
    clock = free_running(concurrency=4, durations=uniform(1, 5))
    with pytest.raises(ValueError, match=r"asyncfeded adapts the number of local steps .* or one per client"):
        replies = afl.Client(learning_rate=0.1, steps=np.ones((6, 3), int))
        afl.Simulation(problem.data, problem.model, replies, server.asyncfeded(), clock).check()
    with pytest.raises(ValueError, match=r"asyncfeded: the client begins with epochs=\d+, more than max_steps=1"):
        replies = afl.Client(learning_rate=0.1, epochs=EPOCHS)
        afl.Simulation(problem.data, problem.model, replies, server.asyncfeded(max_steps=1), clock).check()
    with pytest.raises(UserError, match=r"fedopt: b2 must be one number"):
        simulation(afl.Client(learning_rate=0.1, steps=1), server.fedopt(optax.adam, b2=[0.9] * 6)).check()


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["steps", "epochs"])
def test_the_replies_of_asyncfeded_change_the_number_that_each_client_begins_with(unit: str) -> None:
    problem = quadratic(sizes=SIZES)
    wanted = np.array([1, 2, 3, 4, 5, 6])
    client = afl.Client(**{"learning_rate": 0.01, "batch_size": BATCHES, unit: wanted.tolist()})
    clock = free_running(concurrency=4, durations=uniform(1, 5))
    sim = afl.Simulation(problem.data, problem.model, client, server.asyncfeded(target_staleness=1.5), clock)
    result = sim.run(40, eval_every=40)
    batches = -(-problem.data.counts // np.asarray(BATCHES)) if unit == "epochs" else np.ones(6, int)
    clients, replies = result.client_id.values.ravel(), result.next_local_steps.values.ravel()
    assert set(clients) == set(range(6)) and set(replies) > {1, 2, 3}
    for one, made, reply in zip(clients, result.local_steps.values.ravel(), replies, strict=True):
        assert made == wanted[one] * batches[one]
        wanted[one] = reply
