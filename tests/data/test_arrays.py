"""Federated data from a user's arrays."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import jaxafl as afl
from jaxafl import data

X = np.arange(20, dtype=np.float64).reshape(10, 2)
Y = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0])
IDS = np.array(["b", "a", "b", "a", "b", "a", "b", "a", "b", "c"])


def test_clients_follow_sorted_ids_and_floats_become_float32():
    federated = data.from_arrays(X, Y, IDS, x_test=X[:3], y_test=Y[:3])
    assert federated.counts.tolist() == [4, 5, 1]
    assert federated.num_classes == 3
    x, y = federated.fetch(federated.arrays, 1, jnp.arange(5), jax.random.key(0))
    assert x.dtype == jnp.float32
    np.testing.assert_array_equal(x, X[IDS == "b"])
    np.testing.assert_array_equal(y, Y[IDS == "b"])


def test_held_out_samples_are_a_share_of_each_client_and_not_trained_on():
    ids = np.repeat([0, 1], [10, 20])
    x = np.arange(30, dtype=np.float32)[:, None]
    y = np.zeros(30, int)
    federated = data.from_arrays(x, y, ids, test_fraction=0.3, seed=5)
    assert federated.counts.tolist() == [7, 14]
    assert sorted(np.concatenate([federated.arrays["x"], federated.x_test])[:, 0]) == list(range(30))
    assert (federated.x_test < 10).sum() == 3
    again = data.from_arrays(x, y, ids, test_fraction=0.3, seed=5)
    np.testing.assert_array_equal(federated.x_test, again.x_test)
    assert not np.array_equal(federated.x_test, data.from_arrays(x, y, ids, test_fraction=0.3, seed=6).x_test)


def test_samples_may_be_several_arrays():
    tokens = {"input_ids": np.arange(20).reshape(10, 2), "attention_mask": np.ones((10, 2), np.uint8)}
    federated = data.from_arrays(tokens, Y, IDS, test_fraction=0.5, seed=1)
    assert federated.counts.tolist() == [2, 3, 1]
    found = np.concatenate([federated.arrays["x"]["input_ids"], federated.x_test["input_ids"]])
    np.testing.assert_array_equal(np.sort(found[:, 0]), np.arange(0, 20, 2))
    x, y = federated.fetch(federated.arrays, 1, jnp.arange(3), jax.random.key(0))
    rows = np.asarray(x["input_ids"])[:, 0] // 2
    np.testing.assert_array_equal(y, Y[rows])
    assert set(IDS[rows]) == {"b"} and x["attention_mask"].dtype == jnp.uint8
    with pytest.raises(ValueError, match=r"one entry per sample; got shapes \(9, 2\), \(10, 2\)"):
        data.from_arrays(tokens | {"attention_mask": np.ones((9, 2))}, Y, IDS, test_fraction=0.5)
    with pytest.raises(TypeError, match=r"x\['input_ids'\] must be a numeric array"):
        data.from_arrays({"input_ids": ["a"] * 10}, Y, IDS, test_fraction=0.5)


def test_bytes_are_cast_and_tokens_are_left_alone():
    def preprocessed(dtype):
        x = np.full((10, 2), 7, dtype)
        return data.from_arrays(x, Y, IDS, x_test=x, y_test=Y).example[0]

    assert preprocessed(np.uint8).dtype == np.float32 and preprocessed(np.uint8)[0, 0] == 7.0
    assert preprocessed(np.int32).dtype == np.int32


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((X, Y, IDS), {}, ValueError, "either x_test and y_test, or test_fraction"),
        ((X, Y, IDS), {"x_test": X}, ValueError, "either x_test and y_test, or test_fraction"),
        ((X, Y, IDS), {"x_test": X, "y_test": Y, "test_fraction": 0.1}, ValueError, "either x_test"),
        ((X, Y, IDS[:9]), {"test_fraction": 0.3}, ValueError, "one entry per sample"),
        ((X, Y, IDS), {"test_fraction": 1.5}, ValueError, r"test_fraction must be < 1, got 1\.5"),
        ((X, Y, IDS), {"test_fraction": 0.01}, ValueError, "holds out no sample"),
        ((X / 0.5 + np.nan, Y, IDS), {"test_fraction": 0.3}, ValueError, "NaN"),
        (
            (X, Y + 0.5, IDS),
            {"test_fraction": 0.3, "num_classes": 3},
            TypeError,
            "if num_classes is given.*leave num_cl",
        ),
        ((X, Y * 1.0, IDS), {"test_fraction": 0.3, "num_classes": 3}, TypeError, r"write y\.astype\(int\)"),
        (
            (X, np.where(Y == 1, np.nan, Y), IDS),
            {"test_fraction": 0.3},
            ValueError,
            r"of the training targets are NaN.*first in sample \d",
        ),
        ((X, [*Y[:8] * 0.5, None, 1], IDS), {"test_fraction": 0.3}, TypeError, "float targets; got dtype object"),
        (
            (X, Y * 0.5, IDS),
            {"x_test": X, "y_test": Y},
            ValueError,
            r"targets are float32\[\] and test targets int32\[\]",
        ),
        (
            (X, np.eye(3)[Y], IDS),
            {"x_test": X, "y_test": Y * 1.0},
            ValueError,
            r"float32\[3\] and test targets float32\[\]",
        ),
        ((X, Y * 10**12, IDS), {"test_fraction": 0.3}, ValueError, r"beyond int32.*y\.astype\(float\)"),
        ((X, (Y * 0.5)[:9], IDS), {"test_fraction": 0.3}, ValueError, "one entry per sample"),
        ((X, 0.5, IDS), {"test_fraction": 0.3}, ValueError, "one entry per sample"),
        ((X, Y > 0, IDS), {"test_fraction": 0.3}, TypeError, r"dtype bool\. Write y\.astype\(int\)"),
        ((X, Y[:, None], IDS), {"test_fraction": 0.3}, ValueError, r"write y\[:, 0\]"),
        ((X, Y - 1, IDS), {"test_fraction": 0.3}, ValueError, r"from -1 to 1, outside 0\.\.1.*without a label \(-1"),
        ((X.astype(str), Y, IDS), {"test_fraction": 0.3}, TypeError, "numeric"),
        ((X, Y.astype(str), IDS), {"test_fraction": 0.3}, TypeError, "training labels must be integer classes"),
        ((X, Y, IDS), {"x_test": X, "y_test": Y.astype(str)}, TypeError, "test labels must be integer classes"),
        ((X, Y, IDS), {"test_fraction": 0.3, "num_classes": "3"}, TypeError, "num_classes must be a whole.*'3'"),
        ((X, Y, IDS), {"test_fraction": 0.3, "num_classes": 3.7}, TypeError, r"num_classes must be a whole.*3\.7"),
        ((X, Y, IDS), {"test_fraction": "a"}, TypeError, "test_fraction must be a number, got 'a'"),
        ((X, Y, IDS), {"test_fraction": 0.3, "seed": "a"}, TypeError, "seed must be a whole number, got 'a'"),
        ((X, Y, [*IDS[:9], None]), {"test_fraction": 0.3}, TypeError, "integers or strings.*entry 9 is None"),
        ((X, Y, np.array([*IDS[:9], 4], object)), {"test_fraction": 0.3}, TypeError, "all of one kind; got both"),
        ((X, Y, None), {"test_fraction": 0.3}, TypeError, "integers or strings"),
        ((X, Y, np.arange(10.0)), {"test_fraction": 0.3}, TypeError, "integers or strings.*float64"),
        ((X, Y, np.full(10, np.nan)), {"test_fraction": 0.3}, TypeError, "integers or strings"),
        ((X[:0], Y[:0], IDS[:0]), {"test_fraction": 0.2}, ValueError, "there are no samples"),
        (([], [], []), {"test_fraction": 0.2}, ValueError, "there are no samples"),
        ((X * 1e300, Y, IDS), {"test_fraction": 0.3}, ValueError, "19 values of x overflow float32.*scale"),
        (([[1], [1, 2]], Y, IDS), {"test_fraction": 0.3}, ValueError, "x must be .*rows have one length"),
        ((X, Y, IDS), {"test_fraction": 0.3, "num_classes": 2}, ValueError, "outside 0..1"),
        (
            (pd.DataFrame(X), pd.Series(Y)[::-1], IDS),
            {"test_fraction": 0.3},
            ValueError,
            r"x and y have the same index in different orders.*y\.loc\[x\.index\]",
        ),
    ],
)
def test_invalid_input_raises_an_explanation(arguments, options, error, message):
    with pytest.raises(error, match=message):
        data.from_arrays(*arguments, **options)


def test_tables_whose_rows_have_equal_or_other_labels_are_combined_by_position():
    table, shuffled = pd.DataFrame(X), np.random.default_rng(0).permutation(10)
    for y in (pd.Series(Y, table.index), pd.Series(Y, np.arange(10, 20))):
        assert data.from_arrays(table, y, IDS, x_test=X, y_test=Y).counts.tolist() == [4, 5, 1]
    found = data.from_arrays(table.loc[shuffled], pd.Series(Y).loc[shuffled], IDS, x_test=X, y_test=Y)
    assert found.arrays["y"].tolist() == Y[shuffled].tolist()


def test_what_users_do_with_their_arrays_afterwards_changes_neither_data_nor_parts():
    def made():
        x, y, rates, seconds = X.astype(np.float32), Y * 0.5, np.ones(3), np.ones((3, 2))
        given = data.from_arrays(x, y, IDS, x_test=x, y_test=y)
        given = given.with_test_sets({"other": (x, y)})
        pooled = data.Dataset("pooled", x, y, x, y, None, data.cast()).partition(data.iid(3))
        client = afl.Client(learning_rate=rates, steps=1, proximal=rates)
        clock = afl.clock.free_running(concurrency=3, durations=afl.clock.constant(rates), weights=rates)
        parts = client, clock, afl.clock.recorded(seconds)
        return (x, y, rates, seconds), [given.arrays, given.test_sets, pooled.arrays, pooled.test_sets, parts]

    (_, expected), (arrays, found) = made(), made()
    for array in arrays:
        array[:] = 7
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_arrays_of_clients_and_of_their_dataset_are_read_only():
    """A change in place after the first run would not reach the copies on the device."""
    x, y = np.arange(24.0, dtype=np.float32).reshape(12, 2), np.arange(12) % 3
    dataset = afl.data.Dataset("points", x, y, x[:4].copy(), y[:4].copy(), 3, afl.data.cast())
    data = dataset.partition(afl.data.iid(3)).with_validation(0.25).with_test_sets({"moved": (x + 1, y)})
    held = data.counts, data.arrays, data.x_test, data.y_test, data.validation, [*data.test_sets.values()]
    for array in (*jax.tree.leaves(held), dataset.x, dataset.y, dataset.x_test):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    assert x.flags.writeable and y.flags.writeable


def test_numbers_that_overflow_are_refused_without_a_warning_of_numpy(recwarn):
    with pytest.raises(ValueError, match=r"x_test overflow float32.*-1e\+39"):
        data.from_arrays(X, Y, IDS, x_test=X[:3] - 1e39, y_test=Y[:3])
    assert not recwarn.list


@pytest.mark.parametrize("dtype", [object, np.dtypes.StringDType(), "S1"])
def test_ids_of_a_table_are_strings_too(dtype):
    federated = data.from_arrays(X, Y, IDS.astype(dtype), x_test=X[:3], y_test=Y[:3])
    assert federated.counts.tolist() == [4, 5, 1]


def test_the_number_of_classes_is_an_int_however_it_is_given():
    federated = data.from_arrays(X, Y, IDS, test_fraction=0.5, num_classes=np.int64(5))
    assert type(federated.num_classes) is int and federated.num_classes == 5


def test_an_invalid_partitioner_raises():
    dataset = data.Dataset("toy", X, Y, X, Y, 3, data.cast())
    with pytest.raises(TypeError, match=r"partitioner must be a partitioner, for example jaxafl\.data\.iid\(10\)"):
        dataset.partition(data.iid)
    with pytest.raises(TypeError, match="seed must be a whole number, got 'a'"):
        dataset.partition(data.iid(2), seed="a")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"scale": "a"}, TypeError, "normalise: scale must be a number, got 'a'"),
        ({"scale": 0}, ValueError, "normalise: scale must be > 0, got 0"),
        ({"std": [1.0, 0.0]}, ValueError, "std > 0"),
        ({"mean": None}, TypeError, "normalise: mean must be a number, got None"),
        ({"mean": [0.5, float("nan")]}, ValueError, "finite"),
    ],
)
def test_a_normalisation_that_cannot_be_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        data.normalise(**options)


def test_with_x64_doubles_stay_doubles():
    with jax.enable_x64(True):
        federated = data.from_arrays(X / 3 * 1e60, Y, IDS, x_test=X[:3] / 3, y_test=Y[:3])
        x, _ = federated.fetch(federated.arrays, 1, jnp.arange(5), jax.random.key(0))
        single = data.from_arrays(X.astype(np.float32), Y, IDS, x_test=X[:3].astype(np.float32), y_test=Y[:3])
    assert federated.arrays["x"].dtype == federated.x_test.dtype == x.dtype == np.float64
    np.testing.assert_array_equal(x, (X / 3 * 1e60)[IDS == "b"])
    assert federated.description["preprocessing"] == "float64"
    assert single.arrays["x"].dtype == np.float32
    usual = data.from_arrays(X, Y, IDS, x_test=X[:3], y_test=Y[:3])
    assert usual.arrays["x"].dtype == np.float32 and usual.description["preprocessing"] == "float32"


def test_a_regression_reads_its_targets_from_the_samples():
    x = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)
    samples, nothing = {"x": x, "target": x @ np.array([1.0, -2.0], np.float32)}, np.zeros(60, int)
    federated = data.from_arrays(samples, nothing, np.arange(60) % 3, test_fraction=0.2)

    def squared(params, batch, key):
        return jnp.square(batch.x["x"] @ params - batch.x["target"])

    model = afl.models.from_functions(lambda key, batch: jnp.zeros(2), squared, name="linear")
    client = afl.Client(learning_rate=0.1, steps=4, batch_size=8)
    losses = afl.Simulation(federated, model, client, afl.server.fedavg(), afl.clock.synchronous()).run(10).loss.values
    assert losses[0] > 1 and losses[-1] < 0.01


def test_samples_that_are_not_finite_are_refused_in_a_dataset_too():
    with pytest.raises(ValueError, match="toy: test sample 1 is NaN or infinite"):
        data.Dataset("toy", X, Y, np.where(np.arange(10)[:, None] == 1, np.inf, X), Y, 3, data.cast())


@pytest.mark.parametrize("beyond", [np.int64(-(2**40)), np.uint32(2**31), np.uint64(2**63)])
def test_integers_that_int32_does_not_hold_are_refused(beyond):
    with pytest.raises(
        ValueError, match=r"training samples hold -?[\d,]+, and integers are int32, up to 2,147,483,647"
    ):
        data.from_arrays(np.full((6, 2), beyond), Y[:6], [0] * 6, test_fraction=0.3)


def test_masked_values_are_refused():
    masked = np.ma.masked_array(X, np.eye(*X.shape))
    for arguments in ((masked, Y, IDS), (X, np.ma.masked_array(Y, Y == 0), IDS)):
        with pytest.raises(ValueError, match=r"masked values in .*remove or replace them first"):
            data.from_arrays(*arguments, test_fraction=0.3)


@pytest.mark.parametrize("part", ["training", "test"])
def test_floats_that_are_scaled_already_are_not_divided_by_255_again(part: str) -> None:
    pixels = np.linspace(0, 255, 2 * 12, dtype=np.float32).reshape(2, 2, 2, 3)
    scaled, labels = pixels / 255, np.array([0, 1])
    x, x_test = (scaled, pixels) if part == "training" else (pixels, scaled)
    with pytest.raises(ValueError, match=rf"{part} samples are floats from 0 to 1, .*normalise\(1\.0"):
        data.Dataset("images", x, labels, x_test, labels, 2, data.normalise())
    data.Dataset("images", scaled, labels, scaled, labels, 2, data.normalise(1.0))
    data.Dataset("images", pixels, labels, pixels, labels, 2, data.normalise())


def test_a_table_of_several_types_says_how_to_convert_it():
    table = pd.DataFrame({"height": [1.5, 1.6, 1.7, 1.8], "smokes": [True, False, True, False]})
    with pytest.raises(TypeError, match=r"x\.astype\(float\)"):
        data.from_arrays(table, [0, 1, 0, 1], [0, 0, 1, 1], test_fraction=0.5)
    assert data.from_arrays(table.astype(float), [0, 1, 0, 1], [0, 0, 1, 1], test_fraction=0.5).num_clients == 2


def test_several_inputs_are_a_dict():
    with pytest.raises(ValueError, match="x is a tuple of arrays of several shapes; give several inputs as a dict"):
        data.from_arrays((np.zeros((4, 2)), np.zeros(4)), [0, 1, 0, 1], [0, 0, 1, 1], test_fraction=0.5)


def test_a_pooled_dataset_takes_lists_and_tables_and_refuses_what_is_no_number():
    x, y = [[1.0, 2.0], [3.0, 4.0]], [0, 1]

    def pooled(samples, tested=x):
        return data.Dataset("d", samples, y, tested, y, 2, data.cast())

    for one in (x, pd.DataFrame(x), jnp.asarray(x, float)):
        np.testing.assert_array_equal(pooled(one, one).partition(data.iid(2)).arrays["x"], x)
    for wrong in (np.array(x, object), np.array(x, complex), [["a", "b"]] * 2):
        with pytest.raises(TypeError, match="x must be a numeric array"):
            pooled(wrong)
    with pytest.raises(ValueError, match="training sample 1 is NaN or infinite, or too large for float32"):
        pooled(np.array([[1.0, 2.0], [1e39, 4.0]]))
    split = pooled(x).partition(data.iid(2))
    with pytest.raises(ValueError, match=r"x_test has \[1\] samples and y_test 2 targets"):
        dataclasses.replace(split, x_test=split.x_test[:1])
