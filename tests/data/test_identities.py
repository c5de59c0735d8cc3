"""Who the clients are: ids that differ are never one client, and names stay with the data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jaxafl as afl
from jaxafl.data.identities import check_ids

X = np.zeros((6, 2), np.float32)
Y = np.array([0, 1, 0, 1, 0, 1])


def federated(ids: Any) -> afl.data.FederatedData:
    return afl.data.from_arrays(X, Y, ids, x_test=X[:2], y_test=Y[:2])


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ([1, "1", 2, 2, 2, 2], r"got both: integers \(entry 0 is 1\) and strings \(entry 1 is '1'\).*str\(one\)"),
        ((1, "1", 2, 2, 2, 2), "got both"),
        ([True, 1, 2, 2, 2, 2], "entry 0 is True"),
        ([b"a", "a", "b", "b", "b", "b"], "got both: bytes .* and strings"),
        (["a", float("nan"), "b", "b", "b", "b"], "entry 1 is nan"),
        ([1, None, 2, 2, 2, 2], "entry 1 is None"),
        ([1, 1.0, 2, 2, 2, 2], r"entry 1 is 1\.0"),
        (np.array([1.0, np.nan, 2, 2, 2, 2]), "got dtype float64, with 1 missing; leave out samples without a client"),
        (np.array([1.0, 1, 2, 2, 2, 2]), r"got dtype float64; whole numbers become integers by client_ids\.astype"),
    ],
)
def test_ids_of_several_kinds_are_refused(ids: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        federated(ids)


def test_ids_that_numpy_would_shorten_stay_apart() -> None:
    assert federated(["a", "a\0", "b", "b", "b", "b"]).num_clients == 3


@pytest.mark.parametrize(
    ("ids", "names"),
    [
        (["mercy", "st. mary", "mercy", "charité", "charité", "mercy"], ["charité", "mercy", "st. mary"]),
        ([30, 7, 7, 30, 100, 7], ["7", "30", "100"]),
        (np.array([b"z", b"a", b"a", b"z", b"a", b"a"]), ["a", "z"]),
        ([2**70, 1, 1, 1, 1, 1], ["1", str(2**70)]),
    ],
)
def test_clients_keep_the_names_of_their_ids(ids: Any, names: list[str]) -> None:
    data = federated(ids)
    assert data.client_names is not None and data.client_names.tolist() == names
    counts = [sum(str(one.decode() if isinstance(one, bytes) else one) == name for one in ids) for name in names]
    assert data.counts.tolist() == counts


def test_names_stay_through_what_is_made_of_the_data() -> None:
    data = federated(["a", "a", "b", "b", "c", "c"])
    for other in (data.with_validation(0.5), data.divided(2), data.owned_test(np.array([0, -1], np.int32))):
        assert other.client_names is not None and other.client_names.tolist() == ["a", "b", "c"]
    assert data.statistics().names is data.client_names
    assert "b " in str(data.statistics())


def test_users_of_a_dataset_name_its_clients() -> None:
    def clients(partition: Any, users: Any) -> Any:
        names = afl.data.Dataset("toy", X, Y, X, Y, 2, afl.data.as_is(), users).partition(partition).client_names
        return None if names is None else names.tolist()

    people = ["eve", "bob", "eve", "bob", "ann", "ann"]
    assert clients(afl.data.by_user(), people) == ["ann", "bob", "eve"]
    assert clients(afl.data.by_user(2), people) == ["ann", "bob"]
    assert clients(afl.data.by_user(), np.array([40, 40, 5, 5, 9, 9])) == ["5", "9", "40"]
    assert clients(afl.data.iid(2), people) is None
    assert clients(afl.data.iid_shared(2), people) is None
    assert clients(afl.data.iid(2), None) is None


def test_names_that_are_wrong_are_refused() -> None:
    data = federated(["a", "a", "b", "b", "c", "c"])
    with pytest.raises(ValueError, match=r"a name per client; got shape \(2,\) for 3"):
        afl.data.FederatedData(**{**vars(data), "client_names": ["a", "b"]})
    with pytest.raises(ValueError, match="must differ; 2 clients are called 'a'"):
        afl.data.FederatedData(**{**vars(data), "client_names": ["a", "b", "a"]})
    with pytest.raises(TypeError, match=r"users must be integers or strings.*got dtype float64"):
        afl.data.Dataset("toy", X, Y, X, Y, 2, afl.data.as_is(), np.arange(6.0))


def test_numbers_follow_the_order_of_the_ids() -> None:
    numbers, names = check_ids("toy", np.array(["b", "a", "b"]))
    assert (numbers.tolist(), names.tolist()) == ([1, 0, 1], ["a", "b"])


def test_shipped_clients_have_names() -> None:
    names = afl.data.femnist(3).client_names
    assert names is not None and len(set(names.tolist())) == 3 and all("f" in name for name in names.tolist())
