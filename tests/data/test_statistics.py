"""Statistics of a partition: numbers, table, heat map."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from matplotlib.figure import Figure

import jaxafl.data as data
from jaxafl.data import federated, statistics


def toy(labels, users) -> data.FederatedData:
    labels, users = np.array(labels), np.array(users)
    x = np.zeros((len(labels), 1), np.float32)
    return data.Dataset("toy", x, labels, x[:1], labels[:1], 3, data.as_is(), users=users).partition(data.by_user())


def test_histograms_and_distances_of_a_partition_done_by_hand():
    statistics = toy([0, 0, 1, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 2, 2, 2]).statistics()
    assert statistics.histogram.tolist() == [[2, 0, 0], [2, 1, 0], [0, 3, 0]]
    assert statistics.sizes.tolist() == [2, 3, 3]
    assert statistics.classes.tolist() == [1, 2, 1]
    np.testing.assert_allclose(statistics.distances, [1 / 2, 1 / 6, 1 / 2])
    assert statistics.heterogeneity == pytest.approx((1 / 2 + 1 / 6 + 1 / 2) / 3)


def test_identical_clients_have_no_heterogeneity():
    assert toy([0, 1, 2, 0, 1, 2], [0, 0, 0, 1, 1, 1]).statistics().heterogeneity == 0.0


def test_histograms_agree_with_the_stored_labels_over_many_blocks():
    rng = np.random.default_rng(0)
    labels, users = rng.integers(0, 3, 70_000), rng.integers(0, 400, 70_000)
    statistics = toy(labels, users).statistics()
    expected = np.zeros((400, 3), int)
    np.add.at(expected, (users, labels), 1)
    np.testing.assert_array_equal(statistics.histogram, expected)


def test_heterogeneity_falls_with_the_concentration():
    labels = np.repeat(np.arange(10), 200)
    x = np.zeros((2000, 1), np.float32)
    dataset = data.Dataset("toy", x, labels, x[:1], labels[:1], 10, data.as_is())
    values = [
        dataset.partition(data.dirichlet(alpha, 10, min_size=1)).statistics().heterogeneity for alpha in (0.05, 1, 100)
    ]
    assert values[0] > 0.6 > values[1] > 0.15 > values[2]


@pytest.mark.slow
def test_lazy_data_has_the_statistics_of_the_stored_data():
    stored, lazy = (data.synthetic(1, 1, 12, max_size=150, lazy=lazy).statistics() for lazy in (False, True))
    np.testing.assert_array_equal(stored.histogram, lazy.histogram)


def test_the_table_shows_every_client_or_says_which_it_leaves_out():
    statistics = toy([0, 0, 1, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 2, 2, 2]).statistics()
    text = str(statistics)
    assert "3 clients, 8 training samples" in text
    rows = [line.split() for line in text.splitlines() if line.strip()[:1].isdigit()]
    many = dataclasses.replace(statistics, histogram=np.full((3, 10), 123))
    assert max(map(len, str(many).splitlines())) <= 80  # ten classes
    assert rows == [
        ["0", "2", "1", "0.500", "2", "0", "0"],
        ["1", "3", "2", "0.167", "2", "1", "0"],
        ["2", "3", "1", "0.500", "0", "3", "0"],
    ]
    assert statistics.table(max_rows=2).caption == "first 2 of 3 clients"
    assert statistics.table(max_rows=2).row_count == 2


def test_the_heat_map_shows_the_histogram_and_is_saved(tmp_path):
    statistics = toy([0, 0, 1, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 2, 2, 2]).statistics()
    figure = data.heat_map(statistics, tmp_path / "map.png")
    np.testing.assert_array_equal(figure.axes[0].images[0].get_array(), statistics.histogram)
    assert (tmp_path / "map.png").read_bytes()[:4] == b"\x89PNG"


def test_many_classes_are_a_number_in_the_table():
    labels = np.arange(1000) % 100
    x = np.zeros((1000, 1), np.float32)
    federated = data.Dataset("toy", x, labels, x[:1], labels[:1], 100, data.as_is()).partition(data.iid(4))
    statistics = federated.statistics()
    assert statistics.histogram.shape == (4, 100)
    assert [column.header for column in statistics.table().columns] == ["client", "samples", "classes", "distance"]
    assert len(statistics.table(max_classes=100).columns) == 104


@pytest.mark.parametrize(("clients", "group"), [(500, 1), (501, 2), (1201, 3)])
def test_the_heat_map_leaves_no_client_out(clients, group):
    """A row is the mean of neighbours where clients are many, and the axis still counts clients."""
    histogram = np.random.default_rng(0).integers(0, 9, (clients, 4))
    figure = data.heat_map(data.PartitionStatistics("toy", histogram.sum(1), histogram))
    image = figure.axes[0].images[0]
    shown = np.asarray(image.get_array())
    assert len(shown) == -(-clients // group) <= 500
    np.testing.assert_allclose(shown[1], histogram[group : 2 * group].mean(0))
    np.testing.assert_allclose(shown[-1], histogram[group * (len(shown) - 1) :].mean(0))
    assert image.get_extent()[2] == len(shown) * group - 0.5
    assert figure.axes[0].get_ylim() == (clients - 0.5, -0.5)
    assert figure.axes[0].get_title() == (
        "samples per class" if group == 1 else f"samples per class, mean of {group} clients"
    )


def test_the_heat_map_can_go_into_axes_of_the_user():
    figure = Figure()
    left, _ = figure.subplots(1, 2)
    statistics = toy([0, 1], [0, 1]).statistics()
    assert data.heat_map(statistics, ax=left) is figure
    assert left.get_xlabel() == "class" and left.get_ylabel() == "client"


@pytest.mark.slow
def test_of_many_generated_clients_a_random_choice_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = data.synthetic(1, 1, 40, max_size=60, lazy=True)
    whole = lazy.statistics()
    monkeypatch.setattr(federated, "MOST_CLIENTS", 30)
    monkeypatch.setattr(federated, "_MOST_SAMPLES", 500)
    some = lazy.statistics()
    assert some.counted is not None and 500 - 60 < whole.sizes[some.counted].sum() <= 500
    np.testing.assert_array_equal(some.counted, np.unique(some.counted))
    np.testing.assert_array_equal(some.sizes, whole.sizes)
    np.testing.assert_array_equal(some.histogram, whole.histogram[some.counted])
    np.testing.assert_array_equal(some.counted, lazy.statistics().counted)
    assert some.summary()["labels_counted_of"] == f"{len(some.counted)} clients"
    assert f"labels counted of {len(some.counted)} clients" in " ".join(str(some).split())
    row = str(some.counted[0])
    assert some.table().columns[0]._cells[0] == row
    figure = data.heat_map(some)
    assert figure.axes[0].images[0].get_array().shape == (len(some.counted), 10)
    stored = data.synthetic(1, 1, 40, max_size=60).statistics()
    assert stored.counted is None
    np.testing.assert_array_equal(stored.histogram, whole.histogram)


def test_distances_are_taken_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    found = data.synthetic(1, 1, 40, max_size=60).statistics()
    expected = found.distances
    monkeypatch.setattr(statistics, "_PIECE", 7)
    np.testing.assert_array_equal(found.distances, expected)
