"""A single dimension for clients, `population`, with their names, so that quantities per client can be combined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from jaxafl.data import FederatedData

if TYPE_CHECKING:  # importing xarray here would slow down `import jaxafl`
    import xarray as xr

NAMES = "client_name"
_EVALUATED = "held_out_client"  # dimension of the evaluated clients in the engine and in files of version 0.2.0


def with_clients(dataset: xr.Dataset, data: FederatedData) -> xr.Dataset:
    """Returns a result with the clients' names, and metrics of single clients along `population`.

    `client_samples` is the number n of held-out samples of each, and `client_accuracy_error` the standard error of its
    accuracy p by n: half the width of `standard_interval`, close to √(p(1 - p)/n).
    """
    coords = {"population": np.arange(data.num_clients)}
    if _EVALUATED in dataset.dims:
        owners = data.owners
        dataset = dataset.assign(client_samples=(_EVALUATED, owners.samples)).assign_coords(
            {_EVALUATED: owners.clients}
        )
    if "client_accuracy" in dataset:
        accuracy = dataset["client_accuracy"]
        low, high = standard_interval(accuracy.values, dataset["client_samples"].values)
        error = accuracy.copy(data=((high - low) / 2).astype(accuracy.dtype))
        dataset = dataset.assign(client_accuracy_error=error)
    found = along_population(dataset.assign_coords(coords))
    return found if data.client_names is None else found.assign_coords({NAMES: ("population", data.client_names)})


def along_population(dataset: xr.Dataset) -> xr.Dataset:
    """Returns a result with the metrics of single clients along `population`.

    Clients without held-out samples have NaN, and 0 for `client_samples`. Other results are returned unchanged.
    """
    if _EVALUATED not in dataset.dims:
        return dataset
    metrics = dataset[[name for name, values in dataset.variables.items() if _EVALUATED in values.dims]]
    metrics = metrics.drop_vars([name for name in metrics.coords if _EVALUATED not in metrics[name].dims])
    metrics = metrics.rename({_EVALUATED: "population"})
    if "population" in dataset.coords:
        missing = {str(name): 0 if name == "client_samples" else np.nan for name in metrics.data_vars}
        metrics = metrics.reindex(population=dataset["population"], fill_value=missing)
    return dataset.drop_dims(_EVALUATED).merge(metrics, combine_attrs="override").assign_attrs(dataset.attrs)


def names_of(run: xr.Dataset) -> list[str]:
    """Returns the label of each client along `population`: its name, or its number if it has none."""
    if NAMES in run.coords and run[NAMES].dims == ("population",) and all(run[NAMES].values):
        return [str(name) for name in run[NAMES].values]
    clients = run["population"].values if "population" in run.coords else range(run.sizes.get("population", 0))
    return [str(client) for client in clients]


def worst_tenth(values: np.ndarray, rising: bool = True) -> np.ndarray:
    """Returns the mean metric of the worst 10 % of the clients, at least one client, float [evaluations].

    Args:
        values: accuracies, or another metric, float [evaluations, clients].
        rising: True if higher values are better.
    """
    worst_first = np.sort(values, axis=1) if rising else -np.sort(-values, axis=1)
    return worst_first[:, : max(1, round(0.1 * values.shape[1]))].mean(axis=1)


def standard_interval(share: np.ndarray, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Computes Wilson's score interval of a share of correct samples at one standard error, both float [clients].

    (p + 1/(2n) ± √(p(1 - p)/n + 1/(4n²))) / (1 + 1/n): close to p ± √(p(1 - p)/n), and not empty at p = 0 and 1.

    Args:
        share: float [clients], p.
        samples: int [clients], n >= 1.
    """
    n = np.asarray(samples, float)
    half = np.sqrt(share * (1 - share) / n + 1 / (4 * n**2))
    centre = share + 1 / (2 * n)
    return (centre - half) / (1 + 1 / n), (centre + half) / (1 + 1 / n)


def with_names(members: Sequence[xr.Dataset]) -> list[xr.Dataset]:
    """Returns results that can be concatenated: if some have names of clients, the others get empty names."""
    if not any(NAMES in member.coords for member in members):
        return list(members)
    return [
        member
        if NAMES in member.coords or "population" not in member.dims
        else member.assign_coords({NAMES: ("population", np.full(member.sizes["population"], ""))})
        for member in members
    ]
