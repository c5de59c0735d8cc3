"""Situations of users from public reports: what they write, with expected values from NumPy or by hand."""

import dataclasses
import json
import math
import pickle

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxafl as afl
from jaxafl.clock import activity, constant, free_running, mixture, schedule, sessions, synchronous, uniform
from jaxafl.results import plain
from tests.problems import Normalised

RNG = np.random.default_rng(0)
X, Y, IDS = RNG.normal(size=(80, 5)).astype(np.float32), RNG.integers(0, 3, 80), np.repeat(np.arange(4), 20)
DATA = afl.data.from_arrays(X, Y, IDS, test_fraction=0.2)
LOGISTIC = afl.models.logistic(3)
CLIENT = afl.Client(learning_rate=0.05, steps=3, batch_size=5)


def simulation(data=DATA, model=LOGISTIC, client=CLIENT, server=None, clock=None):
    clock = clock or free_running(2, durations=uniform(1, 2))
    return afl.Simulation(data, model, client, server or afl.server.fedasync(), clock)


def test_a_mixture_by_client_is_a_type_of_device():
    found = schedule(free_running(30, durations=mixture([constant(1.0), constant(2.0), constant(4.0)])), 30, 1, 500, 0)
    of_client = [set((found.arrived - found.started)[found.client == client]) for client in range(30)]
    assert all(len(seconds) == 1 for seconds in of_client) and len(set.union(*of_client)) == 3


def test_devices_that_join_and_leave_lose_updates(tmp_path):
    file = tmp_path / "devices.json"
    active = {"active": [1, 3, 6, 9], "inactive": [1, 4, 7, 10], "finish_time": 10}
    file.write_text(json.dumps({"0": active, "1": active | {"active": [0], "inactive": [10]}}))
    waiting = activity(file).hours_of(0, 2)
    assert [float(waiting(now)[0]) for now in (1, 6, 9, 9.5, 11, 0, 2, 8, 10, 15)] == [0] * 5 + [1] * 5
    found = schedule(free_running(2, hours=activity(file), durations=constant(0.75)), 2, 1, 40, 0)
    inside = [waiting(now)[client] for now, client in zip(found.arrived[:, 0], found.client[:, 0], strict=True)]
    assert max(inside) == 0 and found.runs_lost[-1] > 0
    assert [*plain(activity(file))] == ["name", "file", "loses"]
    waits = schedule(free_running(2, durations=constant(0.75) + activity(file)), 2, 1, 40, 0)
    assert waits.runs_lost[-1] == 0
    for begin in (5, 20):  # the content of the file counts, not its name
        file.write_text(json.dumps({"0": {"active": [begin], "inactive": [30], "finish_time": 40}}))
        assert schedule(free_running(1, durations=constant(1.0) + activity(file)), 1, 1, 1).time[0] == begin + 1
    (tmp_path / "other.json").write_text(file.read_text().replace("20", "7"))
    other = constant(1.0) + dataclasses.replace(activity(file), file=tmp_path / "other.json")
    assert schedule(free_running(1, durations=other), 1, 1, 1).time[0] == 8
    file.write_text('{"0": {"active": [3], "inactive": [1], "finish_time": 5}}')
    with pytest.raises(ValueError, match="active"):
        activity(file).check(1)


def test_a_day_begins_at_another_hour():
    night = constant(60.0) + afl.clock.available(22, 6, start=20)
    assert schedule(synchronous(durations=night), 1, 1, 1, 0).time[0] == 2 * 3600 + 60


def test_bounded_staleness_with_restarts_at_the_step():
    # M = 2, R = 1, and client 2 takes 10 s: step 1 waits for it, while clients 0 and 1 wait for the step
    clock = free_running(
        3, buffer=2, dispatch="step", max_staleness=1, on_bound="wait", durations=constant(np.array([1, 1, 10]))
    )
    found = schedule(clock, 3, 1, 4, 0)
    assert found.time.tolist() == [1, 10, 11, 20] and found.taken.tolist() == [2, 3, 2, 3]


@pytest.mark.slow
def test_a_limit_of_time_after_all_have_left_says_so():
    leaving = sessions(uniform(1, 2), constant(10), off=constant(5), leave=0.5)
    result = simulation(clock=free_running(2, durations=leaving)).run(until={"time": 1000})
    assert "until time 1000, all clients were gone after" in result.attrs["stopped"] and result.time[-1] < 1000
    with pytest.raises(ValueError, match="for ever"):
        schedule(synchronous(durations=leaving), 10, 1, 50, 0)


@pytest.mark.slow
def test_a_warm_start_takes_the_statistics():
    model = afl.models.from_linen(Normalised(3))
    trained = simulation(model=model).train(20, eval_every=20)
    again = simulation(model=afl.models.initialised(model, trained)).run(1)
    assert float(again.loss[0]) == float(trained.dataset.loss[-1])
    with pytest.raises(ValueError, match="batch_stats"):
        simulation(model=afl.models.initialised(model, trained.params)).run(1)
    for wrong in (trained.dataset, DATA):
        with pytest.raises(ValueError, match="of Simulation"):
            afl.models.initialised(model, wrong)


class Named(nn.Module):
    @nn.compact
    def __call__(self, image, table, train=False):
        return nn.Dense(3)(jnp.concatenate([image.reshape(len(image), -1), table], -1))


@pytest.mark.slow
def test_inputs_by_name_and_pickled_simulations():
    x = {"image": X.reshape(80, 5, 1, 1), "table": X}
    sim = simulation(afl.data.from_arrays(x, Y, IDS, test_fraction=0.2), afl.models.from_linen(Named()))
    params = sim.train(2).params
    expected = np.concatenate([X, X], 1) @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"]
    np.testing.assert_allclose(sim.model.outputs(params, x), expected, rtol=1e-5, atol=1e-6)
    again = pickle.loads(pickle.dumps(sim))
    assert again.run(3).identical(sim.run(3)) or (again.run(3).loss.values == sim.run(3).loss.values).all()


@pytest.mark.slow
def test_clients_with_given_test_sets():
    own = {"bob": (X[:10], Y[:10]), "ann": (X[10:40], Y[10:40])}
    data = afl.data.from_clients(own, test={"ann": (X[40:44], Y[40:44]), "bob": (X[50:56], Y[50:56])})
    assert data.client_names.tolist() == ["ann", "bob"] and data.counts.tolist() == [30, 10]
    assert data.test_clients.tolist() == [0] * 4 + [1] * 6
    result = simulation(data).run(2, diagnostics="per_client")
    model = simulation(data).train(2)
    right = (
        np.asarray(model.params["Dense_0"]["bias"] + X[40:44] @ model.params["Dense_0"]["kernel"]).argmax(1) == Y[40:44]
    )
    assert float(result.client_accuracy[-1, 0]) == pytest.approx(right.mean())
    with pytest.raises(ValueError, match="test_client_ids"):
        afl.data.from_arrays(X, Y, IDS, x_test=X[:2], y_test=Y[:2], test_client_ids=[0, 9])
    with pytest.raises(ValueError, match="Pad"):
        afl.data.from_clients([(np.zeros((2, 5)), [0, 1]), (np.zeros((2, 6)), [0, 1])], test_fraction=0.5)
    # lengths that agree in total only; a test set in the place of clients; two samples without labels
    for wrong in ([(X[:4], Y[:3]), (X[4:8], Y[3:8])], (X[:4], Y[:4]), [X[:2], X[2:4]]):
        with pytest.raises(ValueError, match="client 0 has"):
            afl.data.from_clients(wrong, test_fraction=0.5)


def test_words_and_bools_are_converted():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"size": X[:, 0], "new": X[:, 1] > 0})
    words = np.array(["cat", "dog", "owl"])[Y]
    data = afl.data.from_arrays(table, words, IDS, x_test=table, y_test=words)
    np.testing.assert_array_equal(data.y_test, Y)
    np.testing.assert_array_equal(data.x_test, np.stack([X[:, 0], X[:, 1] > 0], 1).astype(np.float32))


def test_a_table_of_numpy_in_a_schedule_is_named():
    table = np.linspace(0.1, 0.01, 50)
    client = afl.Client(learning_rate=0.1, steps=2, batch_size=5, rate_schedule=lambda moment: table[moment.version])
    with pytest.raises(Exception, match="traced") as caught:
        simulation(client=client).run(2)
    assert any("jnp.asarray(table)" in note for note in caught.value.__notes__)


def test_owners_and_extended_dirichlet():
    pooled = afl.data.Dataset("pooled", X, Y, X[:3], Y[:3], 3, afl.data.as_is())
    data = pooled.partition(afl.data.classes_per_client(2, clients=6, alpha=0.5))
    rows = data.rows()
    assert sorted(np.concatenate(rows)) == list(range(80)) and [len(one) for one in rows] == data.counts.tolist()
    assert all(len(np.unique(Y[one])) <= 2 for one in rows)
    kept = data.with_validation(0.3).rows()
    assert all(set(some) < set(whole) or len(whole) < 4 for some, whole in zip(kept, rows, strict=True))
    x, _ = data.with_validation(0.3).fetch(data.with_validation(0.3).arrays, 1, jnp.arange(len(kept[1])), None)
    np.testing.assert_array_equal(x, X[kept[1]])


@pytest.mark.slow
def test_local_training_alone_is_that_of_each_client_alone():
    client = afl.Client(learning_rate=0.1, steps=4, batch_size=None, personal=lambda path: True)
    rounds = {"server": afl.server.fedavg(), "clock": synchronous()}
    trained = simulation(client=client, **rounds).train(3)
    longer = afl.Client(learning_rate=0.1, steps=12, batch_size=None)
    arrays = jax.device_get(DATA.arrays)
    for one, rows in enumerate(np.split(arrays["index"], arrays["offset"][1:4])):
        x, y = arrays["x"][rows], arrays["y"][rows]
        alone = afl.data.from_arrays(x, y, 0 * y, x_test=x, y_test=y, num_classes=3)
        expected = simulation(alone, client=longer, **rounds).train(1).params
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-4, 1e-6), trained.client_params(one), expected)


@pytest.mark.slow
def test_a_second_phase_takes_the_model_and_the_moments():
    server = afl.server.fedopt(optax.adam, learning_rate=0.01)
    rounds = simulation(server=server, clock=synchronous())
    first, _ = rounds.step(rounds.init(0, 5), 5)
    later = simulation(server=server)
    begun = later.init(1, 7, start=first)
    jax.tree.map(np.testing.assert_array_equal, (begun.params, begun.run.server), (first.params, first.run.server))
    assert int(jax.tree.leaves(begun.run.server)[0]) == 5  # steps of Adam
    with pytest.raises(ValueError, match="start"):
        simulation().init(1, 5, start=first)


def test_a_server_counts_the_steps_of_an_earlier_phase():
    """Rounds of all clients with full batches: two phases of three are one of six."""
    client = afl.Client(learning_rate=0.1, steps=2, batch_size=None)
    sim = simulation(client=client, server=afl.server.fedstale(estimate=True), clock=synchronous())
    first, _ = sim.step(sim.init(0, 6), 3)
    twice, _ = sim.step(sim.init(0, 6, start=first), 3)
    whole, _ = sim.step(first, 3)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-7), twice.params, whole.params)


def test_data_that_change_keep_time_and_runs_in_flight():
    changed = simulation(afl.data.from_arrays(X, (Y + 1) % 3, IDS, test_fraction=0.2))
    before = simulation()
    state, _ = before.step(before.init(0, 40), 20)
    state, records = changed.step(state, 20)
    assert math.isclose(float(records["time"][-1]), before.schedule(40).time[-1], rel_tol=1e-6)
    assert float(changed.evaluate(state)["loss"]) < float(before.evaluate(state)["loss"])


def test_what_starts_a_phase_and_metrics_have_a_form():
    with pytest.raises(TypeError, match="initialised"):
        simulation().init(start=simulation().train(1))
    with pytest.raises(TypeError, match="dict"):
        simulation().run(1, metrics=["f1"])
