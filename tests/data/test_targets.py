"""Targets other than classes: what is stored, and quantiles as classes of partitions and statistics."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import numpy as np
import pytest

from jaxafl import data

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3)).astype(np.float32)
Y = RNG.normal(size=40)
OWNERS = np.arange(40) % 4
TAGS = np.array([[1, 0, -1], [0, 1, 1]] * 20)


def pooled(y: np.ndarray) -> data.Dataset:
    return data.Dataset("toy", X, y, X[:5], y[:5], None, data.as_is())


def fetched(federated: data.FederatedData, client: int) -> Any:
    positions = np.arange(federated.counts[client])
    return jax.device_get(federated.fetch(federated.arrays, client, positions, jax.random.split(jax.random.key(0), 1)))


@pytest.mark.parametrize(
    ("y", "kind", "classes"),
    [
        (Y, "float32[]", None),
        (np.stack([Y, -Y, Y**2], 1), "float32[3]", None),
        (Y[:, None], "float32[1]", None),
        (TAGS, "int32[3]", 2),
        (TAGS > 0, "int32[3]", 2),
        (7 * TAGS, "int32[3]", 8),
    ],
)
def test_clients_receive_their_targets(y: np.ndarray, kind: str, classes: int | None) -> None:
    federated = data.from_arrays(X, y, OWNERS, x_test=X[:7], y_test=y[:7])
    x, targets = fetched(federated, 2)
    np.testing.assert_array_equal(x, X[2::4])
    np.testing.assert_array_equal(targets, y[2::4].astype(targets.dtype))
    summary = federated.summary()
    assert (summary["target"], summary.get("classes"), federated.num_classes) == (kind, classes, classes)
    np.testing.assert_array_equal(federated.y_test, y[:7].astype(targets.dtype))


def test_held_out_samples_keep_their_targets() -> None:
    federated = data.from_arrays(np.stack([Y, Y], 1), Y, OWNERS, test_fraction=0.3).with_validation(0.3)
    np.testing.assert_allclose(federated.x_test[:, 0], federated.y_test)
    for client in range(4):
        x, targets = fetched(federated, client)
        np.testing.assert_array_equal(x[:, 0], targets)


def test_a_target_that_is_not_finite_is_named_by_its_place_in_y_not_among_training_samples() -> None:
    for at in (0, 20, len(Y) - 1):
        with pytest.raises(ValueError, match=f"1 of the training targets .* the first in sample {at};"):
            data.from_arrays(X, np.where(np.arange(len(Y)) == at, np.inf, Y), OWNERS, test_fraction=0.3)


def test_samples_sharded_over_devices_keep_their_targets() -> None:
    federated = data.from_arrays(X, np.stack([Y, -Y], 1), OWNERS, x_test=X, y_test=np.stack([Y, Y], 1)).divided(2)
    second = jax.tree.map(lambda leaf: leaf[1:], federated.arrays)
    np.testing.assert_array_equal(federated.gather(second, 1, np.arange(10))[1][:, 1], -Y[3::4].astype(np.float32))


@pytest.mark.parametrize(
    "partition",
    [
        data.dirichlet(0.5, 4, min_size=1),
        data.dirichlet_equal(0.5, 4),
        data.classes_per_client(2, 4),
        data.sizes([10, 20], classes=2),
        data.sizes([10, 20], alpha=0.5),
    ],
)
def test_partitions_by_class_need_classes_or_quantiles(partition: Any) -> None:
    with pytest.raises(ValueError, match=r"y is float32\[n\], expected one class per sample.*quantiles=4"):
        pooled(Y).partition(partition)
    with pytest.raises(ValueError, match=r"y is int32\[n, 3\], expected one class per sample.*client ids"):
        pooled(TAGS).partition(partition)
    ranks = np.argsort(np.argsort(Y))
    by_quantile = pooled(Y).partition(partition, seed=3, quantiles=4)
    by_class = pooled(ranks // 10).partition(partition, seed=3)  # 40 distinct numbers: 10 in each quarter
    np.testing.assert_array_equal(by_quantile.arrays["index"], by_class.arrays["index"])
    np.testing.assert_array_equal(by_quantile.arrays["y"], Y.astype(np.float32))
    assert by_quantile.description["partition_quantiles"] == 4


def test_shards_sort_real_targets() -> None:
    federated = pooled(Y).partition(data.shards(1, 4))
    held = sorted((fetched(federated, client)[1] for client in range(4)), key=np.min)
    assert all(low.max() < high.min() for low, high in itertools.pairwise(held))
    with pytest.raises(ValueError, match="shards: y is int32"):
        pooled(TAGS).partition(data.shards(1, 4))


def test_statistics_count_quantiles(tmp_path: Any) -> None:
    federated = data.from_arrays(X, np.arange(40.0), np.arange(40) // 10, x_test=X, y_test=Y)
    with pytest.raises(ValueError, match=r"arrays: y is float32\[n\].*data.statistics\(quantiles=4\)"):
        federated.statistics()
    statistics = federated.statistics(quantiles=4)
    np.testing.assert_array_equal(statistics.histogram, 10 * np.eye(4))
    assert statistics.summary()["quantiles_per_client"] == "1 to 1"
    assert "1 to 1 quantiles" in " ".join(str(statistics).split()) and statistics.heterogeneity == 0.75
    figure = data.heat_map(statistics, tmp_path / "map.png")
    assert figure.axes[0].get_xlabel() == "quantile of the target"


def test_quantiles_need_one_target_and_a_number() -> None:
    with pytest.raises(ValueError, match="quantiles must be at least 2, got 1"):
        pooled(Y).partition(data.iid(2), quantiles=1)
    with pytest.raises(ValueError, match="quantiles need one number per sample"):
        pooled(np.stack([Y, Y], 1)).partition(data.iid(2), quantiles=2)
    with pytest.raises(ValueError, match="quantiles need one number per sample"):
        data.from_arrays(X, TAGS, OWNERS, x_test=X, y_test=TAGS).statistics(quantiles=2)


def test_a_sample_of_padding_alone_is_an_error() -> None:
    labels = np.where(np.arange(len(X))[:, None] % 4 == 3, -1, TAGS)
    with pytest.raises(ValueError, match="10 of the training samples have no label but padding, the first is sample 3"):
        data.from_arrays(X, labels, OWNERS, x_test=X, y_test=TAGS)
    with pytest.raises(ValueError, match="10 of the test samples have no label but padding"):
        data.from_arrays(X, TAGS, OWNERS, x_test=X, y_test=labels)


def test_equal_targets_share_a_quantile() -> None:
    federated = pooled(np.repeat([0.0, 1.0], [36, 4])).partition(data.iid(2))
    assert federated.statistics(quantiles=4).histogram.sum(0).tolist() == [0, 0, 0, 40]


def test_the_test_set_is_divided_by_quantiles() -> None:
    dataset = data.Dataset("toy", X, Y, X, Y, None, data.as_is())
    federated = dataset.partition(data.classes_per_client(1, 4), quantiles=4, test="per_client")
    edges = np.quantile(Y, [0.25, 0.5, 0.75])
    for client in range(4):
        tested = Y[federated.test_clients == client]
        assert len(tested) == 10
        assert np.unique(np.searchsorted(edges, np.concatenate([tested, fetched(federated, client)[1]]))).size == 1
    with pytest.raises(ValueError, match="expected one class per sample"):
        dataset.partition(data.iid(4), test="per_client")
