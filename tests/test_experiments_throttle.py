"""What THROTTLE's study on MNIST does with arrivals, rates and its network."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import xarray as xr

import jaxafl as afl
from experiments.throttle.mnist import CLIENTS, HONEST, METHODS, Network, best, senders


def drawn(count: int, rho: float | None = None, seed: int = 0) -> np.ndarray:
    """The sender of every arrival, from what `prepare` keeps."""
    with jax.enable_x64(True):
        prepare = jax.jit(lambda key: senders(count=count, rho=rho).prepare([key], CLIENTS))
        kept = np.asarray(prepare(jax.random.key(seed)))
    client, tick = np.divmod(kept, 2 * count + 1)
    once = (tick > 0) & (tick <= count)
    assert sorted(tick[once]) == list(range(1, count + 1))
    return client[once][np.argsort(tick[once])]


@pytest.mark.parametrize("rho", [None, 1.0, 10.0])
def test_senders_are_drawn_by_index_within_their_group(rho: float | None) -> None:
    """Counts are within five standard deviations of their expectation."""
    count = 30_000
    client = drawn(count, rho)
    if rho is None:
        assert (client.reshape(-1, 3)[:, 2] >= HONEST).all() and (client.reshape(-1, 3)[:, :2] < HONEST).all()
    share = 1 / 3 if rho is None else rho / (2 + rho)
    p = np.r_[(1 - share) * np.arange(1, 16) / 120, share * np.arange(1, 6) / 15]
    found = np.bincount(client, minlength=CLIENTS)
    assert (abs(found - count * p) < 5 * np.sqrt(count * p)).all()


@pytest.mark.slow
def test_a_run_ends_when_its_client_is_next() -> None:
    """From any time on, with repetitions; runs of clients that never send do not arrive."""
    count, clients = 9, np.arange(CLIENTS)
    order = np.tile(drawn(count), 4)
    with jax.enable_x64(True):
        one = senders(count=count)
        prepared, none = one.prepare([jax.random.key(0)], CLIENTS), np.zeros(CLIENTS, int)
        draw = jax.jit(lambda now: one.draw(prepared, afl.clock.Run(jax.numpy.asarray(clients), none, none, none, now)))
        for now in range(2 * count + 1):
            found = draw(float(now)).work
            later = order[now:] == clients[:, None]
            expected = np.where(later.any(1), later.argmax(1) + 1, np.inf)
            np.testing.assert_array_equal(found, expected)
    assert np.isinf(expected).any()


@pytest.mark.slow
def test_arrivals_are_the_same_on_all_clocks_and_repeat() -> None:
    """One client per arrival, in the drawn order, whether runs are stopped or server steps collect them."""
    count, local = 240, np.ones((CLIENTS, 1), int)
    for name, steps in (("THROTTLE, q = 1.1", 480), ("Kardam", 480), ("BASGD", 10)):
        schedule = afl.clock.schedule(METHODS[name].clock(senders(count=count)), CLIENTS, local, steps, 0)
        client, arrived = schedule.client[schedule.mask], schedule.arrived[schedule.mask]
        np.testing.assert_array_equal(arrived, np.arange(1, len(arrived) + 1))
        if name.startswith("THROTTLE"):
            order = client
            assert schedule.runs_stopped[-1] > 0
        np.testing.assert_array_equal(client, order[: len(client)])
    np.testing.assert_array_equal(order[:count], order[count:])


def test_the_network_has_the_published_number_of_parameters() -> None:
    images = jax.ShapeDtypeStruct((2, 28, 28, 1), "float32")
    shapes = jax.eval_shape(lambda x: Network().init(jax.random.key(0), x, True), images)
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes["params"])) == 66_230


def test_rates_are_chosen_on_the_validation_split() -> None:
    """The rate that is best on the test set loses, as does one whose runs fail."""
    rates = [1.0, 0.1, 0.01]
    dims = ("client_rate", "seed", "evaluation")
    validation = np.asarray([[0.1, 0.95], [0.1, 0.8], [0.1, 0.5]])[:, None]
    runs = xr.Dataset(
        {
            "validation_accuracy": (dims, validation),
            "accuracy": (dims, 1 - validation),
            "failed_step": (dims[:2], np.asarray([[3], [-1], [-1]])),
        },
        {"server.learning_rate": (dims[0], rates)},
    ).swap_dims(client_rate="server.learning_rate")
    found = best(runs)
    assert found.attrs["rate"] == 0.1 and found.accuracy.values.tolist() == [[0.1, 0.8]]
    assert best(found) is found
