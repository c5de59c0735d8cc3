"""Checks that compared methods have the same data, without which their runs are not paired."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxafl.data import FederatedData
from jaxafl.options import UserError
from jaxafl.simulation import Simulation

if TYPE_CHECKING:  # xarray takes a third of a second to import, so it is when a result is made
    import xarray as xr

_FORM = {"source", "files", "form", "preprocessing"}  # differ between equal samples, so they must not be compared
_SHOWN = 4


def check_methods(methods: Mapping[str, Simulation]) -> None:
    """Raises `ValueError` if methods do not have the same clients, samples and held-out samples."""
    (first, one), *others = methods.items()
    for name, other in others:
        if one.data is not other.data and not _equal(one.data, other.data):
            _refuse(first, name, _differing(one.data.description, other.data.description) or "other samples")


def check_results(results: Mapping[str, xr.Dataset]) -> None:
    """Raises `ValueError` if the descriptions of the data differ between results."""
    described = {name: _description(result) for name, result in results.items()}
    first, base = next(iter(described.items()))
    for name, one in described.items():
        shared = base.keys() & one.keys() - _FORM
        if why := _differing({key: base[key] for key in shared}, {key: one[key] for key in shared}):
            _refuse(first, name, why)


def _refuse(first: str, name: str, why: str) -> None:
    raise UserError(
        f"compare: {first} and {name} have different data ({why}), so that their runs are no pairs: give all methods "
        'the same data. Data are compared by a sweep: afl.sweep(sim, {"data": [one, other], "seed": range(5)}, ...)'
    )


def _equal(one: FederatedData, other: FederatedData) -> bool:
    trees = [
        (it.counts, it.arrays, it.x_test, it.y_test, it.test_clients, it.validation, dict(it.test_sets))
        for it in (one, other)
    ]
    forms = [str(jax.tree.structure(tree)) for tree in trees]
    if forms[0] != forms[1] or one.num_classes != other.num_classes:
        return False
    equal = jax.tree.map(lambda a, b: np.array_equal(np.asarray(a), np.asarray(b)), *trees)
    return all(jax.tree.leaves(equal))


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
    found = [f"{key} {one.get(key)} and {other.get(key)}" for key in keys[:_SHOWN]]
    return ", ".join(found) + (", ..." if len(keys) > _SHOWN else "")


def _description(result: xr.Dataset) -> dict[str, Any]:
    try:
        found = json.loads(result.attrs.get("data", "{}"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
