"""One dimension for clients, `population`, with their names: quantities per client can be combined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from jaxafl.data import FederatedData

if TYPE_CHECKING:  # xarray takes a third of a second to import, so it is when a result is made
    import xarray as xr

NAMES = "client_name"
_SOME = "held_out_client"  # dimension of those that are evaluated, as the engine and files of version 0.2.0 have it


def with_clients(dataset: xr.Dataset, data: FederatedData) -> xr.Dataset:
    """Returns a result with the clients' names, and metrics of single clients along `population`."""
    coords = {"population": np.arange(data.num_clients)}
    if _SOME in dataset.dims:
        owners = data.owners
        dataset = dataset.assign(client_samples=(_SOME, owners.samples)).assign_coords({_SOME: owners.clients})
    found = along_population(dataset.assign_coords(coords))
    return found if data.client_names is None else found.assign_coords({NAMES: ("population", data.client_names)})


def along_population(dataset: xr.Dataset) -> xr.Dataset:
    """Returns a result whose metrics of single clients lie along `population`, NaN for clients without samples of
    their own (0 for `client_samples`); others as they are."""
    if _SOME not in dataset.dims:
        return dataset
    own = dataset[[name for name, values in dataset.variables.items() if _SOME in values.dims]]
    own = own.drop_vars([name for name in own.coords if _SOME not in own[name].dims]).rename({_SOME: "population"})
    if "population" in dataset.coords:
        own = own.reindex(population=dataset["population"], fill_value={"client_samples": 0} | _nan_of(own))
    return dataset.drop_dims(_SOME).merge(own, combine_attrs="override").assign_attrs(dataset.attrs)


def names_of(run: xr.Dataset) -> list[str]:
    """Returns the label of each client along `population`: its name, or its number if it has none."""
    if NAMES in run.coords and run[NAMES].dims == ("population",) and all(run[NAMES].values):
        return [str(name) for name in run[NAMES].values]
    clients = run["population"].values if "population" in run.coords else range(run.sizes.get("population", 0))
    return [str(client) for client in clients]


def with_names(members: Sequence[xr.Dataset]) -> list[xr.Dataset]:
    """Returns results that can be concatenated: where some have names of clients, the others have empty ones."""
    if not any(NAMES in member.coords for member in members):
        return list(members)
    return [
        member
        if NAMES in member.coords or "population" not in member.dims
        else member.assign_coords({NAMES: ("population", np.full(member.sizes["population"], ""))})
        for member in members
    ]


def _nan_of(dataset: xr.Dataset) -> dict[str, float]:
    return {str(name): np.nan for name in dataset.data_vars if name != "client_samples"}
