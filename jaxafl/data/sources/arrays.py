"""Federated datasets from arrays."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from jaxafl.data.dataset import Dataset, Source
from jaxafl.data.federated import FederatedData
from jaxafl.data.partition.alike import by_user
from jaxafl.data.partition.base import rows_of_each
from jaxafl.data.preprocessing import Preprocessing, as_is, cast
from jaxafl.data.targets import as_samples, as_targets, numbered
from jaxafl.options import UserError, as_array, check_number, check_whole, kept, named
from jaxafl.readers.pictures import is_picture, pixels

_MISSING = ("None", "nan", "<NA>", "NaT")


@named
def from_arrays(
    x: ArrayLike | Mapping[str, ArrayLike],
    y: ArrayLike,
    client_ids: ArrayLike,
    *,
    x_test: ArrayLike | Mapping[str, ArrayLike] | None = None,
    y_test: ArrayLike | None = None,
    test_client_ids: ArrayLike | None = None,
    test_fraction: float | None = None,
    test: Mapping[str, tuple[Any, ArrayLike]] | None = None,
    num_classes: int | None = None,
    preprocessing: Preprocessing | None = None,
    name: str = "arrays",
    seed: int = 0,
) -> FederatedData:
    """Constructs federated data from arrays with one client id per sample.

    The test set is either given (`x_test`, `y_test`) or held out: `floor(test_fraction * n_k)` samples of each client,
    drawn without replacement. To split arrays that have no client ids, build a `Dataset` and partition it.

    Args:
        x: samples `[n, ...]`, or a dict of such arrays (the tokens of `jaxafl.models.bert`). Floats are stored as
            float32; float64 is kept if `jax_enable_x64` is set. Integers are kept. A list of Pillow images is
            converted to pixels as in `from_huggingface`.
        y: targets of one of three kinds. Integers `[n]` are classes in `[0, num_classes)`; words are numbered in sorted
            order. Integers or bools `[n, L]`
            are several labels per sample (0 or 1 each), or a label per token; cross-entropies ignore negative ones,
            which are padding. Floats `[n]` or `[n, d]` are targets of a regression. The last two need a loss that
            fits, for example `from_linen(net, loss="squared_error")`.
        client_ids: client of each sample `[n]`, integers or strings; `numpy.unique` numbers them in sorted order, and
            they become `client_names`.
        x_test: test samples `[n_test, ...]`.
        y_test: test targets `[n_test, ...]`, of the same kind.
        test_client_ids: client of each test sample `[n_test]`, one of those in `client_ids`, for evaluations per
            client; `None` if test samples belong to no client.
        test_fraction: share of each client's samples held out for testing, in (0, 1), instead of `x_test` and `y_test`.
        test: several test sets, name -> (x, y), instead of `x_test` and `y_test`. The first one gives `accuracy`; see
            `FederatedData.with_test_sets`.
        num_classes: number of classes; by default one more than the largest label, test labels included. `None` for
            floats.
        preprocessing: cast and normalisation in the step. By default, float and uint8 samples are cast to JAX's float
            type (float32, or float64 with `jax_enable_x64`) without scaling. Other integers (tokens), and the arrays of
            a dict, are not changed.
        name: name of the dataset.
        seed: seed of the held-out test samples.

    Returns:
        The federated dataset.

    Raises:
        ValueError: shapes disagree, there are no samples, samples or targets are not finite or overflow the float type
            in which they are stored, tables of pandas have one index in different orders, or the test set is not given
            in exactly one way.
        TypeError: samples or targets are not numbers, or an option has another type.

    Examples:
        >>> import numpy as np
        >>> import jaxafl as afl
        >>> x, y = np.zeros((6, 28, 28, 1), np.uint8), np.array([0, 1, 2, 0, 1, 2])
        >>> data = afl.data.from_arrays(x, y, ["ann", "ann", "ann", "ann", "bob", "bob"], test_fraction=0.5)
        >>> data.num_clients, data.num_classes, data.counts.tolist(), len(data.y_test)
        (2, 3, [2, 1], 3)
        >>> data.client_names.tolist()
        ['ann', 'bob']
    """
    _check_order(name, x=x, y=y, client_ids=client_ids)
    _check_order(name, x_test=x_test, y_test=y_test)
    others = dict(test or {})
    y, y_test, *further = numbered(y, y_test, *(labels for _, labels in others.values()))
    others = {key: (held, labels) for (key, (held, _)), labels in zip(others.items(), further, strict=True)}
    samples, labels = _samples(name, x), as_targets(name, y)  # before a split, which would give samples other numbers
    ids = as_array(name, "client_ids", client_ids)
    known = ids == ids if ids.dtype.kind != "O" else [isinstance(one, str) or str(one) not in _MISSING for one in ids]
    if not np.all(known):
        raise UserError(f"{name}: client_ids has none for sample {np.argmin(known)}; expected one. Leave it out")
    names, users = np.unique(ids, return_inverse=True)
    lengths = [len(leaf) for leaf in jax.tree.leaves(samples)]
    if {*lengths} != {len(labels)} or users.shape != (len(labels),) or not len(labels):
        raise UserError(
            f"{name}: x has {lengths} samples, y {len(labels)}, client_ids {users.shape}; expected one number, above 0"
        )
    first = next(iter(others), "")
    if [x_test is not None or y_test is not None, test_fraction is not None, bool(others)].count(True) != 1:
        raise UserError(f"{name}: give one test set: x_test and y_test, or test_fraction=0.2, or test=...")
    if others:
        x_test, y_test = others.pop(first)
    source: Source = {"source": "arrays"}
    test_clients = None
    if test_fraction is None:
        held_out, held_out_labels = _samples(f"{name}, test set", x_test), as_targets(f"{name}, test set", y_test)
        if test_client_ids is not None:
            test_clients = _owners(name, names, as_array(name, "test_client_ids", test_client_ids), held_out_labels)
    else:
        parts = hold_out(name, users, test_fraction, seed, (samples, labels, users))
        (samples, labels, users), (held_out, held_out_labels, owners) = parts
        test_clients = owners.astype(np.int32)
        source |= {"test_fraction": float(test_fraction), "test_seed": int(seed)}
    if preprocessing is None:
        scaled = isinstance(samples, np.ndarray) and (samples.dtype == np.uint8 or samples.dtype.kind == "f")
        preprocessing = cast() if scaled or _are_pictures(x) else as_is()
    dataset = Dataset(
        *(name, samples, labels, held_out, held_out_labels, num_classes, preprocessing),
        users=users,
        source=source,
        user_names=names.astype(np.str_),
    )
    data = dataset.partition(by_user()).owned_test(test_clients)
    return data.with_test_sets(others, first) if others else data


def from_clients(
    clients: Mapping[Any, tuple[Any, Any]] | Sequence[tuple[Any, Any]],
    test: Mapping[Any, tuple[Any, Any]] | Sequence[tuple[Any, Any]] | None = None,
    **options: Any,
) -> FederatedData:
    """Constructs federated data from the samples of each client.

    Args:
        clients: `{name: (x, y)}` or a list of pairs `(x, y)`, whose names are 0, 1, ...; x and y as in `from_arrays`.
        test: test samples of clients in the same form; `None` with one of the options of `from_arrays` for it.
        **options: options of `from_arrays`, such as `test_fraction=0.2`.

    Raises:
        ValueError, TypeError: as for `from_arrays`.

    Examples:
        >>> import numpy as np
        >>> import jaxafl as afl
        >>> own = {"ann": (np.zeros((4, 2)), [0, 1, 0, 1]), "bob": (np.ones((2, 2)), [1, 1])}
        >>> data = afl.data.from_clients(own, test=own)
        >>> data.client_names.tolist(), data.counts.tolist(), data.test_clients.tolist()
        (['ann', 'bob'], [4, 2], [0, 0, 0, 0, 1, 1])
    """
    x, y, owners = _joined(clients, owns=True)
    if test is not None:
        x_test, y_test, test_owners = _joined(test)
        options = {"x_test": x_test, "y_test": y_test, "test_client_ids": test_owners} | options
    return from_arrays(x, y, owners, **options)


def _joined(clients: Any, owns: bool = False) -> tuple[Any, Any, np.ndarray]:
    """Returns the samples and targets of all clients, and the name of the client of each sample.

    With `owns` every client must have samples, since one without them would be no client.
    """
    named_clients = clients if isinstance(clients, Mapping) else dict(enumerate(clients))
    x, y = zip(*named_clients.values(), strict=True)
    lengths = [len(one) for one in y]
    if owns and 0 in lengths:
        raise UserError(f"from_clients: client {[*named_clients][lengths.index(0)]!r} has no samples; leave it out")

    def joined(*parts: Any) -> np.ndarray:
        arrays = [as_array("from_clients", "the samples of a client", one) for one in parts]
        if len({one.shape[1:] for one in arrays}) > 1:
            shapes = ", ".join(sorted({str([*one.shape[1:]]) for one in arrays})[:5])
            raise UserError(f"from_clients: samples have the shapes {shapes}; expected one. Pad them to one length")
        return np.concatenate(arrays)

    samples = jax.tree.map(joined, *x, is_leaf=lambda one: not isinstance(one, Mapping))
    return samples, joined(*y), np.repeat(np.asarray([*named_clients]), lengths)


def _owners(name: str, names: np.ndarray, given: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns the index of the client of each test sample, int32 [n_test]."""
    known = np.isin(given, names)
    if given.shape != (len(labels),) or not known.all():
        unknown = f", and {given[~known][0]!r} is none of client_ids" if not known.all() else ""
        raise UserError(
            f"{name}: test_client_ids has shape {given.shape}{unknown}; expected ({len(labels)},), a known client for "
            "each test sample"
        )
    return np.searchsorted(names, given).astype(np.int32)


def hold_out(name: str, users: np.ndarray, fraction: float, seed: int, arrays: Any) -> tuple[Any, Any]:
    """Splits arrays into the kept rows and ⌊fraction · n_k⌋ rows of each client, drawn without replacement.

    Args:
        name: name of the dataset, for messages.
        users: int [n], the client of each sample.
        fraction: share of the samples, in (0, 1).
        seed: seed of the draw.
        arrays: a pytree of arrays [n, ...].
    """
    check_number(name, "test_fraction", fraction, above=0, below=1)
    rng = np.random.default_rng(check_whole(name, "seed", seed, least=0, most=None))
    test = np.zeros(len(users), bool)
    for rows in rows_of_each(users):
        test[rng.choice(rows, int(fraction * len(rows)), replace=False)] = True
    if not test.any():
        raise UserError(f"{name}: test_fraction={fraction} holds out no sample of any client. Use a larger one")
    return jax.tree.map(lambda leaf: leaf[~test], arrays), jax.tree.map(lambda leaf: leaf[test], arrays)


def _samples(owner: str, x: Any) -> Any:
    """Returns samples as they are stored; they are copied unless they are read-only."""
    if _are_pictures(x):
        return kept(pixels(owner, x))
    return jax.tree.map(kept, as_samples(owner, x if isinstance(x, Mapping) else as_array(owner, "x", x)))


def _check_order(name: str, **columns: Any) -> None:
    """Raises `ValueError` if tables of pandas have the same rows in different orders: they are combined by position."""
    tables = [(key, one) for key, one in columns.items() if hasattr(one, "iloc") and hasattr(one, "index")]
    for (key, one), (other_key, other) in itertools.pairwise(tables):
        if len(one) == len(other) and not one.index.equals(other.index) and set(one.index) == set(other.index):
            raise UserError(
                f"{name}: {key} and {other_key} have the same index in different orders, and are combined by position. "
                f"Write {other_key}.loc[{key}.index] to combine them by index, or {other_key}.to_numpy()"
            )


def _are_pictures(x: Any) -> bool:
    """Returns True if samples are a list, an array or a table column of Pillow images."""
    listed = isinstance(x, list | tuple) or getattr(getattr(x, "dtype", None), "kind", "") == "O"
    return listed and len(x) > 0 and is_picture(next(iter(x)))
