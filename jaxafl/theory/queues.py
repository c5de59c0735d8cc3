"""Closed network of queues: throughput, queues and staleness of tasks that a server routes at random.

m tasks circulate. A task that client i has completed causes a server step, and the server sends a new one to a client
drawn with probabilities p. A client works off its tasks one after another, with exponential times of rate μ_i.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from jaxafl.options import UserError, as_numbers, check_whole


def closed_network(probabilities: Any, rates: Any, tasks: int) -> xr.Dataset:
    """Computes the stationary means of the network by Buzen's recursion with the loads ρ_i = p_i/μ_i, in log space.

    G(n, k) = G(n-1, k) + ρ_n G(n, k-1) sums the weights of all distributions of k tasks over n clients. Server steps
    per second: λ = G(N, m-1)/G(N, m). Mean number of tasks at client i: Σ_{k=1..m} ρ_i^k G(N, m-k)/G(N, m).

    A task at client i ages by the steps of other tasks. The arrival theorem gives its mean staleness E[D_i] as the mean
    number of tasks at i in the network of m - 1 tasks, divided by p_i. Hence Σ p_i E[D_i] = m - 1.

    Args:
        probabilities: p [N], > 0, with sum 1.
        rates: μ [N], tasks per second, > 0.
        tasks: m >= 1.

    Returns:
        `throughput` (λ), and along `population` `tasks` (mean number at the client), `busy` (share of time at work) and
        `staleness` (E[D_i]).

    Raises:
        ValueError: p does not sum to 1, or an argument is out of bounds.

    References:
        Buzen, "Computational algorithms for closed queueing networks with exponential servers", CACM 1973; Leconte,
        Jonckheere, Samsonov & Moulines, "Queuing dynamics of asynchronous federated learning", AISTATS 2024.
    """
    owner = "theory.queues.closed_network"
    p, mu = as_numbers(owner, "probabilities", probabilities), as_numbers(owner, "rates", rates)
    check_whole(owner, "tasks", tasks)
    if mu.shape != p.shape or not (np.minimum(p, mu) > 0).all() or abs(p.sum() - 1) > 1e-6:
        raise UserError(f"{owner}: expected probabilities > 0 with sum 1 and as many rates > 0; got {p} and {mu}")
    loads = np.log(p) - np.log(mu)
    counts = np.arange(tasks + 1)
    log_g = np.where(counts == 0, 0.0, -np.inf)  # of no client
    for load in loads:
        log_g = np.logaddexp.accumulate(log_g - counts * load) + counts * load
    throughput = np.exp(log_g[tasks - 1] - log_g[tasks])
    variables = {
        "throughput": throughput,
        "tasks": ("population", _queues(loads, log_g, tasks)),
        "busy": ("population", throughput * p / mu),
        "staleness": ("population", _queues(loads, log_g, tasks - 1) / p),
    }
    return xr.Dataset(variables)


def _queues(loads: np.ndarray, log_g: np.ndarray, tasks: int) -> np.ndarray:
    """Returns the mean number of tasks at each client [N] if `tasks` circulate."""
    counts = np.arange(1, tasks + 1)
    others = log_g[:tasks][::-1] - log_g[tasks]
    return np.array([np.exp(counts * load + others).sum() for load in loads])
