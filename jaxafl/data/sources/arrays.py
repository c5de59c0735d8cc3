"""Federated datasets from arrays."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from numpy.typing import ArrayLike

from jaxafl.data.dataset import Dataset, Source
from jaxafl.data.federated import FederatedData
from jaxafl.data.partition.alike import by_user
from jaxafl.data.partition.base import rows_of_each
from jaxafl.data.preprocessing import Preprocessing, as_is, cast
from jaxafl.data.targets import as_samples, as_targets, numbered
from jaxafl.options import UserError, as_array, check_number, check_whole, kept, named, shown
from jaxafl.readers.pictures import is_picture, pixels

Half: TypeAlias = tuple[Any, np.ndarray, np.ndarray | None]
"""Samples, targets, and the client of each sample `[n]`, if samples have clients."""


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
    lengths = [len(leaf) for leaf in jax.tree.leaves(samples)]
    if {*lengths} != {len(labels)} or ids.shape != (len(labels),) or not len(labels):
        raise UserError(
            f"{name}: x has {lengths} samples, y {len(labels)}, client_ids {ids.shape}; expected one number, above 0"
        )
    first = next(iter(others), "")
    if [x_test is not None or y_test is not None, test_fraction is not None, bool(others)].count(True) != 1:
        raise UserError(f"{name}: give one test set: x_test and y_test, or test_fraction=0.2, or test=...")
    if others:
        x_test, y_test = others.pop(first)
    halves: list[Half] = [(samples, labels, ids)]
    if test_fraction is None:
        held_out, held_out_labels = _samples(f"{name}, test set", x_test), as_targets(f"{name}, test set", y_test)
        owners = None if test_client_ids is None else as_array(name, "test_client_ids", test_client_ids)
        if owners is not None:
            _check_owners(name, ids, owners, held_out_labels)
        halves.append((held_out, held_out_labels, owners))
    if preprocessing is None and _are_pictures(x):
        preprocessing = cast()
    data = from_halves(name, halves, test_fraction, seed, num_classes, preprocessing, {"source": "arrays"})
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
    for client, pair in named_clients.items():
        sizes: set[int] = set()
        if isinstance(pair, tuple | list) and len(pair) == 2:
            sizes = {*map(len, jax.tree.leaves(dict(enumerate(pair)), is_leaf=_is_array))}
        if len(sizes) != 1 or (owns and 0 in sizes):
            raise UserError(
                f"from_clients: client {client!r} has {shown(pair)}; expected a pair (x, y) with equally many samples "
                "and labels, at least one. A test set that belongs to no client is given as x_test= and y_test="
            )
    x, y = zip(*named_clients.values(), strict=True)

    def joined(*parts: Any) -> np.ndarray:
        arrays = [as_array("from_clients", "the samples of a client", one) for one in parts]
        if len(shapes := {one.shape[1:] for one in arrays}) > 1:
            raise UserError(f"from_clients: samples have the shapes {shown([*shapes])}; expected one. Pad them to one")
        return np.concatenate(arrays)

    samples = jax.tree.map(joined, *x, is_leaf=_is_array)
    return samples, joined(*y), np.repeat(np.asarray([*named_clients]), [*map(len, y)])


def _is_array(one: Any) -> bool:
    return not isinstance(one, Mapping)


def _check_owners(name: str, ids: np.ndarray, given: np.ndarray, labels: np.ndarray) -> None:
    """Raises `ValueError` unless every test sample has a client."""
    strangers = {*np.ravel(given).tolist()} - {*ids.tolist()}
    if given.shape != labels.shape[:1] or strangers:
        unknown = f", and {strangers.pop()!r} is none of client_ids" if strangers else ""
        raise UserError(
            f"{name}: test_client_ids has shape {given.shape}{unknown}; expected ({len(labels)},), a known client for "
            "each test sample"
        )


def from_halves(
    name: str,
    halves: Sequence[Half],
    test_fraction: float | None,
    seed: int,
    num_classes: int | None,
    preprocessing: Preprocessing | None,
    source: Source,
) -> Any:
    """Returns the `Dataset` of a training and a test set, split by client if training samples have clients.

    Test samples of clients without training samples belong to none.

    Args:
        name: name of the dataset.
        halves: training and test set; the training set alone with a fraction.
        test_fraction: share of each client's samples to hold out, in (0, 1); `None` if there is a test set.
        seed: seed of the held-out samples.
        num_classes, source: fields of the `Dataset`.
        preprocessing: that of the `Dataset`; by default, floats and uint8 are cast, and others are not changed.
    """
    import pandas

    ids = halves[0][2]
    if ids is not None and np.any(missing := pandas.isna(ids)):
        raise UserError(f"{name}: client_ids has none for sample {np.argmax(missing)}; expected one. Leave it out")
    if test_fraction is not None:
        halves = _held_out(name, halves[0], test_fraction, seed)
        source = source | {"test_fraction": float(test_fraction), "test_seed": int(seed)}
    (x, y, ids), (x_test, y_test, test_ids) = halves
    if preprocessing is None:
        scaled = isinstance(x, np.ndarray) and (x.dtype == np.uint8 or x.dtype.kind == "f")
        preprocessing = cast() if scaled else as_is()
    pooled = Dataset(name, x, y, x_test, y_test, num_classes, preprocessing, ids, source)
    if ids is None:
        return pooled
    client = {one: number for number, one in enumerate(np.unique(ids).tolist())}
    owners = None
    if test_ids is not None:
        owners = np.array([client.get(one, -1) for one in test_ids.tolist()], np.int32)
    return pooled.partition(by_user()).owned_test(owners)


def _held_out(name: str, half: Half, fraction: float, seed: int) -> list[Half]:
    """Splits samples into the kept ones and ⌊fraction · n_k⌋ of each client, drawn without replacement."""
    check_number(name, "test_fraction", fraction, above=0, below=1)
    rng = np.random.default_rng(check_whole(name, "seed", seed, least=0, most=None))
    test = np.zeros(len(half[1]), bool)
    for rows in rows_of_each(test if half[2] is None else half[2]):
        test[rng.choice(rows, int(fraction * len(rows)), replace=False)] = True
    if not test.any():
        raise UserError(f"{name}: test_fraction={fraction} holds out no sample of any client. Use a larger one")
    return [jax.tree.map(lambda leaf, chosen=chosen: leaf[chosen], half) for chosen in (~test, test)]


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
