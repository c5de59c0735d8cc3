"""Validation sets, and single clients evaluated on what they hold out."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxafl as afl
from jaxafl.data import held_out
from jaxafl.models.model import Batch
from jaxafl.results.clients import standard_interval
from tests.problems import descent

CLIENTS = 5
SIZES = (9, 1, 4, 12, 6)


def pooled(seed: int = 0) -> afl.data.FederatedData:
    rng = np.random.default_rng(seed)
    owners = np.repeat(np.arange(CLIENTS), SIZES)
    x = np.arange(len(owners), dtype=np.float32)[:, None] + np.zeros(3, np.float32)
    y = rng.integers(0, 3, len(owners))
    return afl.data.from_arrays(x, y, owners, x_test=x[:7], y_test=y[:7], num_classes=3, name="numbers")


def samples(data: afl.data.FederatedData, client: int, count: int) -> list[float]:
    x, _ = data.gather(data.arrays, client, np.arange(count))
    return np.asarray(x)[:, 0].tolist()


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(share=st.floats(0.1, 0.9), seed=st.integers(0, 100))
def test_every_sample_is_trained_on_or_held_out(share: float, seed: int) -> None:
    data = pooled()
    changed = data.with_validation(share, seed)
    assert changed.counts.tolist() == [size - min(int(share * size), size - 1) for size in SIZES]
    apart = changed.validation
    assert apart is not None
    for client, size in enumerate(SIZES):
        kept = samples(changed, client, int(changed.counts[client]))
        mine = apart.client == client
        x, _ = held_out.gather_held_out(changed.gather, changed.arrays, apart.client[mine], apart.position[mine])
        assert sorted([*kept, *np.asarray(x)[:, 0].tolist()]) == samples(data, client, size)
    again = data.with_validation(share, seed)
    assert again.validation is not None
    np.testing.assert_array_equal(again.validation.position, apart.position)


def test_clients_of_one_pool_hold_out_the_same_samples() -> None:
    x = np.arange(40.0)[:, None]
    data = afl.data.Dataset("pool", x, np.arange(40) % 3, x[:3], np.arange(3), 3, afl.data.cast())
    changed = data.partition(afl.data.iid_shared(3, samples=20)).with_validation(0.25)
    kept = [set(samples(changed, client, 15)) for client in range(3)]
    assert kept[0] == kept[1] == kept[2] and len(kept[0]) == 15
    apart = changed.validation
    assert apart is not None
    held, _ = held_out.gather_held_out(changed.gather, changed.arrays, apart.client, apart.position)
    assert not kept[0] & set(np.asarray(held)[:, 0].tolist())


def test_invalid_shares_to_hold_out_raise() -> None:
    data = pooled()
    for share in (0.05, 1.0, "a"):
        with pytest.raises((ValueError, TypeError), match="share"):
            data.with_validation(share)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="validation set already"):
        data.with_validation(0.3).with_validation(0.3)


def evaluated(data: afl.data.FederatedData, **how: Any) -> tuple[xr.Dataset, Any, afl.Simulation]:
    client = afl.Client(learning_rate=0.01, steps=2, batch_size=2)
    sim = descent(data=data, model=afl.models.logistic(3), client=client)
    return sim.run(6, eval_every=3, **how), sim.train(6, eval_every=3).params, sim


def losses(sim: afl.Simulation, params: Any, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    batch = Batch(sim.data.preprocess(x), np.asarray(y), np.ones(len(y), bool))
    outputs, _ = sim.model.apply(params, {}, batch, jax.random.key(0), False)
    return np.asarray(outputs.loss), np.asarray(outputs.metrics["accuracy"])


@pytest.mark.slow
def test_the_validation_set_is_evaluated_as_the_test_set_is() -> None:
    data = pooled()
    changed = data.with_validation(0.4, seed=2)
    result, params, sim = evaluated(changed)
    apart = changed.validation
    assert apart is not None
    pairs = [
        data.gather(data.arrays, int(c), np.asarray([p])) for c, p in zip(apart.client, apart.position, strict=True)
    ]
    x, y = (np.concatenate([np.asarray(pair[part]) for pair in pairs]) for part in (0, 1))
    loss, accuracy = losses(sim, params, x, y)
    np.testing.assert_allclose(result.validation_loss.values[-1], loss.mean(), rtol=1e-5)
    np.testing.assert_allclose(result.validation_accuracy.values[-1], accuracy.mean(), rtol=1e-6)
    assert result.sizes["evaluation"] == 3 and "client_loss" not in result


@pytest.mark.slow
@pytest.mark.parametrize("of_test", [True, False])
def test_single_clients_are_evaluated_on_their_own_samples(of_test: bool) -> None:
    if of_test:
        rng = np.random.default_rng(1)
        owners = np.repeat(np.arange(CLIENTS), 8)
        x, y = rng.normal(size=(40, 3)).astype(np.float32), rng.integers(0, 3, 40)
        data = afl.data.from_arrays(x, y, owners, test_fraction=0.3, num_classes=3)
        assert data.test_clients is not None
        mine = [(data.x_test[data.test_clients == c], data.y_test[data.test_clients == c]) for c in range(CLIENTS)]
    else:
        whole = pooled()
        data = whole.with_validation(0.4, seed=2)
        apart = data.validation
        assert apart is not None
        mine = [
            tuple(map(np.asarray, whole.gather(whole.arrays, client, apart.position[apart.client == client])))
            for client in range(CLIENTS)
        ]
    result, params, sim = evaluated(data, diagnostics="per_client")
    assert result.client_samples.values.tolist() == [len(y) for _, y in mine]
    assert (result.client_accuracy * result.participation).dims == ("evaluation", "population")
    for place, (x, y) in enumerate(mine):
        if not len(y):
            assert result.client_loss.isel(population=place).isnull().all()
            continue
        loss, accuracy = losses(sim, params, x, y)
        np.testing.assert_allclose(result.client_loss.values[-1, place], loss.mean(), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(result.client_accuracy.values[-1, place], accuracy.mean(), rtol=1e-6)
    swept = afl.sweep(sim, {"seed": [0, 1]}, 6, eval_every=3, diagnostics="per_client")
    np.testing.assert_array_equal(swept.client_loss.values[0], result.client_loss.values)


def test_of_many_clients_a_fixed_sample_is_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_out, "MOST_CLIENTS", 3)
    owners = held_out.owners_of(np.array([0, 0, 4, 1, -1, 2, 3, 3], np.int32), 5, True)
    assert len(owners.clients) == 3 and (np.diff(owners.clients) > 0).all()
    counts = np.bincount([0, 0, 4, 1, 2, 3, 3], minlength=5)
    assert owners.samples.tolist() == counts[owners.clients].tolist()
    assert (owners.owner == 3).sum() == 8 - owners.samples.sum()


def test_nobody_holds_anything_out() -> None:
    with pytest.raises(ValueError, match=r"no client has held-out samples.*with_validation"):
        evaluated(pooled(), diagnostics="per_client")


@pytest.mark.slow
def test_who_took_part_and_what_was_sent() -> None:
    """A download per start, an upload per arrival, in bytes of the trained parameters."""
    result, params, sim = evaluated(pooled())
    size = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(params))
    schedule = sim.schedule(6)
    assert result.bytes_up.values.tolist() == [2 * size] * 6
    assert result.bytes_down.values.sum() == size * schedule.runs_started
    assert result.bytes_down.values[0] >= 3 * size  # all that are in flight have started
    assert result.eval_bytes.values[-1] == result.bytes_up.values.sum() + result.bytes_down.values.sum()
    for client in range(CLIENTS):
        own = schedule.staleness[schedule.client == client]
        assert result.participation.values[client] == len(own)
        if len(own):
            np.testing.assert_allclose(result.mean_staleness.values[client], own.mean(), rtol=1e-6)
        else:
            assert np.isnan(result.mean_staleness.values[client])


def test_test_samples_per_client_follow_the_classes_of_its_training_samples() -> None:
    rng = np.random.default_rng(0)
    x, y = np.zeros((400, 2), np.float32), rng.integers(0, 3, 400)
    pool = afl.data.Dataset("pool", x, y, x, y, num_classes=4, preprocessing=afl.data.as_is())
    pool = dataclasses.replace(pool, y_test=np.where(np.arange(400) < 5, 3, y))
    shared, own = (
        pool.partition(afl.data.dirichlet(0.2, clients=4), seed=1, test=how) for how in ("shared", "per_client")
    )
    assert shared.test_clients is None and "partition_test" not in shared.description
    owner = own.test_clients
    assert (owner[:5] == -1).all()  # no client has class 3
    of_training = shared.statistics().histogram
    of_test = np.asarray([np.bincount(pool.y_test[owner == client], minlength=4) for client in range(4)])
    totals = of_training[:, :3].sum(axis=0)
    expected = of_training[:, :3] / totals * of_test[:, :3].sum(axis=0)
    np.testing.assert_allclose(of_test[:, :3], expected, atol=4 * np.sqrt(totals.max() / 4))
    assert (of_test[:, :3][of_training[:, :3] == 0] == 0).all()
    again = pool.partition(afl.data.dirichlet(0.2, clients=4), seed=1, test="per_client")
    np.testing.assert_array_equal(again.test_clients, owner)
    everyone = pool.partition(afl.data.iid_shared(3), test="per_client").test_clients
    assert np.bincount(everyone[5:]).min() > 80
    with pytest.raises(ValueError, match="test must be one of 'shared', 'per_client'"):
        pool.partition(afl.data.iid(2), test="own")


def test_the_error_bar_of_a_client_is_wilsons_interval() -> None:
    """The interval holds the p with |p̂ - p| <= √(p(1 - p)/n)."""
    share, samples = np.array([0.0, 0.3, 1.0]), np.array([5, 40, 7])
    for edge in standard_interval(share, samples):
        np.testing.assert_allclose(np.abs(share - edge), np.sqrt(edge * (1 - edge) / samples), atol=1e-12)
