"""Moments of the staleness for bounds: in closed form for Bernoulli uploads, or from any schedule."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pandas as pd
import xarray as xr

from jaxafl.clock import Schedule
from jaxafl.options import UserError, as_numbers, check_choice, check_number, check_whole
from jaxafl.theory.bounds import described

Age = Literal["model", "gradient"]
_MOMENTS = ("staleness_mean", "staleness_square", "staleness_cube")
_CUBIC = np.array([13 / 6, 3 / 2, 1 / 3])  # factors of E[τ], E[τ²], E[τ³]


def bernoulli(
    upload: Any, download: Any = 1.0, *, clients: int = 1, weights: Any = None, age: Age = "model"
) -> xr.Dataset:
    """Computes the moments of the staleness on the clock `bernoulli(upload, download)`, in closed form.

    A client's model is replaced with probability pq per tick, so its age is geometric: P(τ = k) = pq(1-pq)^k. With
    r = 1/(pq) - 1: E[τ] = r, E[τ²] = 2r² + r, E[τ³] = 6r³ + 6r² + r. Arrivals do not depend on the age, so this is also
    the staleness of arrivals, which enters AUDG's bound. PSURDG reuses the last gradient that arrived. Its age is the
    age of the model at the arrival plus the ticks since: the sum of two independent geometric variables, of pq and p.
    Both hold in the long run; a run from version 0 begins with smaller ages.

    Args:
        upload: p in (0, 1], a number or one per client [N].
        download: q in (0, 1], a number or one per client [N].
        clients: N, if no argument has one entry per client.
        weights: λ_i [N], normalised to sum 1; by default all equal.
        age: `"model"` or `"gradient"`.

    Returns:
        `staleness_mean`, `staleness_square`, `staleness_cube` along `population`, and the scalars `mean_staleness` (A),
        `cubic_staleness` (B), `mean_arrivals` (I), `clients` (N).
    """
    owner = "theory.staleness.bernoulli"
    check_choice(owner, "age", age, ("model", "gradient"))
    for name, value in (("upload", upload), ("download", download)):
        check_number(owner, name, value, above=0, most=1, per_client=True)
    one_each = np.broadcast_shapes(*map(np.shape, (upload, download, weights)))
    size = one_each or (check_whole(owner, "clients", clients),)
    up, down = (np.full(size, value, float) for value in (upload, download))
    first = _geometric(up * down)
    moments = first if age == "model" else _of_sum(first, _geometric(up))
    return _dataset(owner, moments, weights, float(up.sum()), {"age": age, "of": "Bernoulli uploads, in closed form"})


def of_schedule(schedule: Schedule | xr.Dataset, *, weights: Any = None, age: Age = "model") -> xr.Dataset:
    """Computes the moments of the staleness of a schedule or a result.

    With `age="model"` they are means over arrivals. With `age="gradient"`, for PSURDG, they are means of the age of a
    client's last gradient over the ticks from the client's first arrival on.

    Args:
        schedule: a schedule, or the result of one run.
        weights: λ_i [N], by default all equal; the weights of clients that never arrived are given to the others.
        age: `"model"` or `"gradient"`.

    Returns:
        The variables of `bernoulli`, NaN along `population` where a client never arrived, with `staleness_max` (τ_max),
        `staleness_mean_of_max` (τ_avg) and `staleness_median_of_max` over the server steps with arrivals, and
        `clients_heard`, the number of clients that arrived.

    Raises:
        ValueError: the schedule has no arrivals.
    """
    owner = "theory.staleness.of_schedule"
    check_choice(owner, "age", age, ("model", "gradient"))
    clients, ages, mask, N = _arrivals(schedule)
    if not mask.any():
        raise UserError(f"{owner}: nobody arrived in this schedule, so that there is no staleness")
    client, late = (clients[mask], ages[mask].astype(float)) if age == "model" else _reused(clients, ages, mask, N)
    counts = np.bincount(client, minlength=N)
    known = np.where(counts > 0, counts, np.nan)
    moments = np.stack([np.bincount(client, late**power, N) / known for power in (1, 2, 3)])
    dataset = _dataset(owner, moments, weights, float(mask.sum(axis=1).mean()), {"age": age, "of": "a schedule"})
    worst = np.where(mask, ages, -1).max(axis=1)[mask.any(axis=1)]
    figures = {"staleness_max": float(worst.max()), "staleness_mean_of_max": worst.mean()}
    figures |= {"staleness_median_of_max": np.median(worst), "clients_heard": float(np.count_nonzero(counts))}
    return dataset.assign(figures)


def _geometric(probability: np.ndarray) -> np.ndarray:
    """Returns the first three moments [3, N] of the number of failures before a success."""
    odds = 1 / probability - 1
    return np.stack([odds, 2 * odds**2 + odds, 6 * odds**3 + 6 * odds**2 + odds])


def _of_sum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns the first three moments of the sum of two independent variables."""
    return np.stack([
        a[0] + b[0],
        a[1] + 2 * a[0] * b[0] + b[1],
        a[2] + 3 * a[1] * b[0] + 3 * a[0] * b[1] + b[2],
    ])  # fmt: skip


def _arrivals(schedule: Schedule | xr.Dataset) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Returns client, staleness and mask of the arrivals, [T, A], and the number of clients."""
    if isinstance(schedule, Schedule):
        return schedule.client, schedule.staleness, schedule.mask, schedule.num_clients
    if schedule["staleness"].ndim != 2:
        raise UserError(
            "theory.staleness.of_schedule takes a schedule or the result of one run, [step, arrival]; of a sweep "
            f"choose one, result.isel(seed=0); got dimensions {schedule['staleness'].dims}"
        )
    made = schedule["time"].notnull().values  # a member of a sweep may end before others
    client, late = schedule["client_id"].values[made].astype(int), schedule["staleness"].values[made]
    mask = client >= 0
    return client, np.where(mask, late, -1).astype(int), mask, int(schedule.attrs["num_clients"])


def _reused(client: np.ndarray, staleness: np.ndarray, mask: np.ndarray, N: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns client and age of the gradient last received, at every tick from each client's first arrival on."""
    steps = np.arange(len(mask))[:, None]
    version = np.full((len(mask), N), np.nan)
    version[np.nonzero(mask)[0], client[mask]] = (steps - staleness)[mask]
    ages = steps - pd.DataFrame(version).ffill().values
    known = np.isfinite(ages)
    return np.nonzero(known)[1], ages[known]


def _dataset(owner: str, moments: np.ndarray, weights: Any, arrivals: float, attributes: dict[str, str]) -> xr.Dataset:
    """Returns the clients' moments [3, N] with their weighted sums A and B."""
    N = moments.shape[1]
    shares = np.ones(N) if weights is None else as_numbers(owner, "weights", weights)
    check_number(owner, "weights", shares, least=0, per_client=True, num_clients=N)
    heard = np.isfinite(moments[0])
    shares = shares * heard / shares[heard].sum()
    known = np.nan_to_num(moments)
    variables: dict[str, Any] = {}
    for name, row in zip(_MOMENTS, moments, strict=True):
        variables[name] = "population", row
    named = {"mean_staleness": known[0] @ shares, "cubic_staleness": _CUBIC @ known @ shares}
    named |= {"mean_arrivals": arrivals, "clients": float(N)}
    variables |= {name: ((), value, described(name)) for name, value in named.items()}
    return xr.Dataset(variables, attrs=attributes)
