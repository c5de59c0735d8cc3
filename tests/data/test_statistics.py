"""Statistics of a partition: numbers, table, heat map."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

import jaxafl.data as data


def toy(labels, users) -> data.FederatedData:
    labels, users = np.array(labels), np.array(users)
    x = np.zeros((len(labels), 1), np.float32)
    return data.Dataset("toy", x, labels, x[:1], labels[:1], 3, data.as_is(), users=users).partition(data.by_user())


@pytest.fixture(scope="module")
def statistics():
    return toy([0, 0, 1, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 2, 2, 2]).statistics()


def test_histograms_and_distances_of_a_partition_done_by_hand(statistics):
    assert statistics.histogram.tolist() == [[2, 0, 0], [2, 1, 0], [0, 3, 0]]
    assert statistics.sizes.tolist() == [2, 3, 3]
    assert statistics.classes.tolist() == [1, 2, 1]
    np.testing.assert_allclose(statistics.distances, [1 / 2, 1 / 6, 1 / 2])
    assert statistics.heterogeneity == pytest.approx((1 / 2 + 1 / 6 + 1 / 2) / 3)


def test_histograms_agree_with_the_stored_labels_over_many_blocks():
    rng = np.random.default_rng(0)
    labels, users = rng.integers(0, 3, 70_000), rng.integers(0, 400, 70_000)
    statistics = toy(labels, users).statistics()
    expected = np.zeros((400, 3), int)
    np.add.at(expected, (users, labels), 1)
    np.testing.assert_array_equal(statistics.histogram, expected)


def test_the_table_has_a_row_per_client(statistics):
    text = str(statistics)
    assert "clients=3" in text and "heterogeneity=0.389" in text
    rows = [line.split() for line in text.splitlines() if line[:1].isdigit()]
    assert rows == [
        ["0", "2", "1", "0.500", "2", "0", "0"],
        ["1", "3", "2", "0.167", "2", "1", "0"],
        ["2", "3", "1", "0.500", "0", "3", "0"],
    ]
    assert statistics.table().loc["1", ["samples", "0", "1"]].tolist() == [3, 2, 1]


def test_the_heat_map_shows_the_histogram_in_axes_of_the_user_and_is_saved(statistics, tmp_path):
    axes = Figure().subplots()
    assert data.heat_map(statistics, tmp_path / "map.png", ax=axes) is axes.get_figure()
    np.testing.assert_array_equal(axes.images[0].get_array(), statistics.histogram)
    assert (tmp_path / "map.png").read_bytes()[:4] == b"\x89PNG"


def test_statistics_count_quantiles():
    y, x = np.arange(40.0), np.zeros((40, 1))
    regression = data.from_arrays(x, y, np.arange(40) // 10, x_test=x, y_test=y)
    with pytest.raises(ValueError, match=r"expected one class per sample"):
        regression.statistics()
    statistics = regression.statistics(quantiles=4)
    np.testing.assert_array_equal(statistics.histogram, 10 * np.eye(4))
    assert statistics.summary()["quantiles_per_client"] == "1 to 1" and statistics.heterogeneity == 0.75
    assert data.heat_map(statistics).axes[0].get_xlabel() == "quantile of the target"
    tied = data.from_arrays(x, np.repeat([0.0, 1.0], [36, 4]), np.arange(40) % 2, x_test=x, y_test=y)
    assert tied.statistics(quantiles=4).histogram.sum(0).tolist() == [0, 0, 0, 40]


def test_generated_and_stored_data_are_counted_alike():
    lazy, stored = (data.synthetic(1, 1, 40, max_size=60, lazy=lazy).statistics() for lazy in (True, False))
    np.testing.assert_array_equal(stored.histogram, lazy.histogram)
