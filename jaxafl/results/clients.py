"""A single dimension for clients, `population`, with their names, so that quantities per client can be combined."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from jaxafl.data import FederatedData

if TYPE_CHECKING:  # importing xarray here would slow down `import jaxafl`
    import xarray as xr

NAMES = "client_name"


def of_population(values: np.ndarray, data: FederatedData) -> np.ndarray:
    """Returns metrics of the clients with held-out samples, [E, owners, ...], of all clients: [E, N, ...], else NaN."""
    kind = values.dtype if values.dtype.kind == "f" else float
    found = np.full((len(values), data.num_clients, *values.shape[2:]), np.nan, kind)
    found[:, data.owners.clients] = values
    return found


def with_samples(dataset: xr.Dataset, data: FederatedData) -> xr.Dataset:
    """Returns a result with metrics of every client and their numbers n of held-out samples, `client_samples`.

    `client_accuracy_error` is the standard error of a client's accuracy p by n: half the width of `standard_interval`,
    close to √(p(1 - p)/n).
    """
    samples = np.zeros(data.num_clients, data.owners.samples.dtype)
    samples[data.owners.clients] = data.owners.samples
    dataset = dataset.assign(client_samples=("population", samples))
    if "client_accuracy" in dataset:
        accuracy = dataset["client_accuracy"]
        low, high = standard_interval(accuracy.values, np.maximum(samples, 1))
        dataset["client_accuracy_error"] = accuracy.copy(data=((high - low) / 2).astype(accuracy.dtype))
    return dataset


def names_of(run: xr.Dataset) -> list[str]:
    """Returns the label of each client along `population`: its name, or its number if it has none."""
    if NAMES in run.coords and run[NAMES].dims == ("population",) and all(run[NAMES].values):
        return [*map(str, run[NAMES].values)]
    return [*map(str, run["population"].values)] if "population" in run.dims else []


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
